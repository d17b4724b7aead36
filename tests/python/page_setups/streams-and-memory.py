import sys

import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore as encore
import torch_stand_in

sys.modules["torch"] = torch = torch_stand_in
session = encore.session("model.onnx")
x, y, image = torch.zeros(1, 3, device="cuda"), torch.zeros(1, 2, device="cuda"), torch.zeros(1, 3, device="cuda")
binding = session.io_binding()
binding.bind_ortvalue_input("x", ort.OrtValue.from_dlpack(x))
binding.bind_ortvalue_output("y", ort.OrtValue.from_dlpack(y))
session.run(None, {"x": np.zeros([1, 3], np.float32)})
