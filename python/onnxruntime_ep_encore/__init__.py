"""Encore: a CUDA execution provider for the onnxruntime that is already installed.

import onnxruntime_ep_encore as encore

session = encore.session("model.onnx", enable_cuda_graph=True)

That is an onnxruntime.InferenceSession; register() and devices() are what it is made of.
"""

import contextlib
import ctypes
import json
import os
import re
import tempfile
import threading
import warnings
from collections.abc import Iterable
from pathlib import Path

from .bindings import session_class

__version__ = "0.1.0"
__all__ = [
    "captures_held_back",
    "devices",
    "get_ep_name",
    "get_ep_names",
    "get_library_path",
    "graph_report",
    "memory_report",
    "outside_report",
    "placement_report",
    "profiled",
    "region_report",
    "register",
    "session",
]

_FILE = "libonnxruntime_providers_cuda_plugin.so"
_HERE = Path(__file__).resolve().parent
_NAME = "CUDAExecutionProvider"

_registering = threading.Lock()
_registered = {}  # by provider, the name under which register() registered it

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


def get_library_path() -> str:
    """The library to register with onnxruntime.

    $ENCORE_LIBRARY if set, else the one in this package. In a source checkout, the build of the preset cuda if a GPU
    works here, else of the preset virtual.
    """
    named = os.environ.get("ENCORE_LIBRARY")
    if named:
        if not Path(named).is_file():
            raise FileNotFoundError(f"ENCORE_LIBRARY names {named}, which is not a file; correct or unset it")
        return str(Path(named).resolve())
    places = [_HERE / _FILE, *_builds()]
    for place in places:
        if place.is_file():
            return str(place)
    way_out = "run `./encore build`" if len(places) > 1 else "reinstall onnxruntime-ep-encore"
    looked = "".join(f"\n  {place}" for place in places)
    raise FileNotFoundError(f"{_FILE} is missing: {way_out}, or name it in ENCORE_LIBRARY. Looked at:{looked}")


def get_ep_name() -> str:
    """The execution provider's name if the library is registered under this name, or any without the ending below.

    A registration name that ends in "ExecutionProvider" is the provider's name itself. onnxruntime applies its CUDA
    graph fusions to this name alone.
    """
    return _NAME


def get_ep_names() -> list[str]:
    """The names of all execution providers in the library: one."""
    return [get_ep_name()]


def register(name: str | None = None, ort=None) -> str:
    """Registers the library with onnxruntime, once in a process; returns the execution provider's name.

    Without a name, one under which it is registered already will do.
    """
    with _registering:
        return _register(name, ort or _onnxruntime())


def session(model, *, session_options=None, device_id: int = 0, ort=None, **options):
    """An onnxruntime.InferenceSession on Encore; raises wherever onnxruntime would quietly take the CPU instead.

    `model` is a path or bytes, as InferenceSession takes it. The other keywords are the provider's options, as Python
    has them: enable_cuda_graph=True, gpu_mem_limit=1 << 30, pad={"batch": [1, 2, 4]}; None is an option's default.
    Nodes that Encore has no kernel for are on the CPU as in any session; log_placement=True tells which.
    """
    for key in _OTHER_KEYWORDS.keys() & options.keys():
        raise TypeError(f"session() has no keyword '{key}': {_OTHER_KEYWORDS[key]}")
    ort = ort or _onnxruntime()
    name = register(ort=ort)
    offered = {int(device.ep_metadata["cuda_device_id"]): device for device in devices(name, ort)}
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
    options = {key: _text(value) for key, value in options.items() if value is not None}
    if session_options.optimized_model_filepath:
        _leave_unfused(options)
    _refuse_other_values(session_options, name, options)
    session_options.add_provider_for_devices([offered[device_id]], options)
    try:
        graphs = options.get("enable_cuda_graph", "0").lower() in ("1", "true")
        make = session_class(ort, graph_report) if graphs else ort.InferenceSession
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


def devices(name: str | None = None, ort=None) -> list:
    """onnxruntime's devices of the execution provider; add_provider_for_devices takes one of them."""
    ort = ort or _onnxruntime()
    return [device for device in ort.get_ep_devices() if device.ep_name == (name or get_ep_name())]


def graph_report(session) -> list[dict]:
    """What a session's graphs are: id, state, nodes, held_bytes, retained_bytes, replays, refusal.

    Of a model that cannot be captured, id -1 says why in `refusal`.
    """
    return _report(session, "report_graphs")


def region_report(session) -> list[dict]:
    """What auto_graph has made of the session's regions, in all threads.

    Each {"region", "nodes", "keys", "graphs", "scratch_bytes", "captures", "replays", "staged", "first_runs",
    "padded", "grown", "lengths", "changing", "eager", "moved", "crowded", "refused", "refusal"}: sets of shapes that
    are known, graphs that are kept, memory that one works in, runs of each kind, and tensors that were copied to where
    a graph has them, or from there. Padded are runs of which `pad` has made a dimension longer, replayed or not; grown
    those of which a mask that grows became longer by itself, to one of `lengths` by dimension. `changing` names what
    the sets of shapes differ in. Eager are runs with large tensors at new places (moved), without room for another
    graph (crowded), and where none could be captured (refused), of which `refusal` is the latest reason.
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
    """What a session's memory is: arena, holders, pinned, staging, device. A limit that there is not is None."""
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
    that the session runs meanwhile is told, in whichever thread. docs/profiling.md says what is in a node's time.
    """
    nodes = []
    session.set_ep_dynamic_options({"ep.cuda.profile": "start"})
    try:
        yield nodes
    finally:
        nodes += _report(session, "profile")


def _report(session, option):
    # onnxruntime hands options to a provider and nothing back, so the provider writes a file.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        session.set_ep_dynamic_options({f"ep.cuda.{option}": str(file)})
        if not file.exists():
            raise RuntimeError(f"the session is not on Encore; its providers are {', '.join(session.get_providers())}")
        return json.loads(file.read_text())


def gpu_works() -> bool:
    """Whether the NVIDIA driver offers a device to this process."""
    return not why_no_gpu()


def why_no_gpu() -> str:
    """Why the NVIDIA driver offers this process no device; empty if it does."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    result = driver.cuInit(0)
    if result:
        words = ctypes.c_char_p()
        driver.cuGetErrorString(result, ctypes.byref(words))
        return f"cuInit says {result}, {(words.value or b'no words for it').decode()}"
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    return "" if count.value > 0 else "it has no device; CUDA_VISIBLE_DEVICES may hide them"


def _builds():
    """Where a source checkout keeps the builds that would do here, the best first."""
    root = _HERE.parents[1]
    if not (root / "CMakePresets.json").is_file():
        return []
    return [root / "build" / preset / _FILE for preset in (["cuda"] if gpu_works() else []) + ["virtual"]]


def _register(name, ort):
    library = get_library_path()
    present = [device.ep_name for device in ort.get_ep_devices() if _library_of(device) == library]
    if not name and present:
        return present[0]
    name = name or get_ep_name()
    provider = name if name.endswith("ExecutionProvider") else get_ep_name()
    before = _registered.get(provider)
    if provider not in present:
        try:
            ort.register_execution_provider_library(name, library)
        except Exception as error:
            # Of a library that offers no device nothing else tells that it is registered.
            if before != name or "already registered" not in str(error):
                raise
        _registered[provider] = name
    elif before not in (None, name):
        raise ValueError(
            f"Encore can't be registered as '{name}': it is registered as '{before}', and either name stands for "
            f"{provider}. Use that, or call onnxruntime.unregister_execution_provider_library('{before}') first"
        )
    return provider


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
    bare = re.sub(r"'ep\.(?:cuda|\w+executionprovider)\.([\w.]+)'", r"'\1'", refusal)
    return re.sub(r"did you mean '(\w+\.[\w.]+)'", r"did you mean **{'\1': …}", bare)


def _text(value):
    """An option's value as the provider reads it; pad={"batch": [1, 2, 4]} is batch:1,2,4, and 4 stands for [4]."""
    if isinstance(value, dict):
        lists = {name: lengths if isinstance(lengths, Iterable) else [lengths] for name, lengths in value.items()}
        return ";".join(f"{name}:{','.join(map(str, lengths))}" for name, lengths in lists.items())
    return str(int(value)) if isinstance(value, bool) else str(value)


def _library_of(device):
    return device.ep_metadata.get("library_path")


def _onnxruntime():
    needed = "Encore needs onnxruntime 1.24 or newer"
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise ModuleNotFoundError(f"{needed}: `pip install onnxruntime`", name=error.name) from error
    # Before 1.23 it has no devices of plugins; what else is too old, the library itself refuses.
    if not hasattr(onnxruntime, "get_ep_devices"):
        version = getattr(onnxruntime, "__version__", "no onnxruntime, though a folder has its name")
        raise ImportError(f"{needed}; this is {version}: `pip install -U onnxruntime`", name="onnxruntime")
    return onnxruntime
