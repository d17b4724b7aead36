"""An application's default stream, where torch works: runs come after what is there, and nobody has to wait.

On a GPU torch is the application; on the virtual GPU, the functions that its library has for applications.
"""

import ctypes
import importlib.util

import encore_session
import numpy as np
import onnxruntime_ep_encore
import pytest
from encore_session import ARRANGEMENTS, HAS_GRAPHS, arranged, make_session, make_stream, only_if
from onnx import helper

pytestmark = pytest.mark.core

FLOAT = np.float32
SHAPE = (64, 256)
BUSY_US = 30_000
GRAPHS = [0, 1] if HAS_GRAPHS else [0]
ASYNC = {"disable_synchronize_execution_providers": 1}


class VirtualApplication:
    """Tensors that the application fills on its default stream of the virtual GPU, and reads there."""

    def __init__(self):
        library = ctypes.CDLL(onnxruntime_ep_encore.get_library_path())
        library.encore_virtual_default_stream.restype = ctypes.c_void_p
        self.library = library
        self.stream = library.encore_virtual_default_stream(0)

    def tensor(self):
        return encore_session.empty_on_device(SHAPE)

    def call(self, name, *arguments, stream=None):
        pointers = [ctypes.c_void_p(stream or self.stream), *arguments]
        assert getattr(self.library, f"encore_virtual_{name}")(*pointers) == 0

    def be_busy(self, stream=None):
        self.call("sleep", ctypes.c_int64(BUSY_US), stream=stream)

    def fill(self, tensor, byte):
        self.call("fill", ctypes.c_void_p(tensor.data_ptr()), byte, ctypes.c_size_t(4 * np.prod(SHAPE)))

    def copy(self, to, tensor):
        addresses = [ctypes.c_void_p(each.data_ptr()) for each in (to, tensor)]
        self.call("copy", *addresses, ctypes.c_size_t(4 * np.prod(SHAPE)))

    def wait(self):
        self.call("synchronize")

    def bind(self, session, x, y):
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", x)
        binding.bind_ortvalue_output("y", y)
        return binding

    def array(self, tensor):
        return tensor.numpy()


class TorchApplication:
    def __init__(self):
        import torch

        self.torch = torch

    def tensor(self):
        return self.torch.zeros(SHAPE, device="cuda")

    def be_busy(self, stream=None):
        where = self.torch.cuda.ExternalStream(stream) if stream else self.torch.cuda.default_stream()
        with self.torch.cuda.stream(where):
            self.torch.cuda._sleep(BUSY_US * 1500)  # cycles

    def fill(self, tensor, byte):
        tensor.view(self.torch.uint8).fill_(byte)

    def copy(self, to, tensor):
        to.copy_(tensor)

    def wait(self):
        self.torch.cuda.default_stream().synchronize()

    def bind(self, session, x, y):
        binding = session.io_binding()
        for bind, name, tensor in ((binding.bind_input, "x", x), (binding.bind_output, "y", y)):
            bind(name, "cuda", 0, FLOAT, SHAPE, tensor.data_ptr())
        return binding

    def array(self, tensor):
        return tensor.cpu().numpy()


def an_application():
    return VirtualApplication() if encore_session.on_virtual_gpu() else TorchApplication()


# Before onnxruntime 1.30 its Python binds no address in the memory of a plugin under the name "cuda".
with_application = only_if(
    encore_session.on_virtual_gpu()
    or (encore_session.ORT_VERSION >= (1, 30) and importlib.util.find_spec("torch") is not None)
)


@pytest.fixture(scope="module")
def model(make_model):
    """y = -x, by way of nodes enough for a run to take a moment."""
    names = ["x", *(f"t{i}" for i in range(8)), "y"]
    nodes = [helper.make_node("Neg", [a], [b], f"neg{i}") for i, (a, b) in enumerate(zip(names, names[1:]))]
    return make_model(nodes, {"x": list(SHAPE)}, {"y": list(SHAPE)})


def filled(byte):
    return np.frombuffer(bytes([byte] * 4), FLOAT)[0]


@with_application
@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_runs_come_after_what_is_on_the_default_stream(encore, model, arrangement, graphs):
    application, stream = an_application(), make_stream()
    session = make_session(model, enable_cuda_graph=graphs, **arranged(arrangement, stream))
    x, y = application.tensor(), application.tensor()
    binding = application.bind(session, x, y)
    for byte in (0x3E, 0x3F, 0x40, 0x41):  # with graphs: the first run captures, the others replay
        application.be_busy()
        application.fill(x, byte)
        session.run_with_iobinding(binding)
        assert (application.array(y) == -filled(byte)).all()


@with_application
@pytest.mark.parametrize("graphs", GRAPHS)
def test_switched_off_the_application_waits(encore, model, graphs):
    application = an_application()
    session = make_session(model, enable_cuda_graph=graphs, run_after_default_stream=0)
    x, y = application.tensor(), application.tensor()
    binding = application.bind(session, x, y)
    application.fill(x, 0x3E)
    application.wait()
    session.run_with_iobinding(binding)
    application.be_busy()
    application.fill(x, 0x3F)
    session.run_with_iobinding(binding)
    assert (application.array(y) == -filled(0x3E)).all(), "the run has waited"
    if encore_session.ORT_VERSION >= (1, 26):  # older ones ask no provider to wait
        application.be_busy()
        application.fill(x, 0x40)
        binding.synchronize_inputs()  # which means the application's work, too
        session.run_with_iobinding(binding)
        assert (application.array(y) == -filled(0x40)).all()


@with_application
@pytest.mark.alone  # beside others launches may take longer than the stream is busy
@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("waits", [0, 1])
def test_the_default_stream_goes_on_after_a_run(encore, model, graphs, waits):
    application, stream = an_application(), make_stream()
    handle = stream.get_handle()
    options = {"user_compute_stream": handle, "default_stream_after_run": waits}
    session = make_session(model, enable_cuda_graph=graphs, **options)
    x, y, seen = (application.tensor() for _ in range(3))
    binding = application.bind(session, x, y)
    for byte in (0x3E, 0x3F, 0x40):
        application.fill(x, byte)
        application.fill(y, 0)
        application.wait()
        application.be_busy(handle)
        session.run_with_iobinding(binding, encore_session.run_options(0 if graphs else None, **ASYNC))
        application.copy(seen, y)
        application.wait()
        # The run that captures is repeated by onnxruntime, and replays before 1.28 wait by themselves.
        asynchronous = encore_session.ORT_VERSION >= (1, 28) or not graphs
        if waits or (asynchronous and byte != 0x3E):
            assert (application.array(seen) == (-filled(byte) if waits else 0)).all()
        binding.synchronize_outputs()


@only_if(encore_session.on_virtual_gpu())  # torch copies its tensors itself
def test_copies_come_after_it_too(encore):
    application = an_application()
    x = application.tensor()
    application.be_busy()
    application.fill(x, 0x3F)
    assert (x.numpy() == filled(0x3F)).all()
