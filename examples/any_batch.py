#!/usr/bin/env python3
"""Batches of any size, as requests come: `pad` makes a few sizes of them, and each of those has a CUDA graph.

python examples/make_model.py && python examples/any_batch.py

Without `pad` each size would have a graph of its own, which is right where there are few. The model is not told of
it: batches are made longer on the device, and results are cut to what went in.
"""

import numpy as np
import onnxruntime_ep_encore as encore

SIZES = [1, 4, 16, 64]  # "batch" is what the model calls the dimension

session = encore.session("model.onnx", auto_graph=True, pad={"batch": SIZES})
rng = np.random.default_rng(0)
for batch in rng.integers(1, SIZES[-1], 200, endpoint=True):
    x = rng.random((batch, 64), np.float32)
    (y,) = session.run(None, {"x": x})
    assert y.shape == (batch, 10)

for region in encore.region_report(session):  # what became of the model: here, one region
    print(
        f"{region['region']}: {region['graphs']} graphs for batches of {SIZES}, {region['padded']} runs padded, "
        f"{region['first_runs']} first runs, {region['replays']} replays"
    )
