#!/usr/bin/env python3
"""The least work for the CPU: everything stays bound in device memory, and each shape has a graph of its own.

python examples/make_model.py && python examples/graph_ids.py

A captured graph reads and writes the buffers that it was captured with. So each `gpu_graph_id` has a binding that is
kept, and new inputs are written into the buffer that is bound. Needs onnxruntime 1.26 or newer.
"""

import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore as encore

GRAPH_OF = {1: 0, 8: 1, 32: 2}  # a batch, and the id of its graph


class Slot:
    """The buffers of a batch, bound, and the run options that name its graph."""

    def __init__(self, session, batch, graph_id):
        self.session = session
        self.x = ort.OrtValue.ortvalue_from_shape_and_type([batch, 64], np.float32, "cuda", 0)
        self.y = ort.OrtValue.ortvalue_from_shape_and_type([batch, 10], np.float32, "cuda", 0)
        self.binding = session.io_binding()
        self.binding.bind_ortvalue_input("x", self.x)
        self.binding.bind_ortvalue_output("y", self.y)
        self.options = ort.RunOptions()
        self.options.add_run_config_entry("gpu_graph_id", str(graph_id))

    def run(self, x):
        self.x.update_inplace(x)
        self.session.run_with_iobinding(self.binding, self.options)  # captures at first, then replays
        return self.y.numpy()


session = encore.session("model.onnx", enable_cuda_graph=True)
slots = {batch: Slot(session, batch, graph_id) for batch, graph_id in GRAPH_OF.items()}
for _ in range(100):
    for batch, slot in slots.items():
        y = slot.run(np.random.rand(batch, 64).astype(np.float32))
        np.testing.assert_allclose(y.sum(axis=1), 1, rtol=1e-3)

for graph in encore.graph_report(session):
    print(f"graph {graph['id']}: {graph['state']}, {graph['nodes']} nodes, {graph['replays']} replays")
