"""A torch stream given to Encore: torch writes the input and reads the output on it, and nobody waits between."""

import importlib.util

import encore_session
import numpy as np
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
RUNS, ROWS, WIDTH = 1000, 64, 256


@with_torch
@pytest.mark.parametrize("graphs", [0, 1] if encore_session.HAS_GRAPHS else [0])
@pytest.mark.parametrize("options", [{}, {"do_copy_in_default_stream": 0}], ids=["", "copies_apart"])
def test_torch_writes_and_reads_on_the_stream_of_the_session(encore, make_model, graphs, options):
    import torch

    w = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 16
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "mm"), helper.make_node("Tanh", ["a"], ["y"], "tanh")]
    shapes = {"x": [ROWS, WIDTH]}, {"y": [ROWS, WIDTH]}
    model = make_model(nodes, *shapes, [numpy_helper.from_array(w, "w")])
    stream = torch.cuda.Stream()
    session = make_session(model, user_compute_stream=stream.cuda_stream, enable_cuda_graph=graphs, **options)
    dont_wait = encore_session.run_options(disable_synchronize_execution_providers=1)
    weights = torch.from_numpy(w).cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        x, y = (torch.zeros(ROWS, WIDTH, device="cuda") for _ in "xy")
        binding = session.io_binding()
        for bind, name, tensor in ((binding.bind_input, "x", x), (binding.bind_output, "y", y)):
            bind(name, "cuda", 0, np.float32, tuple(tensor.shape), tensor.data_ptr())
        session.run_with_iobinding(binding)
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        for seed in range(RUNS):
            x.fill_(seed / RUNS).add_(torch.randn_like(x))
            session.run_with_iobinding(binding, dont_wait)
            wrong += (y - torch.tanh(x @ weights)).abs().max() > 1e-3
            y.fill_(float("nan"))  # whoever reads too late, or a run that came too early, is seen
    stream.synchronize()
    assert wrong.item() == 0
