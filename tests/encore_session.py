"""Sessions on Encore under any onnxruntime from 1.24 on: registration, placement, values in device memory."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore
from onnxruntime.capi import onnxruntime_pybind11_state as capi

ROOT = Path(__file__).resolve().parents[1]
# onnxruntime takes opsets that are newer than it only if told so; read when a model is loaded.
os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")

EP_NAME = os.environ.get("ENCORE_EP_NAME", "CudaPluginExecutionProvider")
ORT_VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])
NVIDIA = 0x10DE  # onnxruntime tells vendors apart by their PCI ids
# That it knows, whether or not it calls it released.
NEWEST_OPSET = next((opset for since, opset in {32: 28, 31: 27, 26: 26}.items() if ORT_VERSION >= (1, since)), 23)
HAS_GRAPHS = ORT_VERSION >= (1, 26)  # before, it doesn't ask a plugin to capture
EAGER = -1  # the graph id under which a run isn't captured
# What options that Encore refuses raise: Python goes on with the CPU, as make_session finds, but not from 1.32 on.
REFUSED, REFUSAL = (AssertionError, "alone") if ORT_VERSION < (1, 32) else (capi.InvalidArgument, "INVALID_ARGUMENT")


def _clips_bytes():
    """The CPU EP's products of signed by unsigned bytes, two of which it adds up in 16 bits, where x86 has no VNNI."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return "sse4_1" in flags and not {"avx512_vnni", "avx_vnni"} & set(flags)


CPU_CLIPS_BYTES = _clips_bytes()

# Options that the environment gives all sessions, as ENCORE_TEST_OPTIONS="regions=1 prefer_nhwc=1".
OPTIONS_OF_ALL = dict(option.split("=") for option in os.environ.get("ENCORE_TEST_OPTIONS", "").split())
# Most models are one node then, and few nodes are elsewhere.
HAS_REGIONS = "1" in (OPTIONS_OF_ALL.get("regions", "1"), OPTIONS_OF_ALL.get("auto_graph"))


def only_if(applies):
    """Tests what this onnxruntime or device has. Not a skip: elsewhere there is nothing to test."""

    def mark(test):
        test.__test__ = applies and getattr(test, "__test__", True)
        return test

    return mark


needs_graphs = only_if(HAS_GRAPHS)  # it asks plugins to capture
# Before, the last tensor of a session that is gone is freed through the provider that went with it.
FREES_LATE = ORT_VERSION >= (1, 28)
needs_late_free = only_if(FREES_LATE)
OUTLIVING = []


def registered():
    """Registers the library, once in a process; the EP's name."""
    name = onnxruntime_ep_encore.register(EP_NAME)
    assert onnxruntime_ep_encore.devices(name), "Encore offers no device here"
    return name


def on_virtual_gpu():
    return _facts()["cuda_device_name"].startswith("Encore virtual GPU")


def has_clusters():
    """Whether blocks may work together, as from Hopper on."""
    return capability() >= (9,)


def capability():
    """The device's compute capability, two numbers."""
    return tuple(int(number) for number in _facts()["cuda_compute_capability"].split("."))


def _facts():
    return onnxruntime_ep_encore.devices(registered())[0].ep_metadata


def in_new_process(code, **variables):
    """Runs Python code in a process that has registered nothing yet; these are its further environment variables."""
    folders = [ROOT / "python", ROOT / "tests", ROOT / "tests" / "python"]
    paths = [*map(str, folders), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONFAULTHANDLER": "1", **variables, "PYTHONPATH": os.pathsep.join(paths)}
    # Not as an argument: onnxruntime 1.30.0 overflows its stack on a command line of more than 32 KiB.
    done = subprocess.run([sys.executable, "-"], input=code, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"the process {_end(done.returncode)}{_tail(done.stdout)}\n---- stderr{_tail(done.stderr)}"
    )
    return done


def _end(code):
    return f"exited with {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"


def _tail(text, most=60):
    lines = text.splitlines()
    left = [f"... {len(lines) - most} lines before"] if len(lines) > most else []
    return "".join(f"\n{line}" for line in [*left, *lines[-most:]])


def make_stream(device=0):
    """A stream as an application makes one; its get_handle() is what the option user_compute_stream takes."""
    return onnxruntime_ep_encore.devices(registered())[device].create_sync_stream()


def last_plan(folder):
    """The text that the only region's plan has after the last pass, of a session with dump_regions=folder."""
    (last,) = [sorted(region.glob("*.txt"))[-1] for region in folder.iterdir() if region.is_dir()]
    return last.read_text()


def trace(session, work):
    """What the virtual GPU does while work() runs: a list of {stream, what, name, label}."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace"
        session.set_ep_dynamic_options({"ep.cuda.trace": "start"})
        try:
            work()
        finally:
            session.set_ep_dynamic_options({"ep.cuda.trace": str(file)})
        return [json.loads(line) for line in file.read_text().splitlines()]


def functors(session, feeds):
    """Of the kernels that the virtual GPU launches for a run, without their parameters."""
    ran = [k["name"] for k in trace(session, lambda: session.run(None, feeds)) if k["what"] == "kernel"]
    return [name.partition("<")[0].rpartition("::")[2] for name in ran]


# Threads of onnxruntime's wait for work for some 30 ms, and take the processor from Encore's and from other tests.
NO_SPINNING = {"session.intra_op.allow_spinning": "0"}
# Where a session's work and its copies may be.
ARRANGEMENTS = {
    "own streams": {},
    "copies apart": {"do_copy_in_default_stream": 0},
    "unified": {"use_ep_level_unified_stream": 1},
    "given": {"user_compute_stream": "given"},
    "given, copies apart": {"user_compute_stream": "given", "do_copy_in_default_stream": 0},
}


def arranged(arrangement, stream):
    """A session's options; the stream is the application's, if it is to give one."""
    options = ARRANGEMENTS[arrangement].items()
    return {key: stream.get_handle() if value == "given" else value for key, value in options}


def make_session(model, session_options=None, config=None, device=0, **options):
    """A session that has Encore first and never falls back to the CPU unseen.

    `model` is a ModelProto, its bytes or a path; `options` are the provider's, `config` the session's. Float products
    keep float's precision unless use_tf32=1 asks otherwise.
    """
    no_regions = {"auto_graph": 0} if options.get("regions") == 0 else {}  # which it would bring along
    options = OPTIONS_OF_ALL | no_regions | {"use_tf32": 0} | options
    session_options = session_options or ort.SessionOptions()
    session_options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in (NO_SPINNING | (config or {})).items():
        session_options.add_session_config_entry(key, str(value))
    chosen = onnxruntime_ep_encore.devices(registered())[device]
    session_options.add_provider_for_devices([chosen], {key: str(value) for key, value in options.items()})
    if hasattr(model, "SerializeToString"):
        model = model.SerializeToString()
    session = ort.InferenceSession(model, session_options)
    # onnxruntime's Python makes a session on the CPU alone if the provider refuses: green, with nothing run.
    assert EP_NAME in session.get_providers(), f"the session is on {session.get_providers()} alone"
    session.disable_fallback()
    return session


def on_cpu(model, session_options=None):
    """A session of a ModelProto on the CPU alone: the reference."""
    session_options = session_options or ort.SessionOptions()
    for key, value in NO_SPINNING.items():
        session_options.add_session_config_entry(key, value)
    return ort.InferenceSession(model.SerializeToString(), session_options, providers=["CPUExecutionProvider"])


def outliving(session):
    """The session, which goes after the test's values where it has to."""
    if not FREES_LATE:
        OUTLIVING.append(session)
    return session


def nodes_on(session, domain=None):
    """The names of the operators, of one domain if it is given, by execution provider: of a make_session()."""
    placed = {}
    for part in session.get_provider_graph_assignment_info():
        nodes = [node.op_type for node in part.get_nodes() if domain is None or node.domain == domain]
        placed.setdefault(part.ep_name, []).extend(nodes)
    return placed


def has_channels_last(session, op):
    """Whether the operator's nodes run with channels last, in a session with prefer_nhwc=1."""
    if op in nodes_on(session, "com.ms.internal.nhwc").get(EP_NAME, []):
        return True
    if ORT_VERSION >= (1, 31):
        return False
    # Of nodes that aren't fused, older ones list those that change the layout, and none that were there before.
    placed = nodes_on(session).get(EP_NAME, [])
    return "Transpose" in placed and op not in placed


def assert_all_on_encore(session, layout_asked=False):
    """`layout_asked`: with prefer_nhwc=1, after which an older host may have nothing left to list."""
    placed = nodes_on(session)
    nothing_listed = layout_asked and ORT_VERSION < (1, 31) and not placed
    assert nothing_listed or list(placed) == [EP_NAME], f"nodes are elsewhere: {placed}"


def run_options(graph_id=None, **entries):
    """Run options with a graph's id (EAGER for none) and other entries."""
    options = ort.RunOptions()
    if graph_id is not None:
        options.add_run_config_entry("gpu_graph_id", str(graph_id))
    for key, value in entries.items():
        options.add_run_config_entry(key, str(value))
    return options


def on_device(array, device=0):
    """A copy of an array in device memory."""
    return ort.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"), "gpu", device, NVIDIA)


def empty_on_device(shape, dtype=np.float32, device=0):
    return ort.OrtValue.ortvalue_from_shape_and_type(list(shape), np.dtype(dtype), "gpu", device, NVIDIA)


def bind_unallocated(session, x):
    """A binding of x, with y for onnxruntime to allocate on the device."""
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    if ORT_VERSION >= (1, 30):
        binding.bind_output("y", "cuda", 0)
    else:  # older ones know no vendor under that name
        binding._iobinding.bind_output("y", capi.OrtDevice(1, 0, NVIDIA, 0))
    return binding


class Bound:
    """A session with all inputs and outputs in device memory, where they stay: what a captured graph needs.

    Outputs have the shapes of the arrays in `outputs`, a dictionary of (shape, dtype).
    """

    def __init__(self, session, feeds, outputs):
        self.session = session
        self.binding = session.io_binding()
        self.inputs = {name: on_device(array) for name, array in feeds.items()}
        self.outputs = {name: empty_on_device(*form) for name, form in outputs.items()}
        for name, value in self.inputs.items():
            self.binding.bind_ortvalue_input(name, value)
        for name, value in self.outputs.items():
            self.binding.bind_ortvalue_output(name, value)

    def run(self, feeds=None, graph_id=None, **entries):
        """Runs with new contents, if given, in the same memory; the outputs as arrays by name."""
        for name, array in (feeds or {}).items():
            self.inputs[name].update_inplace(np.asarray(array, order="C"))
            # What a node on the CPU reads is copied there when it is bound.
            self.binding.bind_ortvalue_input(name, self.inputs[name])
        options = run_options(graph_id, **entries) if graph_id is not None or entries else None
        self.session.run_with_iobinding(self.binding, options)
        return {name: value.numpy() for name, value in self.outputs.items()}


def is_gone(thread, seconds):
    """Waits for the thread's end; False if it hangs.

    With what the library keeps for it, which Python's join() doesn't wait for.
    """
    end = time.monotonic() + max(0, seconds)
    thread.join(max(0, seconds))
    task = Path(f"/proc/self/task/{thread.native_id}")
    while task.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def in_threads(count, work, meanwhile=None, finally_=lambda: None):
    """Runs work(i) in threads; what went wrong. None may take five minutes."""
    wrong = []

    def guarded(i):
        try:
            work(i)
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=guarded, args=(i,), daemon=True) for i in range(count)]
    end = time.monotonic() + 300
    for thread in threads:
        thread.start()
    try:
        if meanwhile:
            meanwhile()
    finally:
        finally_()
        for thread in threads:
            if not is_gone(thread, end - time.monotonic()):
                wrong.append(TimeoutError("a thread hangs"))
    return wrong
