"""A torch stream given to Encore: torch writes the input and reads the output on it, and nobody waits between."""

import importlib.util

import encore_session
import numpy as np
import onnxruntime_ep_encore
import pytest
from encore_session import make_session, only_if
from onnx import helper, numpy_helper

pytestmark = pytest.mark.core


def has_torch_with_cuda():
    if encore_session.on_virtual_gpu() or not importlib.util.find_spec("torch"):
        return False
    import torch

    return torch.cuda.is_available()


# Before onnxruntime 1.30 its Python binds no address in the memory of a plugin under the name "cuda".
with_torch = only_if(encore_session.ORT_VERSION >= (1, 30) and has_torch_with_cuda())
RUNS = 1000


def layer_of(op, make_model):
    """y = tanh(op(x, w)) as a model and as a function of torch's, and the shape of x and y."""
    import torch

    w = np.random.default_rng(0).standard_normal((256, 256) if op == "MatMul" else (32, 32, 3, 3)).astype(np.float32)
    w /= np.sqrt(w[0].size)
    shape = [64, 256] if op == "MatMul" else [4, 32, 16, 16]
    pads = {} if op == "MatMul" else {"pads": [1, 1, 1, 1]}
    nodes = [helper.make_node(op, ["x", "w"], ["a"], op, **pads), helper.make_node("Tanh", ["a"], ["y"], "tanh")]
    model = make_model(nodes, {"x": shape}, {"y": shape}, [numpy_helper.from_array(w, "w")])
    weights = torch.from_numpy(w).cuda()
    compute = torch.matmul if op == "MatMul" else lambda x, w: torch.nn.functional.conv2d(x, w, padding=1)
    return model, lambda x: torch.tanh(compute(x, weights)), shape


def bound(session, **tensors):
    binding = session.io_binding()
    for name, tensor in tensors.items():
        bind = binding.bind_input if name == "x" else binding.bind_output
        bind(name, "cuda", 0, np.float32, tuple(tensor.shape), tensor.data_ptr())
    return binding


@with_torch
@pytest.mark.parametrize("graphs", [0, 1] if encore_session.HAS_GRAPHS else [0])
@pytest.mark.parametrize("options", [{}, {"do_copy_in_default_stream": 0}], ids=["", "copies_apart"])
@pytest.mark.parametrize("op", ["MatMul", "Conv"])
def test_torch_writes_and_reads_on_the_stream_of_the_session(encore, make_model, graphs, options, op):
    import torch

    torch.backends.cudnn.allow_tf32 = False
    model, expected, shape = layer_of(op, make_model)
    stream = torch.cuda.Stream()
    session = make_session(model, user_compute_stream=stream.cuda_stream, enable_cuda_graph=graphs, **options)
    dont_wait = encore_session.run_options(disable_synchronize_execution_providers=1)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        x, y = (torch.zeros(shape, device="cuda") for _ in "xy")
        binding = bound(session, x=x, y=y)
        session.run_with_iobinding(binding)
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        for seed in range(RUNS):
            x.fill_(seed / RUNS).add_(torch.randn_like(x))
            session.run_with_iobinding(binding, dont_wait)
            wrong += (y - expected(x)).abs().max() > 1e-3
            y.fill_(float("nan"))  # whoever reads too late, or a run that came too early, is seen
    stream.synchronize()
    assert wrong.item() == 0


@with_torch
@pytest.mark.parametrize("graphs", [0, 1] if encore_session.HAS_GRAPHS else [0])
def test_nobody_waits_for_a_busy_device(encore, make_model, graphs):
    import torch

    model, expected, shape = layer_of("Conv", make_model)
    stream = torch.cuda.Stream()
    session = make_session(model, user_compute_stream=stream.cuda_stream, enable_cuda_graph=graphs)
    dont_wait = encore_session.run_options(disable_synchronize_execution_providers=1)
    with torch.cuda.stream(stream):
        x, y = torch.randn(shape, device="cuda"), torch.zeros(shape, device="cuda")
        binding = bound(session, x=x, y=y)
        session.run_with_iobinding(binding)
        y.zero_()
        torch.cuda._sleep(1_000_000_000)  # cycles: about half a second
        for _ in range(20):
            session.run_with_iobinding(binding, dont_wait)
        assert not stream.query()
    stream.synchronize()
    assert (y - expected(x)).abs().max() < 1e-3


@with_torch
@pytest.mark.parametrize("side", [False, True])
def test_graphed_keeps_to_torchs_current_stream(encore, make_model, side):
    import torch

    model, expected, shape = layer_of("MatMul", make_model)
    run = onnxruntime_ep_encore.graphed(make_session(model))
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    with torch.cuda.stream(stream), torch.no_grad():
        x = torch.zeros(shape, device="cuda")
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        for seed in range(RUNS):
            x.fill_(seed / RUNS).add_(torch.randn_like(x))
            wanted = expected(x)
            future = run.submit(x)
            x.fill_(float("nan"))
            wrong += (future.outputs - wanted).abs().max() > 1e-3
            if seed % 10 == 0:
                assert future.result().is_cuda and run(torch.ones(shape, device="cuda")).shape == torch.Size(shape)
        assert run(torch.zeros(shape)).device.type == "cpu"
        with pytest.raises(TypeError, match="input 'x' can't be taken: .*gradient"):
            with torch.enable_grad():
                run(torch.zeros(shape, device="cuda", requires_grad=True))
    stream.synchronize()
    assert wrong.item() == 0
