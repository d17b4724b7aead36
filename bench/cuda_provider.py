"""Times the models of bench/automatic.py under onnxruntime-gpu's own CUDA provider, in a process of its own.

    PYTHONPATH=/where/onnxruntime-gpu/is LD_LIBRARY_PATH=/where/cudnn/and/cublas/are bench/cuda_provider.py

Medians in microseconds, the wait included: bound and replayed under enable_cuda_graph, bound and eager, and eager as
run(None, feeds). In milliseconds: create, making a session, and first, its first run.
"""

import argparse
import time

import models
import numpy as np
import onnxruntime as ort

import automatic


def make_session(model, **options):
    told = {"use_tf32": "1", **{key: str(value) for key, value in options.items()}}
    session = ort.InferenceSession(model, providers=[("CUDAExecutionProvider", told)])
    assert session.get_providers()[0] == "CUDAExecutionProvider", "onnxruntime-gpu has no CUDA provider here"
    return session


def bound_us(model, feeds, seconds, **options):
    session = make_session(model, **options)
    binding, keep = session.io_binding(), []
    for name, value in feeds.items():
        keep.append(ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value), "cuda", 0))
        binding.bind_ortvalue_input(name, keep[-1])
    for item in session.get_outputs():
        keep.append(ort.OrtValue.ortvalue_from_shape_and_type(item.shape, models.NUMPY[item.type], "cuda", 0))
        binding.bind_ortvalue_output(item.name, keep[-1])
    told = ort.RunOptions()
    told.add_run_config_entry(
        "gpu_graph_id", "0"
    )  # else each run looks for it, and an exception says that it is not there
    return models.median_us(lambda: session.run_with_iobinding(binding, told), seconds)


def row(name, batch, seconds):
    model, feeds = automatic.make(name, batch)
    start = time.perf_counter()
    session = make_session(model)
    created = time.perf_counter()
    session.run(None, feeds)
    first = time.perf_counter()
    return {
        "model": name,
        "replay": bound_us(model, feeds, seconds, enable_cuda_graph=1),
        "bound": bound_us(model, feeds, seconds),
        "numpy": models.median_us(lambda: session.run(None, feeds), seconds),
        "create": (created - start) * 1e3,
        "first": (first - created) * 1e3,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(automatic.DEFAULT))
    models.add_arguments(parser)
    args = parser.parse_args()
    ort.set_default_logger_severity(3)
    rows = (row(name, args.batch, args.seconds) for name in args.models.split(","))
    models.print_table(["model", "replay", "bound", "numpy", "create", "first"], rows, args.json)


if __name__ == "__main__":
    main()
