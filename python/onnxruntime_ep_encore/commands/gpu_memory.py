"""What a GPU has in use, as the driver tells it: for providers that tell nothing of their memory."""

import ctypes


def used_bytes(driver=None):
    """Of the first GPU, by whoever; None without one. Its context stays, so that no difference of two has it."""
    try:
        driver = driver or ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        or driver.cuCtxPushCurrent_v2(context)
        or driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        or driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    )
    return None if failed else total.value - free.value
