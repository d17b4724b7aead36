#!/usr/bin/env python3
"""Times Encore, onnxruntime-gpu and torch on the same models, taking turns on one machine.

    bench/peers.py --onnxruntime-gpu FOLDER [--models bert_base_f16:16,chain_f32,FILE.onnx] [--peers encore,graph]
                   [--figures replay] [--rounds 3] [--seconds 0.5] [--json FILE]

FOLDER is where onnxruntime-gpu was unpacked. Behind a model's name may be a batch size; a file gets random feeds, and
has no torch. Peers are
  encore           this library, under the onnxruntime of PYTHONPATH
  onnxruntime-gpu  its own CUDA provider, enable_cuda_graph for replays
  graph            torch's eager modules in a torch.cuda.CUDAGraph
  compile          torch.compile(mode="reduce-overhead")
Each round runs each peer in a process of its own; figures are medians of the rounds but the first, which reads files,
unless it is the only one (--rounds 0). Replays wait until nothing is compiled beside them.
  result   ms: making the session, or moving the module to the device, and the first result after that
  capture  ms: until the first replay is done, the result included
  replay   µs: bound to device memory, the wait included
  numpy    µs: from arrays to arrays, run(None, feeds); of torch's module, compiled or eager, likewise
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

import models  # noqa: E402

FIGURES = ["result", "capture", "replay", "numpy"]


class Clock:
    """Milliseconds since it was made."""

    def __init__(self):
        self.start = time.perf_counter()

    def __call__(self):
        return (time.perf_counter() - self.start) * 1e3


def settle():
    """Until the process is idle: what Encore compiles beside a replay is there then."""
    busy = True
    while busy:
        before = time.process_time()
        time.sleep(0.3)
        busy = time.process_time() - before > 0.1


def of_sessions(make_session, on_device, empty_on_device, model, feeds, seconds, figures):
    """The figures of an onnxruntime's provider."""
    import onnxruntime as ort

    eager, told = ort.RunOptions(), ort.RunOptions()
    eager.add_run_config_entry("gpu_graph_id", "-1")
    told.add_run_config_entry("gpu_graph_id", "0")
    tensors = {name: on_device(value) for name, value in feeds.items()}
    now = Clock()
    session = make_session(model, enable_cuda_graph=1)
    binding = session.io_binding()
    for name, tensor in tensors.items():
        binding.bind_ortvalue_input(name, tensor)
    for item in session.get_outputs():
        tensors[item.name] = empty_on_device(item.shape, models.NUMPY[item.type])
        binding.bind_ortvalue_output(item.name, tensors[item.name])
    session.run_with_iobinding(binding, eager)
    out = {"result": now()}
    for _ in range(2):  # the first of which captures
        session.run_with_iobinding(binding, told)
    out["capture"] = now()
    settle()
    out["replay"] = models.median_us(lambda: session.run_with_iobinding(binding, told), seconds)
    if "numpy" in figures:
        plain = make_session(model)
        out["numpy"] = models.median_us(lambda: plain.run(None, feeds), seconds, warm=20)
    return out


def of_encore(name, model, feeds, seconds, figures):
    from models import es

    es.registered()
    make_session = lambda model, **options: es.make_session(model, use_tf32=1, **options)
    return of_sessions(make_session, es.on_device, es.empty_on_device, model, feeds, seconds, figures)


def of_onnxruntime_gpu(name, model, feeds, seconds, figures):
    import onnxruntime as ort

    def make_session(model, **options):
        told = {"use_tf32": "1", **{key: str(value) for key, value in options.items()}}
        session = ort.InferenceSession(model, providers=[("CUDAExecutionProvider", told)])
        assert session.get_providers()[0] == "CUDAExecutionProvider", "onnxruntime-gpu has no CUDA provider here"
        return session

    on_device = lambda value: ort.OrtValue.ortvalue_from_numpy(value, "cuda", 0)
    empty = lambda shape, dtype: ort.OrtValue.ortvalue_from_shape_and_type(shape, dtype, "cuda", 0)
    return of_sessions(make_session, on_device, empty, model, feeds, seconds, figures)


def tensors_of(outputs):
    return [outputs] if hasattr(outputs, "numpy") else list(outputs.values() if hasattr(outputs, "values") else outputs)


def of_torch(name, seconds, figures, compiled):
    import torch

    built = None if name.endswith(".onnx") else models.torch_module(*named(name))
    if built is None:
        return {}
    module, inputs = built
    torch.cuda.synchronize()
    now = Clock()
    with torch.inference_mode():
        module = module.cuda()
        call = torch.compile(module, mode="reduce-overhead") if compiled else module
        arrays = [x.numpy() for x in inputs]

        def of_arrays():
            outputs = call(*(torch.from_numpy(x).cuda() for x in arrays))
            return [y.cpu().numpy() for y in tensors_of(outputs)]

        of_arrays()
        out, bound = {"result": now()}, [x.cuda() for x in inputs]
        if compiled:

            def replay():
                call(*bound)
                torch.cuda.synchronize()

            for _ in range(3):  # until it has recorded
                replay()
        else:
            replay = models.torch_replay(lambda: call(*bound))
            replay()
        out["capture"] = now()
        out["replay"] = models.median_us(replay, seconds, warm=50)
        if "numpy" in figures:
            out["numpy"] = models.median_us(of_arrays, seconds, warm=50)
    return out


PEERS = {
    "encore": of_encore,
    "onnxruntime-gpu": of_onnxruntime_gpu,
    "graph": lambda name, model, feeds, seconds, figures: of_torch(name, seconds, figures, False),
    "compile": lambda name, model, feeds, seconds, figures: of_torch(name, seconds, figures, True),
}


def measure(peer, name, model, feeds_file, seconds, figures):
    """In a process of its own: the figures as JSON."""
    import numpy as np
    import onnxruntime as ort

    ort.set_default_logger_severity(3)
    feeds = dict(np.load(feeds_file))
    print("figures: " + json.dumps(PEERS[peer](name, model, feeds, seconds, figures)))


def asked(peer, name, model, feeds_file, args):
    environment = dict(os.environ)
    if peer == "onnxruntime-gpu":
        environment["PYTHONPATH"] = os.pathsep.join([args.onnxruntime_gpu, environment.get("PYTHONPATH", "")])
        environment["LD_LIBRARY_PATH"] = os.pathsep.join([*nvidia_libraries(), environment.get("LD_LIBRARY_PATH", "")])
    work = ["--measure", peer, name, str(model), str(feeds_file), str(args.seconds), args.figures]
    done = subprocess.run([sys.executable, __file__, *work], env=environment, capture_output=True, text=True)
    figures = [line for line in done.stdout.splitlines() if line.startswith("figures: ")]
    if done.returncode or not figures:
        print(f"{peer} failed with {name}:\n{done.stdout}{done.stderr}", file=sys.stderr)
        return {}
    return json.loads(figures[0].removeprefix("figures: "))


def nvidia_libraries():
    """The folders of the nvidia packages' libraries, which onnxruntime-gpu looks for where the loader does."""
    return sorted({str(file.parent) for path in sys.path for file in Path(path or ".").glob("nvidia/*/lib/*.so*")})


def named(name):
    """A model's name and batch size."""
    name, _, batch = name.partition(":")
    return name, int(batch or 1)


def feeds_of(file):
    import kernel_times
    import onnxruntime as ort

    return kernel_times.feeds_of(ort.InferenceSession(file, providers=["CPUExecutionProvider"]))


def rows(args, folder):
    import numpy as np

    import automatic

    for name in args.models.split(","):
        model, feeds = (name, feeds_of(name)) if name.endswith(".onnx") else automatic.make(*named(name))
        if isinstance(model, bytes):
            file = folder / f"{name}.onnx"
            file.write_bytes(model)
            model = file
        np.savez(folder / "feeds.npz", **feeds)
        rounds = {peer: [] for peer in args.peers.split(",")}
        for number in range(1 + args.rounds):
            for peer, taken in rounds.items():
                if peer == "compile" and number != min(1, args.rounds):  # half a minute, and replays hardly differ
                    continue
                figures = asked(peer, name, model, folder / "feeds.npz", args)
                if figures and (number > 0 or args.rounds == 0):
                    taken.append(figures)
        for peer, taken in rounds.items():
            if taken:
                figures = {f: statistics.median(one[f] for one in taken) for f in args.figures.split(",")}
                yield {"model": Path(name).stem, "peer": peer} | figures


def main():
    if sys.argv[1:2] == ["--measure"]:
        peer, name, model, feeds_file, seconds, figures = sys.argv[2:]
        return measure(peer, name, model, feeds_file, float(seconds), figures.split(","))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onnxruntime-gpu", default="", metavar="FOLDER")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--models", default=",".join([*models.DEFAULT, "small_20"]))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--figures", default=",".join(FIGURES))
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models.print_table(["model", "peer", *args.figures.split(",")], rows(args, Path(folder)), args.json)


if __name__ == "__main__":
    main()
