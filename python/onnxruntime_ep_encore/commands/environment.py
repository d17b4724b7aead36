"""What Encore needs of a machine: a driver, a GPU that the library has code for, libraries, onnxruntime."""

import ctypes
import os
import platform
from pathlib import Path

from .. import __version__, devices, get_library_path, register
from ..libraries import choose, cuda_folders

OLDEST_ORT, NEWEST_ORT = (1, 24), (1, 32)  # between which Encore was tried
# The file, what it is for, its package, and the function that tells its version.
LIBRARIES = [
    ("libcublasLt.so.13", "matrix products", "nvidia-cublas", "cublasLtGetVersion"),
    ("libcudnn.so.9", "convolutions", "nvidia-cudnn-cu13", "cudnnGetVersion"),
    ("libnvrtc.so.13", "elementwise kernels of graphs, some of cuDNN's engines", "nvidia-cuda-nvrtc", None),
]
# y = Relu(x) of three floats, as onnx writes it.
RELU = bytes.fromhex(
    "080a3a360a0c0a0178120179220452656c75120472656c755a0f0a0178120a0a08080112040a020803620f0a0179120a0a08080112040a"
    "02080342040a001012"
)


def good(text):
    print(f"  ok       {text}")


def bad(text, way_out):
    print(f"  missing  {text}\n           {way_out}")


def tell(build="ENCORE_DEVICE=virtual computes on the CPU", compiler=None):
    """Prints all of it; whether a model runs. `build` is the way out without a device, `compiler` tells of nvcc."""
    print("machine")
    good(f"{platform.platform()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}")
    gpus = tell_driver()
    if compiler:
        compiler()
    if gpus:
        print("libraries, opened when a model first needs them")
        for library in LIBRARIES:
            tell_library(*library)
    return tell_onnxruntime() and tell_encore(build)


def tell_driver():
    """Says what the driver offers; returns how many GPUs."""
    print("GPU")
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        seen = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
        way_out = "install NVIDIA's driver from 580 on (in a container, start it with the GPU: --gpus all)"
        bad(f"the driver: {error}", f"{way_out}.{' /dev has ' + ' '.join(seen) + '.' if seen else ''}")
        print("           Without a GPU, the virtual GPU runs everything: slowly, but as strictly.")
        return 0
    result = driver.cuInit(0)
    if result:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(result, ctypes.byref(text))
        words = (text.value or b"no words for it").decode()
        bad(f"a working driver: cuInit says {result}, {words}", "does `nvidia-smi` work? Reload or update the driver.")
        return 0
    version, count = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGetCount(ctypes.byref(count))
    major, minor = version.value // 1000, version.value % 1000 // 10
    if major < 13:
        bad(f"a driver for CUDA 13: this one is for {major}.{minor}", "install NVIDIA's driver from 580 on.")
        return 0
    good(f"driver for CUDA {major}.{minor}")
    for i in range(count.value):
        good(f"device {i}: {gpu_words(driver, i)}")
    if not count.value:
        bad("a device", "CUDA_VISIBLE_DEVICES hides them all, or the driver has none: `nvidia-smi -L` lists them.")
    return count.value


def gpu_words(driver, index):
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    memory, major, minor = ctypes.c_size_t(), ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    for attribute, value in ((75, major), (76, minor)):  # the two halves of the compute capability
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return f"{name.value.decode()}, compute capability {major.value}.{minor.value}, {memory.value / 2**30:.0f} GiB"


def tell_library(file, purpose, package, version_function):
    """Looks where Encore looks, in the same order."""
    places = [str(place) for folder in cuda_folders() if (place := Path(folder) / file).exists()]
    for place in [*places, file, f"/usr/local/cuda/lib64/{file}"]:
        try:
            library = ctypes.CDLL(place)
        except OSError:
            continue
        version = ""
        if version_function:
            function = getattr(library, version_function)
            function.restype = ctypes.c_size_t
            version = f", version {function()}"
        good(f"{file}{version}: {place}")
        return
    bad(f"{file}, for {purpose}", f"`pip install {package}`, or name its folder in ENCORE_LIBRARY_PATH.")


def tell_onnxruntime():
    print("onnxruntime")
    try:
        import onnxruntime as ort
    except ImportError as error:
        bad(f"onnxruntime: {error}", "`pip install onnxruntime`")
        return False
    version = ort_version()
    if version < OLDEST_ORT:
        bad(f"onnxruntime 1.24 or newer: this is {ort.__version__}", "`pip install -U onnxruntime`")
        return False
    notes = ""
    if not captures_graphs():
        notes = "; it can't capture graphs, 1.26 and newer can"
    elif version > NEWEST_ORT:
        notes = f"; newer than {'.'.join(map(str, NEWEST_ORT))}, the newest that Encore was tried with"
    good(f"onnxruntime {ort.__version__}: {Path(ort.__file__).parent}{notes}")
    return True


def ort_version():
    import onnxruntime as ort

    return tuple(int(part) for part in ort.__version__.split(".")[:2])


def captures_graphs():
    """Whether onnxruntime asks plugins to (enable_cuda_graph)."""
    return ort_version() >= (1, 26)


def tell_encore(build):
    """Registers the library and runs a model of one node on each of its devices."""
    print("Encore")
    try:
        good(f"Encore {__version__}: {get_library_path()}")
    except (FileNotFoundError, ValueError) as error:
        bad("the library", str(error).replace("\n", "\n           "))
        return False
    try:
        name = register()
    except Exception as error:  # whatever onnxruntime says, a person should read it
        bad("a library that onnxruntime takes", str(error))
        return False
    offered = devices(name)
    if not offered:
        bad("a device that Encore works on", f"the line above says why; {build}.")
        return False
    works = False
    for device in offered:
        words = device_words(device)
        try:
            run_one_node(device)
        except Exception as error:
            bad(f"a run on {words}", str(error))
            continue
        works = True
        good(f"a model of one node ran on {words}")
    if is_virtual(offered[0]):
        print(f"           This is the virtual GPU, which computes on the CPU: {choose().why}.")
    return works


def device_words(device):
    facts = device.ep_metadata
    return f"{facts.get('cuda_device_name')} (device {facts.get('cuda_device_id')})"


def is_virtual(device):
    return device.ep_metadata.get("cuda_device_name", "").startswith("Encore virtual GPU")


def run_one_node(device):
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_provider_for_devices([device], {})
    session = ort.InferenceSession(RELU, options)
    session.disable_fallback()
    if device.ep_name not in session.get_providers():
        raise RuntimeError("onnxruntime made the session without it; its words are above")
    (y,) = session.run(None, {"x": np.float32([-1, 0, 1])})
    if y.tolist() != [0, 0, 1]:
        raise RuntimeError(f"Relu of -1, 0, 1 gave {y.tolist()}")
