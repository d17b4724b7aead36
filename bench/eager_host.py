#!/usr/bin/env python3
"""Times what an eager run by regions costs the host, action by action, beside what its launches alone cost.

    bench/eager_host.py [--models bert_base_f16,chain_f32] [--batch 1] [--repeats 30] [--options enable_cudnn=1]
                        [--launch-us US] [--json FILE]

Medians in microseconds of the calling thread, of runs that are bound and not waited for (auto_graph=0):
  nodes     what a run launches, as a graph of it has them: kernels, copies and fills
  run       a run
  launch    launching a small kernel, and nothing around (launches_bench, or --launch-us)
  around    a run that launches one kernel, without it: onnxruntime's part, and Encore's for each run
  own       of each node, without its launch: (run - around) / nodes - launch
Where launches_bench is not beside the library, `./encore build PRESET --target launches_bench` makes it. On the virtual
GPU the figures mean nothing: its device works on the processor, too.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

import models  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime_ep_encore  # noqa: E402
from models import es  # noqa: E402  (which have named the provider)
from onnx import TensorProto, helper  # noqa: E402

import automatic  # noqa: E402

RUNS = 4  # one after the other, so that the device's queue never fills


def one_kernel():
    node = helper.make_node("Softmax", ["x"], ["y"])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 256]) for name in "xy"]
    graph = helper.make_graph([node], "one", ends[:1], ends[1:])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def make(name, batch):
    if name == "one":
        return one_kernel().SerializeToString(), {"x": np.ones([8, 256], np.float32)}
    return automatic.make(name, batch)


def nodes_of(model, feeds, options):
    """Of the graphs that automatic runs have, which copy nothing where all tensors stay."""
    session = es.make_session(model, auto_graph=1, regions="all", **options)
    binding, _keep = models.bind(session, feeds)
    for _ in range(3):
        session.run_with_iobinding(binding)
    regions = onnxruntime_ep_encore.region_report(session)
    assert all(region["graphs"] for region in regions), regions
    return sum(shapes["graph_nodes"] for region in regions for shapes in region["shapes"])


def run_us(model, feeds, options, repeats):
    session = es.make_session(model, auto_graph=0, regions="all", **options)
    binding, _keep = models.bind(session, feeds)
    told, times = es.run_options(0, disable_synchronize_execution_providers=1), []
    for _ in range(repeats + 3):
        start = time.perf_counter()
        for _ in range(RUNS):
            session.run_with_iobinding(binding, told)
        times.append((time.perf_counter() - start) / RUNS)
        binding.synchronize_outputs()
    return statistics.median(times[3:]) * 1e6


def launch_us():
    program = Path(onnxruntime_ep_encore.get_library_path()).parent / "launches_bench"
    if not program.exists():
        sys.exit(f"{program} is not there; ./encore build PRESET --target launches_bench makes it, or give --launch-us")
    return float(subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(models.DEFAULT))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--options", default="")
    parser.add_argument("--launch-us", type=float)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    options = dict(option.split("=") for option in arguments.options.split(",") if option)
    launch = arguments.launch_us or launch_us()
    around = run_us(*make("one", 1), options, arguments.repeats) - launch
    rows = {}
    print(f"{'model':<22}" + "".join(f"{head:>10}" for head in ("nodes", "run", "launch", "around", "own")))
    for name in arguments.models.split(","):
        model, feeds = make(name, arguments.batch)
        nodes, run = nodes_of(model, feeds, options), run_us(model, feeds, options, arguments.repeats)
        rows[name] = dict(nodes=nodes, run=run, launch=launch, around=around, own=(run - around) / nodes - launch)
        print(
            f"{name:<22}{nodes:>10}" + "".join(f"{rows[name][key]:>10.2f}" for key in list(rows[name])[1:]), flush=True
        )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
