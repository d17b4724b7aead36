"""Which library: CUDA's or the virtual GPU's; and the folders of those that CUDA's opens when it needs them."""

import ctypes
import functools
import mmap
import os
import sys
from pathlib import Path
from typing import NamedTuple

DEVICES = ("cuda", "virtual")
_FILE = "libonnxruntime_providers_cuda_plugin.so"
_HERE = Path(__file__).resolve().parent
_CHECKOUT = _HERE.parents[1]
_FOLDERS = "ENCORE_LIBRARY_PATH"


class Choice(NamedTuple):
    path: str
    why: str
    unasked: bool = False  # the virtual GPU's, though nobody asked for it


def get_library_path(device: str | None = None) -> str:
    """The library to register with onnxruntime: of "cuda", or of "virtual", the GPU that computes on the CPU.

    Without `device`, of $ENCORE_DEVICE; without that, of cuda if NVIDIA's driver offers a GPU, else of virtual, and a
    line on stderr says so, and why. To ask the driver is to start it, which a process must not do before it forks.
    $ENCORE_LIBRARY names a file to take instead. A source checkout has the builds of the presets cuda and virtual.
    """
    choice = choose(device)
    if choice.unasked:
        _tell(choice.why)
    return choice.path


def get_cmake_dir(device: str | None = None) -> str:
    """The folder that CMake's find_package(encore) reads, beside the library: cmake -Dencore_DIR=..."""
    library = Path(get_library_path(device))
    folder = library.parent / "cmake"
    if not (folder / "encore-config.cmake").is_file():
        raise FileNotFoundError(
            f"{folder} has no encore-config.cmake, which a build or an installed package has beside {library.name}"
        )
    return str(folder)


def choose(device: str | None = None) -> Choice:
    """What get_library_path() returns, and why; says nothing."""
    asked_by = f"device={device!r}" if device else f"ENCORE_DEVICE={os.environ.get('ENCORE_DEVICE')}"
    device = device or os.environ.get("ENCORE_DEVICE")
    if device and device not in DEVICES:
        raise ValueError(f"{asked_by} is no device of Encore's: {' and '.join(DEVICES)} are")
    if os.environ.get("ENCORE_LIBRARY"):
        return _named(os.environ["ENCORE_LIBRARY"], device, asked_by)
    wanted = [device] if device else DEVICES
    found = {each: path for each in wanted if (path := _find(each))}
    if not found:
        raise _missing(wanted)
    if device:
        return Choice(found[device], f"{asked_by} asks for it")
    if "virtual" not in found:
        return Choice(found["cuda"], "there is no other")
    why_not = why_no_gpu()
    if "cuda" in found and not why_not:
        return Choice(found["cuda"], "a GPU works here")
    why = f"no GPU works here ({why_not})" if why_not else f"a GPU is here, but no library for it: {_way_out(['cuda'])}"
    return Choice(found["virtual"], why, unasked=True)


def candidates() -> list[str]:
    """All libraries that a process may have."""
    named = [Path(file).resolve() for file in [os.environ.get("ENCORE_LIBRARY")] if file]
    return [str(place) for place in [*named, *_places("cuda"), *_places("virtual")]]


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


def cuda_folders() -> list[str]:
    """Where cuBLASLt, cuDNN and NVRTC are looked for first: in $ENCORE_LIBRARY_PATH, then where pip puts them."""
    named = [folder for folder in os.environ.get(_FOLDERS, "").split(":") if folder]
    of_pip = [str(folder) for place in sys.path for folder in sorted(Path(place).glob("nvidia/*/lib"))]
    return list(dict.fromkeys([*named, *of_pip]))


def tell_cuda_folders():
    """Tells the library, which finds by itself those of its own site-packages alone."""
    if folders := cuda_folders():
        os.environ[_FOLDERS] = ":".join(folders)


def _named(file, device, asked_by):
    if not Path(file).is_file():
        raise FileNotFoundError(f"ENCORE_LIBRARY names {file}, which is not a file; correct or unset it")
    if device and device != (other := "virtual" if _is_virtual(file) else "cuda"):
        raise ValueError(f"{asked_by}, but ENCORE_LIBRARY names a library of {other}, {file}: give one of the two")
    return Choice(str(Path(file).resolve()), "ENCORE_LIBRARY names it")


def _is_virtual(file):
    """By what it exports for applications."""
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b"encore_virtual_") >= 0


def _in_checkout():
    return (_CHECKOUT / "CMakePresets.json").is_file()


def _places(device):
    """Where a device's library may be, the best place first."""
    return [_HERE / device / _FILE] + [_CHECKOUT / "build" / device / _FILE] * _in_checkout()


def _find(device):
    return next((str(place) for place in _places(device) if place.is_file()), None)


def _way_out(devices):
    return f"run `./encore build {devices[0]}`" if _in_checkout() else "reinstall onnxruntime-ep-encore"


def _missing(devices):
    looked = "".join(f"\n  {place}" for device in devices for place in _places(device))
    return FileNotFoundError(
        f"the library of {' or '.join(devices)} is missing: {_way_out(devices)}, or name it in ENCORE_LIBRARY. "
        f"Looked at:{looked}"
    )


@functools.cache  # once in a process
def _tell(why):
    print(
        f"Encore computes on the CPU, by its virtual GPU: {why}. ENCORE_DEVICE=virtual asks for that, "
        "ENCORE_DEVICE=cuda refuses it.",
        file=sys.stderr,
        flush=True,
    )
