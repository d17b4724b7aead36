#!/usr/bin/env python3
"""Input copy, run and output copy on one stream of the application's, many times over, and one wait at the end.

    examples/one_stream.py [--runs 100]

Where a GPU and torch are, the stream is torch's: torch writes the inputs and reads the outputs. Elsewhere it is one
that onnxruntime makes for Encore's device, such as the virtual GPU, and onnxruntime copies. Either way the host only
enqueues: no call in the loop waits for the device, and the model is a captured graph where onnxruntime can (1.28 on).
"""

import argparse

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_ep_encore as encore
from onnx import helper, numpy_helper

ROWS, WIDTH = 16, 64
DONT_WAIT = ort.RunOptions()
DONT_WAIT.add_run_config_entry("disable_synchronize_execution_providers", "1")


def make_model(w):
    """y = relu(x @ w)."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "matmul"), helper.make_node("Relu", ["a"], ["y"], "relu")]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [ROWS, WIDTH]) for name in "xy"]
    graph = helper.make_graph(nodes, "example", ends[:1], ends[1:], [numpy_helper.from_array(w, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def make_session(model, stream_address):
    return encore.session(
        model.SerializeToString(), user_compute_stream=stream_address, enable_cuda_graph=True, use_tf32=False
    )


def with_torch(model, inputs):
    import torch

    stream = torch.cuda.Stream()
    session = make_session(model, stream.cuda_stream)
    with torch.cuda.stream(stream):
        x, y = (torch.zeros(ROWS, WIDTH, device="cuda") for _ in "xy")
        sources = [torch.from_numpy(each).pin_memory() for each in inputs]
        outputs = torch.empty(len(inputs), ROWS, WIDTH, pin_memory=True)
        binding = session.io_binding()
        for bind, name, tensor in ((binding.bind_input, "x", x), (binding.bind_output, "y", y)):
            bind(name, "cuda", 0, np.float32, tuple(tensor.shape), tensor.data_ptr())
        session.run_with_iobinding(binding)  # warms up and captures
        for source, output in zip(sources, outputs):
            x.copy_(source, non_blocking=True)
            session.run_with_iobinding(binding, DONT_WAIT)
            output.copy_(y, non_blocking=True)
    stream.synchronize()
    return outputs.numpy()


def with_onnxruntime_alone(model, inputs):
    stream = encore.devices()[0].create_sync_stream()
    session = make_session(model, stream.get_handle())
    on_device = lambda array: ort.OrtValue.ortvalue_from_numpy(array, "gpu", 0, 0x10DE)
    x, y = (on_device(np.zeros((ROWS, WIDTH), np.float32)) for _ in "xy")
    sources = [on_device(each) for each in inputs]
    kept = [on_device(np.zeros_like(each)) for each in inputs]
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", y)
    session.run_with_iobinding(binding)  # warms up and captures
    for source, output in zip(sources, kept):
        ort.copy_tensors([source], [x], stream)
        session.run_with_iobinding(binding, DONT_WAIT)
        ort.copy_tensors([y], [output], stream)
    outputs = [ort.OrtValue.ortvalue_from_numpy(np.zeros_like(each)) for each in inputs]
    ort.copy_tensors(kept, outputs, stream)  # into pageable memory: this one waits
    return [output.numpy().copy() for output in outputs]


def has_torch_with_cuda():
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    runs = parser.parse_args().runs

    rng = np.random.default_rng(0)
    w = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    inputs = [rng.standard_normal((ROWS, WIDTH)).astype(np.float32) for _ in range(runs)]
    device = encore.devices(encore.register())[0]
    virtual = device.ep_metadata["cuda_device_name"].startswith("Encore virtual GPU")
    way = with_torch if has_torch_with_cuda() and not virtual else with_onnxruntime_alone
    outputs = way(make_model(w), inputs)
    for x, y in zip(inputs, outputs):
        np.testing.assert_allclose(y, np.maximum(x @ w, 0), rtol=1e-3, atol=1e-3)
    print(f"{runs} runs on {device.ep_metadata['cuda_device_name']}, {way.__name__.replace('_', ' ')}: all right")


if __name__ == "__main__":
    main()
