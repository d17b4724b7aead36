"""Encore: a CUDA execution provider for the onnxruntime that is already installed.

import onnxruntime, onnxruntime_ep_encore as encore

name = encore.register()
options = onnxruntime.SessionOptions()
options.add_provider_for_devices(encore.devices(name)[:1], {"enable_cuda_graph": "1"})
session = onnxruntime.InferenceSession("model.onnx", options)
"""

import ctypes
import json
import os
import tempfile
from pathlib import Path

__version__ = "0.1.0"
__all__ = ["devices", "get_ep_name", "get_ep_names", "get_library_path", "graph_report", "memory_report", "register"]

_FILE = "libonnxruntime_providers_cuda_plugin.so"
_HERE = Path(__file__).resolve().parent
_NAME = "CUDAExecutionProvider"


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
    """Registers the library with onnxruntime, once in a process; returns the execution provider's name."""
    ort = ort or _onnxruntime()
    name = name or get_ep_name()
    provider = name if name.endswith("ExecutionProvider") else get_ep_name()
    library = get_library_path()
    if not any(_library_of(device) == library for device in devices(provider, ort)):
        ort.register_execution_provider_library(name, library)
    return provider


def devices(name: str | None = None, ort=None) -> list:
    """onnxruntime's devices of the execution provider; add_provider_for_devices takes one of them."""
    ort = ort or _onnxruntime()
    return [device for device in ort.get_ep_devices() if device.ep_name == (name or get_ep_name())]


def graph_report(session) -> list[dict]:
    """What a session's graphs are: id, state, nodes, held_bytes, retained_bytes, replays, refusal."""
    return _report(session, "report_graphs")


def memory_report(session) -> dict:
    """What a session's memory is: arena, holders, pinned, staging, device."""
    return _report(session, "report_memory")


def _report(session, option):
    # onnxruntime hands options to a provider and nothing back, so the provider writes a file.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        session.set_ep_dynamic_options({f"ep.cuda.{option}": str(file)})
        return json.loads(file.read_text())


def gpu_works() -> bool:
    """Whether the NVIDIA driver offers a device to this process."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def _builds():
    """Where a source checkout keeps the builds that would do here, the best first."""
    root = _HERE.parents[1]
    if not (root / "CMakePresets.json").is_file():
        return []
    return [root / "build" / preset / _FILE for preset in (["cuda"] if gpu_works() else []) + ["virtual"]]


def _library_of(device):
    return device.ep_metadata.get("library_path")


def _onnxruntime():
    import onnxruntime

    return onnxruntime
