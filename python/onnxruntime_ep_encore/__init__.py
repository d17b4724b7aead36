"""Encore: a CUDA execution provider for the onnxruntime that is already installed.

import onnxruntime_ep_encore as encore

session = encore.session("model.onnx", enable_cuda_graph=True)

That is an onnxruntime.InferenceSession; register() and devices() are what it is made of.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from .bindings import session_class, watching_session_class
from .libraries import get_cmake_dir, get_library_path, why_no_gpu
from .registration import devices, get_ep_name, get_ep_names, import_onnxruntime, register
from .texts import is_on, text_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .callables import Graphed
    from .options import Options

__version__ = "0.1.0"
__all__ = [
    "captures_held_back",
    "devices",
    "get_cmake_dir",
    "get_ep_name",
    "get_ep_names",
    "get_library_path",
    "graph_report",
    "graphed",
    "memory_report",
    "outside_report",
    "placement_report",
    "profiled",
    "region_report",
    "register",
    "session",
]

_profiled: weakref.WeakSet = weakref.WeakSet()  # sessions

# What InferenceSession calls otherwise, or session() sees to itself.
_OTHER_KEYWORDS = {
    "sess_options": "session_options takes them here",
    "providers": "Encore is the provider, and the CPU has what it leaves",
    "provider_options": "each is a keyword here, as in session(model, enable_cuda_graph=True)",
    "options": "each is a keyword here, as in session(model, enable_cuda_graph=True)",
    "path_or_bytes": "the model is the first argument",
    "enable_fallback": "it is never enabled here",
    "disabled_optimizers": "only onnxruntime.InferenceSession takes it, on a provider that register() names",
}


def session(
    model,
    *,
    session_options=None,
    device: str | None = None,
    device_id: int = 0,
    ort=None,
    **options: Unpack[Options],
):
    """An onnxruntime.InferenceSession on Encore; raises wherever onnxruntime would quietly take the CPU instead.

    `model` is a path or bytes, as InferenceSession takes it. The other keywords are the provider's options, as Python
    has them: enable_cuda_graph=True, gpu_mem_limit=1 << 30, pad={"batch": [1, 2, 4]}; None is an option's default.
    Nodes that Encore has no kernel for are on the CPU as in any session; log_placement=True tells which. `device` is
    "cuda" or "virtual", as get_library_path() takes it, the same for all sessions of a process.
    """
    for key in _OTHER_KEYWORDS.keys() & options.keys():
        raise TypeError(f"session() has no keyword '{key}': {_OTHER_KEYWORDS[key]}")
    ort = ort or import_onnxruntime()
    name = register(ort=ort, device=device)
    if model == "":
        raise ValueError("the model's path is empty: give a path, or the model's bytes")
    offered = {int(each.ep_metadata["cuda_device_id"]): each for each in devices(name, ort)}
    if not offered:
        raise RuntimeError(
            "Encore offers no device here; the log said why when it was registered. "
            f"NVIDIA's driver: {why_no_gpu() or 'has a device'}"
        )
    if device_id not in offered:
        raise ValueError(f"device_id is {device_id!r}, but Encore offers {', '.join(map(str, offered))}")
    session_options = session_options or ort.SessionOptions()
    if session_options.has_providers():
        raise ValueError("the session options have a provider already, of another session perhaps: make new ones")
    texts = {key: text_of(value) for key, value in options.items() if value is not None}
    if session_options.optimized_model_filepath:
        _leave_unfused(texts)
    _refuse_other_values(session_options, name, texts)
    session_options.add_provider_for_devices([offered[device_id]], texts)
    try:
        watches = is_on(texts.get("enable_cuda_graph"))
        make = watching_session_class(ort, graph_report) if watches else session_class(ort)
        made = make(model, session_options, enable_fallback=0)
    except Exception as error:  # a RuntimeError up to 1.31, then onnxruntime's InvalidArgument
        where = r"(?:Error creating execution provider:|::CreateProvider\(.*?\))"
        refused = re.search(where + r" \[ONNXRuntimeError\] : \d+ : \w+ : (.*)", str(error))
        if not refused:
            raise
        raise RuntimeError(f"Encore refused the session: {_as_keywords(refused[1])}") from error
    if name not in made.get_providers():
        raise RuntimeError(f"onnxruntime made the session without {name}, on {', '.join(made.get_providers())}")
    return made


def graphed(
    session_or_model,
    *,
    session_options=None,
    device: str | None = None,
    device_id: int = 0,
    ort=None,
    **options: Unpack[Options],
) -> Graphed:
    """A model as a function of its inputs, in their order or by name, of which `auto_graph` replays what it can.

    run = graphed("model.onnx", pad={"batch": [1, 2, 4, 8]})
    y = run(x)              # arrays of numpy's, tensors of torch's, OrtValues, whatever has __dlpack__
    future = run.submit(x)  # without a wait; future.result() waits

    The first argument is a session on Encore, or a model with the keywords that session() takes.
    """
    from .callables import NO_PROTOCOL, Graphed  # which need numpy

    ort = ort or import_onnxruntime()
    if hasattr(session_or_model, "get_providers"):
        more = {"session_options": session_options, "device": device, "device_id": device_id}
        for key in [*(key for key, value in more.items() if value), *options]:
            raise TypeError(f"graphed() was given a session, which is made already: '{key}' is for who makes it")
        return Graphed(session_or_model, ort)
    if is_on(text_of(options.get("enable_cuda_graph"))):
        raise TypeError(f"graphed() has no keyword 'enable_cuda_graph': {NO_PROTOCOL}")
    made = session(
        session_or_model, session_options=session_options, device=device, device_id=device_id, ort=ort, **options
    )
    return Graphed(made, ort)


def graph_report(session) -> list[dict]:
    """What a session's graphs are: id, state, nodes, held_bytes, retained_bytes, replays, refusal.

    Of a model that cannot be captured, id -1 says why in `refusal`.
    """
    return _report(session, "report_graphs")


def region_report(session) -> list[dict]:
    """What auto_graph has made of the session's regions, in all threads.

    Each {"region", "nodes", "keys", "graphs", "scratch_bytes", "captures", "replays", "staged", "first_runs",
    "padded", "grown", "lengths", "changing", "in_captures", "eager", "moved", "crowded", "refused", "refusal",
    "shapes"}: sets of shapes that are known, graphs that are kept, the most that a run takes besides its inputs and
    outputs, runs of each kind, and tensors that were copied to where a graph has them, or from there. `shapes` has for
    each set of shapes that has run {"inputs", "scratch_bytes", "graphs", "workspace_bytes", "graph_nodes"}: what a run
    takes, and what its graphs work in and are made of. Padded are runs of which `pad` has made a dimension longer,
    replayed or not; grown those of which a mask that grows became longer by itself, to one of `lengths` by dimension.
    `changing` names what the sets of shapes differ in. Eager are runs with large tensors at new places or on a stream
    that is new to these shapes, as each thread has from onnxruntime 1.26 on (moved), without room for another graph
    (crowded), and where none could be captured (refused); `refusal` is the latest reason. What an application captures
    by itself has runs `in_captures`.
    """
    return _report(session, "report_regions")


def placement_report(session) -> list[dict]:
    """Where each node of a model runs, and why: {"node", "inside", "on_encore", "part", "why"}.

    `inside` is the body of control flow that the node is in, or empty. `part` is the region or group that it was made
    one with, which region_report() calls so; None if there is none, or the node is not on Encore.
    """
    return _report(session, "report_placement")


def outside_report(session) -> list[dict]:
    """What of a model is in no region (regions, auto_graph), and why: as placement_report() has it."""
    return [node for node in placement_report(session) if node["part"] is None]


def memory_report(session) -> dict:
    """What a session's memory is: arena, holders, pinned, staging, automatic_graphs, device.

    A limit that there is not is None.
    """
    return _report(session, "report_memory")


@contextlib.contextmanager
def captures_held_back(session):
    """While in it, no session of this process captures: what waits for a whole device would break a capture.

    Waits for the end of captures under way. `session` is any that is on Encore.
    """
    session.set_ep_dynamic_options({"ep.cuda.captures": "hold"})
    try:
        yield
    finally:
        session.set_ep_dynamic_options({"ep.cuda.captures": "let go"})


@contextlib.contextmanager
def profiled(session):
    """What nodes take on the device while in it: a list that is filled at its end, in the order of their beginning.

    Each {"name", "op", "replay", "depth", "stream", "begin_us", "us", "own_us"}: replayed from a graph or not, inside
    of how many other nodes, on which of the session's streams, and how long, with and without the nodes inside. All
    that the session runs meanwhile is told, in whichever thread, so there is one profile of a session at a time.
    docs/profiling.md says what is in a node's time.
    """
    if session in _profiled:
        raise RuntimeError("the session is being profiled already, and all that it runs is told there")
    nodes = []
    session.set_ep_dynamic_options({"ep.cuda.profile": "start"})
    _profiled.add(session)
    try:
        yield nodes
    finally:
        _profiled.discard(session)
        nodes += _report(session, "profile")


def _report(session, option):
    # onnxruntime hands options to a provider and nothing back, so the provider writes a file.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        session.set_ep_dynamic_options({f"ep.cuda.{option}": str(file)})
        if not file.exists():
            raise RuntimeError(f"the session is not on Encore; its providers are {', '.join(session.get_providers())}")
        return json.loads(file.read_text())


def _leave_unfused(options):
    """As onnxruntime can't save a model with fused nodes: optimized_model_filepath."""
    for key, harmless in ("fuse_nodes", ("0", "false")), ("pad", ("", "off")):
        if options.get(key, harmless[0]).lower() not in harmless:
            raise ValueError(
                f"{key}={options[key]!r} fuses nodes, and onnxruntime can't save such a model: leave it out, or "
                "optimized_model_filepath"
            )
    if "fuse_nodes" not in options:
        options["fuse_nodes"] = "0"
        warnings.warn("nothing is fused (fuse_nodes=False), because optimized_model_filepath is set", stacklevel=3)


def _refuse_other_values(session_options, name, options):
    """Where a config entry gives an option another value, which onnxruntime would replace without a word."""
    for key, value in options.items():
        for entry in (f"ep.cuda.{key}", f"ep.{name.lower()}.{key}"):
            try:
                before = session_options.get_session_config_entry(entry)
            except RuntimeError:  # there is none
                continue
            if before != value:
                raise ValueError(
                    f"{key} is {value!r}, but the session options' entry '{entry}' is {before!r}: give one"
                )


def _as_keywords(refusal):
    """The refusal with options named as session() takes them."""
    bare = re.sub(r"'ep\.(?:cuda|\w+executionprovider)\.([^']+)'", r"'\1'", refusal)
    return re.sub(r"did you mean '(\w+\.[\w.]+)'", r"did you mean **{'\1': …}", bare)
