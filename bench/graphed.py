#!/usr/bin/env python3
"""Times what a call of encore.graphed costs the host beside onnxruntime's own calls, in turns, of one small kernel.

    PYTHONPATH=python bench/graphed.py [--rounds 100]

Medians of the calling thread's own time, which is what the processor does for the call; the virtual GPU computes in
another thread. And of the time that passes, which other work on the machine makes longer.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import encore_session as es  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
import onnxruntime_ep_encore as encore  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

CALLS = 50  # in a row, each round
SHAPE = (2, 4)


class Tensor:
    """Another library's, as far as DLPack knows."""

    def __init__(self, value):
        self.value = value._ortvalue

    def __dlpack_device__(self):
        return self.value.__dlpack_device__()

    def __dlpack__(self, *, stream=None):
        return self.value.__dlpack__(stream=stream)


def from_dlpack(exporter):
    return exporter.__dlpack__(stream=1)


def make_model():
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", SHAPE[1]]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"], "negate")], "one", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10).SerializeToString()


def ways():
    run = encore.graphed(make_model(), ort=ort)
    session, array = run.session, np.ones(SHAPE, np.float32)
    x, y = es.on_device(array), es.empty_on_device(SHAPE)
    tensor = Tensor(x)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", y)
    return {
        "run_with_iobinding, all bound": lambda: session.run_with_iobinding(binding),
        "run_with_iobinding, a new binding": lambda: binding_of(session, x),
        "run(OrtValue)": lambda: run(x),
        "run(tensor)": lambda: run(tensor),
        "session.run(array)": lambda: session.run(None, {"x": array}),
        "run(array)": lambda: run(array),
        "run.submit(OrtValue).result()": lambda: run.submit(x).result(),
        "run.submit(array).result()": lambda: run.submit(array).result(),
    }


def binding_of(session, x):
    binding = es.bind_unallocated(session, x)
    session.run_with_iobinding(binding)
    return binding.get_outputs()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    calls = ways()
    took = {name: [] for name in calls}
    for turn in range(rounds + 5):
        for name, call in calls.items():
            before = time.thread_time(), time.perf_counter()
            for _ in range(CALLS):
                call()
            if turn >= 5:
                took[name].append((time.thread_time() - before[0], time.perf_counter() - before[1]))
    print(f"onnxruntime {ort.__version__}\n\n| call | own µs | passed µs |\n|---|---|---|")
    for name, times in took.items():
        own, passed = (statistics.median(each) / CALLS * 1e6 for each in zip(*times))
        print(f"| {name} | {own:.1f} | {passed:.1f} |")


if __name__ == "__main__":
    main()
