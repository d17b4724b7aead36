#!/usr/bin/env python3
"""Times Encore, onnxruntime-gpu and torch on the same models, taking turns on one machine.

    bench/peers.py --onnxruntime-gpu FOLDER [--models bert_base_f16:16,chain_f32,FILE.onnx] [--peers encore,graph]
                   [--figures replay] [--rounds 3] [--at-once 12] [--seconds 0.5] [--json FILE]

FOLDER is where onnxruntime-gpu was unpacked. Behind a model's name may be a batch size; a file gets the feeds beside it
(NAME.npz), or random ones, and has a torch module if its name is one that bench/exports.py knows. Peers are
  encore           this library, under the onnxruntime of PYTHONPATH
  onnxruntime-gpu  its own CUDA provider, enable_cuda_graph for replays
  graph            torch's eager modules in a torch.cuda.CUDAGraph
  compile          torch.compile(mode="reduce-overhead")
Each round runs each peer in a process of its own; figures are medians of the rounds but the first, which reads files,
unless it is the only one (--rounds 0). Replays wait until nothing is compiled beside them. With --at-once so many
processes make their sessions beside each other and then take turns, one at a time, in every round: that takes a few
seconds a model instead of a minute, but says nothing of `result` and `capture`.
  result   ms: making the session, or moving the module to the device, and the first result after that
  capture  ms: until the first replay is done, the result included
  replay   µs: bound to device memory, the wait included
  numpy    µs: from arrays to arrays, run(None, feeds); of torch's module, compiled or eager, likewise
  kernels  of a replay, as torch's profiler counts them
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

import kernel_times  # noqa: E402
import models  # noqa: E402

FIGURES = ["result", "capture", "replay", "numpy"]
OF_FRESH_PROCESSES = {"result", "capture"}


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


def turns(replay, of_arrays, seconds, warm=5):
    """What is measured whenever it is this process's turn, by figure."""

    def kernels():
        return round(sum(count for count, *_ in kernel_times.kernels_of(replay)[0].values()))

    measured = {"replay": lambda: models.median_us(replay, seconds, warm), "kernels": kernels}
    if of_arrays:
        measured["numpy"] = lambda: models.median_us(of_arrays, seconds, warm)
    return measured


def of_arrays_alone(make_session, model, feeds, seconds):
    now = Clock()
    session = make_session(model)
    session.run(None, feeds)
    out = {"result": now()}
    for _ in range(20):
        session.run(None, feeds)
    return out, turns(None, lambda: session.run(None, feeds), seconds)


def of_sessions(make_session, on_device, empty_on_device, model, feeds, seconds, figures):
    """The figures of an onnxruntime's provider: what was measured on the way, and what will be by turns."""
    import onnxruntime as ort

    if set(figures) <= {"result", "numpy"}:  # for which nothing need be bound: outputs may have any sizes
        return of_arrays_alone(make_session, model, feeds, seconds)
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
    of_arrays = None
    if "numpy" in figures:
        plain = make_session(model)
        of_arrays = lambda: plain.run(None, feeds)
        for _ in range(20):
            of_arrays()
    return out, turns(lambda: session.run_with_iobinding(binding, told), of_arrays, seconds)


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


def torch_module(name):
    """A module on the CPU and its inputs; None where torch has none of the model."""
    if not name.endswith(".onnx"):
        return models.torch_module(*named(name))
    import exports

    return exports.module(Path(name).stem) if exports.knows(Path(name).stem) else None


def of_torch(name, seconds, figures, compiled):
    import torch

    built = torch_module(name)
    if built is None:
        return {}, {}
    module, inputs = built
    torch.cuda.synchronize()
    now = Clock()
    with torch.inference_mode():
        module = module.cuda()
        call = torch.compile(module, mode="reduce-overhead") if compiled else module
        arrays = [x.numpy() for x in inputs]

        def of_arrays():
            with torch.inference_mode():
                outputs = call(*(torch.from_numpy(x).cuda() for x in arrays))
                return [y.cpu().numpy() for y in tensors_of(outputs)]

        of_arrays()
        out, bound = {"result": now()}, [x.cuda() for x in inputs]
        if compiled:

            def replay():
                with torch.inference_mode():
                    call(*bound)
                torch.cuda.synchronize()

            for _ in range(3):  # until it has recorded
                replay()
        else:
            replay = models.torch_replay(lambda: call(*bound))
            replay()
        out["capture"] = now()
        return out, turns(replay, of_arrays if "numpy" in figures else None, seconds, warm=50)


PEERS = {
    "encore": of_encore,
    "onnxruntime-gpu": of_onnxruntime_gpu,
    "graph": lambda name, model, feeds, seconds, figures: of_torch(name, seconds, figures, False),
    "compile": lambda name, model, feeds, seconds, figures: of_torch(name, seconds, figures, True),
}


def measure(peer, name, model, feeds_file, seconds, figures):
    """In a process of its own: says that it is ready, and then at each line of the input the figures as JSON."""
    import numpy as np
    import onnxruntime as ort

    ort.set_default_logger_severity(3)
    out, measured = PEERS[peer](name, model, dict(np.load(feeds_file)), seconds, figures)
    settle()
    print("ready", flush=True)
    for _ in sys.stdin:
        out |= {figure: measured[figure]() for figure in figures if figure in measured}
        print("figures: " + json.dumps(out), flush=True)


class Process:
    """One peer's, with one model."""

    def __init__(self, peer, name, model, feeds_file, args):
        self.peer, self.name = peer, name
        environment = dict(os.environ)
        if peer == "onnxruntime-gpu":
            environment["PYTHONPATH"] = os.pathsep.join([args.onnxruntime_gpu, environment.get("PYTHONPATH", "")])
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(
                [*nvidia_libraries(), environment.get("LD_LIBRARY_PATH", "")]
            )
        work = ["--measure", peer, name, str(model), str(feeds_file), str(args.seconds), args.figures]
        self.errors = tempfile.TemporaryFile("w+")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors, "text": True}
        self.process = subprocess.Popen([sys.executable, __file__, *work], env=environment, **pipes)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
        self.errors.close()

    def line(self, beginning):
        """What follows in the next line that begins so; None if the process has failed."""
        for line in self.process.stdout:
            if line.startswith(beginning):
                return line.removeprefix(beginning)
        self.errors.seek(0)
        print(f"{self.peer} failed with {self.name}:\n{self.errors.read()}", file=sys.stderr)
        return None

    def is_ready(self):
        return self.line("ready") is not None

    def figures(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.line("figures: ")
        return json.loads(line) if line else {}


def nvidia_libraries():
    """The folders of the nvidia packages' libraries, which onnxruntime-gpu looks for where the loader does."""
    return sorted({str(file.parent) for path in sys.path for file in Path(path or ".").glob("nvidia/*/lib/*.so*")})


def named(name):
    """A model's name and batch size."""
    name, _, batch = name.partition(":")
    return name, int(batch or 1)


def feeds_of(file):
    import numpy as np
    import onnxruntime as ort

    beside = Path(file).with_suffix(".npz")
    if beside.exists():
        return dict(np.load(beside))
    return kernel_times.feeds_of(ort.InferenceSession(file, providers=["CPUExecutionProvider"]))


def prepared(args, folder):
    """Each model's name, its file or what else a process takes, and the file of its feeds."""
    import numpy as np

    import automatic

    for number, name in enumerate(args.models.split(",")):
        model, feeds = (name, feeds_of(name)) if name.endswith(".onnx") else automatic.make(*named(name))
        if isinstance(model, bytes):
            file = folder / f"{name}.onnx"
            file.write_bytes(model)
            model = file
        feeds_file = folder / f"{number}.npz"
        np.savez(feeds_file, **feeds)
        yield name, model, feeds_file


def in_fresh_processes(args, folder):
    """Each round's figures by model and peer, but the first one's."""
    for work in prepared(args, folder):
        taken = {peer: [] for peer in args.peers.split(",")}
        for number in range(1 + args.rounds):
            for peer, all_figures in taken.items():
                if peer == "compile" and number != min(1, args.rounds):  # half a minute, and replays hardly differ
                    continue
                with Process(peer, *work, args) as process:
                    figures = process.is_ready() and process.figures()
                if figures and (number > 0 or args.rounds == 0):
                    all_figures.append(figures)
        yield from ((work[0], peer, all_figures) for peer, all_figures in taken.items())


def by_turns(args, folder):
    """Likewise, of processes that stay."""
    wanted = [(peer, *work) for work in prepared(args, folder) for peer in args.peers.split(",")]
    for first in range(0, len(wanted), args.at_once):
        with ExitStack() as stack:
            started = [stack.enter_context(Process(*one, args)) for one in wanted[first : first + args.at_once]]
            taken = {process: [] for process in started if process.is_ready()}
            for _ in range(max(args.rounds, 1)):
                for process, all_figures in taken.items():
                    figures = process.figures()
                    if figures:
                        all_figures.append(figures)
        yield from ((process.name, process.peer, all_figures) for process, all_figures in taken.items())


def rows(args, folder):
    wanted = args.figures.split(",")
    for name, peer, taken in (by_turns if args.at_once else in_fresh_processes)(args, folder):
        if all(figure in one for one in taken for figure in wanted) and taken:
            medians = {figure: statistics.median(one[figure] for one in taken) for figure in wanted}
            yield {"model": Path(name).stem, "peer": peer} | medians


def main():
    if sys.argv[1:2] == ["--measure"]:
        peer, name, model, feeds_file, seconds, figures = sys.argv[2:]
        return measure(peer, name, model, feeds_file, float(seconds), figures.split(","))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onnxruntime-gpu", default="", metavar="FOLDER")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--models", default=",".join([*models.DEFAULT, "small_20"]))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=0, metavar="PROCESSES")
    parser.add_argument("--figures", default=",".join(FIGURES))
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    fresh = OF_FRESH_PROCESSES & set(args.figures.split(","))
    if args.at_once and fresh:
        parser.error(f"--at-once disturbs {', '.join(sorted(fresh))}: leave them out of --figures")
    with tempfile.TemporaryDirectory() as folder:
        models.print_table(["model", "peer", *args.figures.split(",")], rows(args, Path(folder)), args.json)


if __name__ == "__main__":
    main()
