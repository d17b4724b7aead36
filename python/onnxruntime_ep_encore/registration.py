"""The library in onnxruntime: one in a process, under one name or several."""

import threading

from .libraries import candidates, get_library_path, tell_cuda_folders

_NAME = "CUDAExecutionProvider"

_registering = threading.Lock()
_registered: dict[str, tuple[str, str]] = {}  # by provider, the name that register() gave, and the library


def get_ep_name() -> str:
    """The execution provider's name if the library is registered under this name, or any without the ending below.

    A registration name that ends in "ExecutionProvider" is the provider's name itself. onnxruntime applies its CUDA
    graph fusions to this name alone.
    """
    return _NAME


def get_ep_names() -> list[str]:
    """The names of all execution providers in the library: one."""
    return [get_ep_name()]


def register(name: str | None = None, ort=None, device: str | None = None) -> str:
    """Registers the library with onnxruntime, once in a process; returns the execution provider's name.

    The library is that of `device`, as get_library_path() takes it. Without one, or without a name, what is registered
    already will do; a process has the library of one device.
    """
    with _registering:
        return _register(name, device, ort or import_onnxruntime())


def devices(name: str | None = None, ort=None) -> list:
    """onnxruntime's devices of the execution provider; add_provider_for_devices takes one of them."""
    ort = ort or import_onnxruntime()
    return [device for device in ort.get_ep_devices() if device.ep_name == (name or get_ep_name())]


def encores(ort) -> list:
    """onnxruntime's devices that are Encore's, under whatever provider's name."""
    ours = {*candidates(), *_libraries()}
    return [device for device in ort.get_ep_devices() if _library_of(device) in ours]


def import_onnxruntime():
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


def _register(name, device, ort):
    present = {each.ep_name: _library_of(each) for each in encores(ort)}
    there = [*present.values()]
    known = there or _libraries()
    library = known[0] if known and not device else get_library_path(device)
    if there and library != there[0]:
        raise _second(library, there[0])
    if not name and present:
        return next(iter(present))
    name = name or get_ep_name()
    provider = name if name.endswith("ExecutionProvider") else get_ep_name()
    before = _registered.get(provider)
    if provider not in present:
        tell_cuda_folders()
        try:
            ort.register_execution_provider_library(name, library)
        except Exception as error:
            # Of a library that offers no device nothing else tells that it is registered.
            if not before or before[0] != name or "already registered" not in str(error):
                raise
            if before[1] != library:
                raise _second(library, before[1]) from error
        _registered[provider] = name, library
    elif before and before[0] != name:
        raise ValueError(
            f"Encore can't be registered as '{name}': it is registered as '{before[0]}', and either name stands for "
            f"{provider}. Use that, or call onnxruntime.unregister_execution_provider_library('{before[0]}') first"
        )
    return provider


def _libraries():
    """Libraries that register() has registered, of which some may be unregistered again."""
    return [library for _, library in _registered.values()]


def _second(library, first):
    return ValueError(
        f"a process has the library of one device: it has registered {first}, and can't have {library} beside it. "
        "Start another process, or call onnxruntime.unregister_execution_provider_library first"
    )


def _library_of(device):
    return device.ep_metadata.get("library_path")
