"""Times whole models on Encore, eagerly and replayed from a captured graph, beside torch where it is installed.

    ./encore bench [--models resnet50_f16,chain_f32] [--batch 1] [--seconds 1] [--peer torch] [--json FILE]
                     [--options prefer_nhwc=1,enable_cudnn=1]

Inputs and outputs stay in device memory. Figures are medians in microseconds:
  eager    a run without a graph, the wait for its end included
  replay   a replayed run, the wait included
  host     what an asynchronous replay costs the calling thread (disable_synchronize_execution_providers=1)
  torch    a replayed CUDA graph of the same architecture in eager torch, the wait included
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models")]

# The name under which onnxruntime applies its own fusions for CUDA; ENCORE_EP_NAME asks for another.
os.environ.setdefault("ENCORE_EP_NAME", "CUDAExecutionProvider")

import encore_session as es  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
import zoo  # noqa: E402

DEFAULT = [
    "resnet50_f32",
    "resnet50_f16",
    "mobilenet_v3_f16",
    "vit_b16_f16",
    "bert_base_f32",
    "bert_base_f16",
    "chain_f32",
]
NUMPY = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64, "tensor(bool)": bool}


def median_us(run, seconds, warm=5):
    for _ in range(warm):
        run()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def make(name, batch):
    """The model's bytes or path, and feeds."""
    if name == "chain_f32":
        return zoo.chain(batch=8), {"x": np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)}
    return zoo.load(name, batch=batch), zoo.inputs(name, batch=batch)


def bind(session, feeds):
    binding, keep = session.io_binding(), []
    for item in session.get_inputs():
        keep.append(es.on_device(feeds[item.name]))
        binding.bind_ortvalue_input(item.name, keep[-1])
    for item in session.get_outputs():
        keep.append(es.empty_on_device(item.shape, NUMPY[item.type]))
        binding.bind_ortvalue_output(item.name, keep[-1])
    return binding, keep


def encore_figures(name, batch, seconds, options):
    model, feeds = make(name, batch)
    start = time.perf_counter()
    session = es.make_session(model, **{"enable_cuda_graph": 1, "use_tf32": 1, **options})
    created = time.perf_counter() - start
    binding, keep = bind(session, feeds)
    placed = es.nodes_on(session)
    eager, waits = es.run_options(es.EAGER), es.run_options(0)
    asynchronous = es.run_options(0, disable_synchronize_execution_providers=1)
    out = {
        "model": name,
        "batch": batch,
        "nodes": len(placed.get(es.EP_NAME, [])),
        "on_cpu": sum(len(v) for k, v in placed.items() if k != es.EP_NAME),
    }
    out["create_ms"] = created * 1e3
    out["eager_us"] = median_us(lambda: session.run_with_iobinding(binding, eager), seconds)
    session.run_with_iobinding(binding, waits)  # captures
    out["replay_us"] = median_us(lambda: session.run_with_iobinding(binding, waits), seconds)

    def burst():  # a few launches without waiting, so that the device's queue never fills
        for _ in range(20):
            session.run_with_iobinding(binding, asynchronous)

    times = []
    for _ in range(10):
        start = time.perf_counter()
        burst()
        times.append((time.perf_counter() - start) / 20)
        binding.synchronize_outputs()
    out["host_us"] = statistics.median(times) * 1e6
    out["eager_host_us"] = None
    eager_async = es.run_options(es.EAGER, disable_synchronize_execution_providers=1)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        session.run_with_iobinding(binding, eager_async)
        times.append(time.perf_counter() - start)
        binding.synchronize_outputs()
    out["eager_host_us"] = statistics.median(times) * 1e6
    return out


def torch_replay(call):
    """A replay of torch's own CUDA graph of the call, the wait included."""
    import torch

    with torch.inference_mode():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()

    def run():
        graph.replay()
        torch.cuda.synchronize()

    return run


def torch_replay_us(call, seconds):
    return median_us(torch_replay(call), seconds)


def torch_module(name, batch):
    """The same architecture in torch, on the CPU, and its inputs; None where torch has none of it."""
    import torch

    dtype = torch.float16 if name.endswith("f16") else torch.float32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    if name.startswith("bert"):
        import transformers

        module = transformers.BertModel(transformers.BertConfig())
        inputs = (torch.randint(0, 1000, (batch, 128)), torch.ones(batch, 128, dtype=torch.int64))
    elif name.startswith(("resnet50", "mobilenet_v3", "vit_b16")):
        import torchvision

        builders = {"resnet50": "resnet50", "mobilenet_v3": "mobilenet_v3_large", "vit_b16": "vit_b_16"}
        module = getattr(torchvision.models, builders[name.rsplit("_", 1)[0]])(weights=None)
        inputs = (torch.randn(batch, 3, 224, 224, dtype=dtype),)
    elif name in ("chain_f32", "small_20"):
        module, inputs = torch_chain(100 if name == "chain_f32" else 7), (torch.randn(8, 256, dtype=dtype),)
    else:
        return None
    return module.to(dtype).eval(), inputs


def torch_chain(rounds):
    """What zoo.chain does."""
    import torch

    class Chain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scales = torch.nn.Parameter(torch.rand(rounds, 256))

        def forward(self, x):
            last = x
            for scale in self.scales:
                last = torch.tanh(last * scale + x)
            return last

    return Chain()


def torch_figure(name, batch, seconds):
    """A CUDA graph of the same architecture in eager torch; None where torch has none of it."""
    built = torch_module(name, batch)
    if built is None:
        return None
    module, inputs = built[0].cuda(), [x.cuda() for x in built[1]]
    return torch_replay_us(lambda: module(*inputs), seconds)


def add_arguments(parser):
    """What benchmarks of models are told."""
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--peer", choices=["torch"])
    parser.add_argument("--options", default="", help="of the provider: key=value,...")
    parser.add_argument("--json", type=Path)


def provider_options(args):
    return dict(pair.split("=", 1) for pair in args.options.split(",") if pair)


def figures_of_process(program, *arguments, env=None):
    """What the program prints of itself as `figures: JSON`, in a process of its own, and its stderr."""
    done = subprocess.run(
        [sys.executable, program, "--measure", *map(str, arguments)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    figures = [line.removeprefix("figures: ") for line in lines if line.startswith("figures: ")]
    if done.returncode != 0 or not figures:
        sys.exit(f"{' '.join(map(str, arguments))}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return json.loads(figures[0]), done.stderr


def print_table(header, rows, file):
    """Prints rows as they come, and writes them to the file, if any, when all are there."""
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header), flush=True)
    done = []
    for row in rows:
        done.append(row)
        cells = [
            f"{row[k]:.1f}" if isinstance(row[k], float) else str(row[k] if row[k] is not None else "") for k in header
        ]
        print("| " + " | ".join(cells) + " |", flush=True)
    if file:
        file.write_text(json.dumps(done, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(DEFAULT))
    add_arguments(parser)
    args = parser.parse_args()
    options = provider_options(args)
    ort.set_default_logger_severity(3)
    header = [
        "model",
        "batch",
        "nodes",
        "on_cpu",
        "create_ms",
        "eager_us",
        "eager_host_us",
        "replay_us",
        "host_us",
        "torch_us",
    ]

    def rows():
        for name in args.models.split(","):
            row = encore_figures(name, args.batch, args.seconds, options)
            row["torch_us"] = torch_figure(name, args.batch, args.seconds) if args.peer else None
            yield row

    print_table(header, rows(), args.json)


if __name__ == "__main__":
    main()
