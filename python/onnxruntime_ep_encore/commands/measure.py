"""One way of running a model, timed in a process of its own: `encore bench` starts it, and reads what it prints."""

import json
import pickle
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from ..values import DTYPES
from .gpu_memory import used_bytes

NVIDIA = 0x10DE  # onnxruntime tells vendors apart by their PCI ids
# Providers that tell nothing of the device memory that they take.
ON_CUDA = ("CUDAExecutionProvider", "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider")
EAGER = "-1"  # the graph id under which nothing is captured
WARM_UPS, LEAST_RUNS, BURST, PROFILED_RUNS = 5, 10, 20, 20


def main():
    print(json.dumps(measure(json.loads(sys.stdin.read()))))


def measure(spec, used_bytes=used_bytes):
    started = time.perf_counter()
    # This makes the GPU's context, as the session would: its time is the session's, its memory nobody's.
    before = used_bytes() if spec["provider"] in ON_CUDA else None
    with np.load(spec["feeds"]) as file:
        feeds = dict(file)
    session = _session(spec)
    created = time.perf_counter()
    run, results = (_bound if spec["bound"] else _plain)(session, feeds)
    run()
    first = time.perf_counter()
    outputs = results()
    times = _times(run, spec["seconds"])
    told = {
        "creation_ms": (created - started) * 1e3,
        "first_ms": (first - created) * 1e3,
        "median_us": statistics.median(times) * 1e6,
        "p99_us": float(np.percentile(times, 99)) * 1e6,
        "runs": len(times),
        "host_us": _host_us(session, run) if spec["graph"] else None,
        "held_bytes": _growth(before, used_bytes) if spec["provider"] else _held_bytes(session),
        "profile": _profile(session, run) if spec["profile"] else None,
    }
    Path(spec["outputs"]).write_bytes(pickle.dumps(outputs))
    return told


def _session(spec):
    import onnxruntime as ort

    if spec["provider"]:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        session = ort.InferenceSession(spec["model"], options, providers=[spec["provider"]])
        if spec["provider"] not in session.get_providers():
            raise RuntimeError(f"onnxruntime made the session without {spec['provider']}")
        return session
    import onnxruntime_ep_encore as encore

    ort.set_default_logger_severity(3)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return encore.session(spec["model"], session_options=options, **spec["options"])


def _plain(session, feeds):
    kept = []

    def run():
        kept[:] = session.run(None, feeds)

    return run, lambda: list(kept)


def _bound(session, feeds):
    """Inputs and outputs stay on the device; which shapes outputs have tells a run that is not counted as the first."""
    import onnxruntime as ort

    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", EAGER)
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "gpu", 0, NVIDIA))
    outputs = []
    for each, array in zip(session.get_outputs(), session.run(None, feeds, options)):
        if each.type not in DTYPES:
            raise RuntimeError(f"output {each.name} is a {each.type}, which is not bound to a device's memory")
        outputs.append(ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, "gpu", 0, NVIDIA))
        binding.bind_ortvalue_output(each.name, outputs[-1])
    run = lambda options=None: session.run_with_iobinding(binding, options)  # noqa: E731
    run.wait = binding.synchronize_outputs
    return run, lambda: [value.numpy() for value in outputs]


def _times(run, seconds):
    for _ in range(WARM_UPS):
        run()
    times, end = [], time.perf_counter() + seconds
    while len(times) < LEAST_RUNS or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def _host_us(session, run):
    """What a run costs the calling thread that does not wait for it: few at a time, so that the device keeps up."""
    import onnxruntime as ort

    options = ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    times = []
    for _ in range(LEAST_RUNS):
        start = time.perf_counter()
        for _ in range(BURST):
            run(options)
        times.append((time.perf_counter() - start) / BURST)
        run.wait()
    return statistics.median(times) * 1e6


def _profile(session, run):
    """What nodes take in a run, the costliest first."""
    import onnxruntime_ep_encore as encore

    session.set_ep_dynamic_options({"ep.cuda.profile": "start"})  # and graphs are captured for it
    for _ in range(WARM_UPS):
        run()
    with encore.profiled(session) as spans:
        for _ in range(PROFILED_RUNS):
            run()
    calls = {}
    for span in spans:
        calls.setdefault((span["name"], span["op"]), []).append(span)
    nodes = [{"name": name, "op": op, **_per_run(of_node)} for (name, op), of_node in calls.items()]
    return sorted(nodes, key=lambda node: -node["us"])


def _per_run(spans):
    """By the median of the calls, among which are some that something held up."""
    calls = len(spans) / PROFILED_RUNS
    replayed = sum(span["replay"] for span in spans) / PROFILED_RUNS
    return {"us": statistics.median(span["own_us"] for span in spans) * calls, "calls": calls, "replayed": replayed}


def _growth(before, used_bytes):
    return None if before is None else used_bytes() - before


def _held_bytes(session):
    import onnxruntime_ep_encore as encore

    return encore.memory_report(session)["arena"]["held_bytes"]


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # what the one who asked is to read
        sys.exit(f"{type(error).__name__}: {error}")
