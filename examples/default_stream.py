#!/usr/bin/env python3
"""torch before and after a model, on torch's default stream: nothing leaves the GPU, and the host never waits.

python examples/make_model.py && python examples/default_stream.py

Each run comes on the device after what torch has enqueued, and with `default_stream_after_run` torch's next work comes
after the run. Needs torch with CUDA, and onnxruntime 1.30 or newer to bind its memory.
"""

import sys

import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore as encore

try:
    import torch
except ImportError:
    sys.exit("default_stream.py needs torch with CUDA: pip install torch. Without it, see graph_ids.py.")
if not torch.cuda.is_available():
    sys.exit("default_stream.py needs a GPU that torch can use. Without one, see graph_ids.py.")

session = encore.session("model.onnx", enable_cuda_graph=True, default_stream_after_run=True)
x = torch.zeros(16, 64, device="cuda")
y = torch.zeros(16, 10, device="cuda")
binding = session.io_binding()
binding.bind_input("x", "cuda", 0, np.float32, tuple(x.shape), x.data_ptr())
binding.bind_output("y", "cuda", 0, np.float32, tuple(y.shape), y.data_ptr())
session.run_with_iobinding(binding)  # warms up, and captures

dont_wait = ort.RunOptions()
dont_wait.add_run_config_entry("disable_synchronize_execution_providers", "1")
total = torch.zeros(10, device="cuda")
for _ in range(100):
    x.normal_()  # torch
    session.run_with_iobinding(binding, dont_wait)  # a replay
    total += y.mean(0)  # torch again
print("mean probabilities:", (total / 100).cpu().numpy().round(3))  # the copy waits, once
