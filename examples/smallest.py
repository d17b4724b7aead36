#!/usr/bin/env python3
"""The smallest one: numpy arrays in, numpy arrays out. What runs again is replayed from a CUDA graph by itself.

python examples/make_model.py && python examples/smallest.py
"""

import numpy as np
import onnxruntime_ep_encore as encore

session = encore.session("model.onnx")
for _ in range(3):  # the first run is eager, the second captures, the third replays
    x = np.random.rand(1, 64).astype(np.float32)
    (y,) = session.run(None, {"x": x})
    print(f"class {y.argmax()}, {y.max():.0%} sure")
