"""An application that uses onnxruntime's C API, for what its Python doesn't have."""

import ctypes
import shutil

import c_api
import encore_session
import numpy as np
import onnxruntime_ep_encore

SHAPE = (4, 8)
FLOAT = 1  # as onnxruntime numbers types
DEVICE, PINNED = 0, 5  # and kinds of memory
SHARED = "shared"  # device memory too, of the environment
LOGGER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, *[ctypes.c_char_p] * 4)


def start(folder):
    """An onnxruntime of its own, which takes a library file of its own: the API, and an environment with Encore."""
    library = shutil.copy(onnxruntime_ep_encore.get_library_path(), folder / "encore.so")
    api = c_api.Api()
    env = api.make("CreateEnv", 2, b"test")
    api.call("RegisterExecutionProviderLibrary", env, encore_session.EP_NAME.encode(), str(library).encode())
    return api, env


class Application:
    """A session on Encore, with x and y of SHAPE in device memory, host memory for either, and a stream.

    `model` is bytes; log(message) is called for what it warns of. Encore's reports and
    encore_session.trace() take an application for a session.
    """

    def __init__(self, api, env, model, on_its_stream=False, log=None, **options):
        self.api, self._env = api, env
        found, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_size_t()
        api.call("GetEpDevices", env, ctypes.pointer(found), ctypes.pointer(count))
        names = [api.get("EpDevice_EpName", found[i], result=ctypes.c_char_p) for i in range(count.value)]
        self._device = found[names.index(encore_session.EP_NAME.encode())]
        self.stream = self.make_stream()
        if on_its_stream:
            options["user_compute_stream"] = self.handle()
        session_options = api.make("CreateSessionOptions")
        self._log = log and LOGGER(lambda *said: log(said[-1].decode()))
        if log:
            api.call("SetUserLoggingFunction", session_options, self._log, None)
        keys, values = c_api.strings(*options), c_api.strings(*map(str, options.values()))
        append = "SessionOptionsAppendExecutionProvider_V2"
        api.call(append, session_options, env, c_api.pointers(self._device), 1, keys, values, len(options))
        self._session = api.make("CreateSessionFromArray", env, model, len(model), session_options)
        self._allocators = {where: self._make_allocator(where) for where in (DEVICE, PINNED)}
        self.x, self.y = self.make_tensor(), self.make_tensor()
        self.host = np.zeros(SHAPE, np.float32)
        self.host_value = self.make_value_of(self.host)

    def run(self, x, **entries):
        """Copies x in, runs, and copies the output back: all of it on the stream."""
        self.host[:] = x
        self.copy(self.host_value, self.x, self.stream)
        self.execute(self.stream, **entries)
        self.copy(self.y, self.host_value, self.stream)
        return self.host.copy()

    def execute(self, stream=None, profile=None, **entries):
        """Runs from x to y, on the stream if one is given (RunOptionsSetSyncStream).

        With a profile of the run alone (RunOptionsEnableProfiling), if the beginning of its file's name is given.
        """
        api, run_options = self.api, self.api.make("CreateRunOptions")
        for key, value in entries.items():
            api.call("AddRunConfigEntry", run_options, key.encode(), str(value).encode())
        if profile:
            api.call("RunOptionsEnableProfiling", run_options, str(profile).encode())
        if stream:
            api.get("RunOptionsSetSyncStream", run_options, stream, result=None)
        ins, outs = c_api.pointers(self.x), c_api.pointers(self.y)
        names = c_api.strings("x"), c_api.strings("y")
        api.call("Run", self._session, run_options, names[0], ins, 1, names[1], 1, outs)

    def copy(self, source, target, stream=None):
        self.api.call("CopyTensors", self._env, c_api.pointers(source), c_api.pointers(target), stream, 1)

    def make_stream(self):
        return self.api.make("CreateSyncStreamForEpDevice", self._device, None)

    def wait(self, *streams):
        for stream in map(self.implementation, streams):
            stream.call("Flush", stream.address)

    def implementation(self, stream):
        """Encore's side of a stream, as onnxruntime uses it."""
        ep_api = self.api.functions("OrtEpApi", self.api.get("GetEpApi"))
        return self.api.functions("OrtSyncStreamImpl", ep_api.get("SyncStream_GetImpl", stream))

    def handle(self, stream=None):
        return self.api.get("SyncStream_GetHandle", stream or self.stream)

    def make_tensor(self, where=DEVICE):
        shape = (ctypes.c_int64 * 2)(*SHAPE)
        return self.api.make("CreateTensorAsOrtValue", self._allocators[where], shape, 2, FLOAT)

    def make_value_of(self, array):
        """A tensor whose memory is the array's."""
        cpu = self.api.make("CreateCpuMemoryInfo", 1, 0)
        shape = (ctypes.c_int64 * 2)(*SHAPE)
        where = (array.ctypes.data, array.nbytes)
        return self.api.make("CreateTensorWithDataAsOrtValue", cpu, *where, shape, 2, FLOAT)

    def contents(self, value):
        """What a tensor in host memory holds, as an array in the same place."""
        address = self.api.make("GetTensorMutableData", value)
        return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), SHAPE)

    def stats(self, where=DEVICE):
        """What the session's allocator answers to AllocatorGetStats."""
        pairs = self.api.make("AllocatorGetStats", self._allocators[where])
        keys, values = (ctypes.POINTER(ctypes.c_char_p)() for _ in range(2))
        count = ctypes.c_size_t()
        self.api.get("GetKeyValuePairs", pairs, *map(ctypes.pointer, (keys, values, count)), result=None)
        return {keys[i].decode(): int(values[i]) for i in range(count.value)}

    def share_allocator(self, **options):
        """Makes the environment's allocator of device memory anew: the one called SHARED from now on."""
        pairs = ctypes.c_void_p()
        self.api.get("CreateKeyValuePairs", ctypes.pointer(pairs), result=None)
        for key, value in options.items():
            self.api.get("AddKeyValuePair", pairs, key.encode(), str(value).encode(), result=None)
        self._allocators[SHARED] = self.api.make("CreateSharedAllocator", self._env, self._device, 0, 0, pairs)

    def set_ep_dynamic_options(self, entries):
        keys, values = c_api.strings(*entries), c_api.strings(*entries.values())
        self.api.call("SetEpDynamicOptions", self._session, keys, values, len(entries))

    def _make_allocator(self, where):
        return self.api.make("CreateAllocator", self._session, self.api.get("EpDevice_MemoryInfo", self._device, where))
