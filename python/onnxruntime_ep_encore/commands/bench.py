"""`encore bench`: how fast a model is, in each way of running it."""

import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from . import bars, environment
from .environment import device_words
from .inputs import each_shape, make_feeds, pairs
from .progress import Progress
from .results import agreement
from .sessions import device, open_session, warn_of_virtual

CPU = "CPUExecutionProvider"
OURS = ("eager", "automatic", "bound", "graph")
COSTLIEST, LONGEST_NAME = 10, 60  # of the nodes that are told
ROOM = 2  # how much longer a picture is than the longest bar that is not the CPU's
COLUMNS = {
    "created": lambda row: _time_text(row["creation_ms"] * 1e3),
    "first": lambda row: _time_text(row["first_ms"] * 1e3),
    "median": lambda row: _time_text(row["median_us"]),
    "p99": lambda row: _time_text(row["p99_us"]),
    "host": lambda row: _time_text(row["host_us"]),
    "memory": lambda row: "" if row["held_bytes"] is None else f"{row['held_bytes'] / 1e6:.1f} MB",
}
WAYS = """
eager      run() with arrays, nothing captured
automatic  run() with arrays, replayed from graphs that Encore makes by itself
bound      the same with inputs and outputs that stay on the device
graph      the same from a graph of onnxruntime's own protocol (enable_cuda_graph); host is what an asynchronous
           replay costs the calling thread
memory     of Encore's ways what their arena holds, graphs' memory included; of other providers for CUDA how much more
           of the GPU is in use after the runs than before the session, by libraries and other programs, too
"""


def bench(args):
    import onnxruntime as ort

    others = [name for name in ort.get_available_providers() if name not in (CPU, "AzureExecutionProvider")]
    chosen = device()
    print(f"{args.model} on {device_words(chosen)}")
    warn_of_virtual(chosen)
    options = pairs(args.option, "option")
    ways = _ways(options, args.no_cpu, others, args.profile)
    session = open_session(args.model, args.option)
    runs = [make_feeds(session, shapes, args.input) for shapes in each_shape(args.shape)]
    del session  # each way has the device to itself
    told = []
    progress = Progress(len(runs) * len(ways))
    for feeds, assumed in runs:
        told.append({"inputs": {name: list(array.shape) for name, array in feeds.items()}, "ways": {}})
        print(_shape_words(told[-1]), end="")
        print("; " + ", ".join(assumed) if assumed else "")
        _time_all(args, ways, feeds, told[-1]["ways"], progress)
    print(WAYS.rstrip())
    if args.picture:
        bars.write(_picture(f"{args.model.name} on {device_words(chosen)}", told), args.picture)
    if args.json:
        args.json.write_text(json.dumps({"model": str(args.model), "device": device_words(chosen), "shapes": told}))
    return 1 if any("error" in one["ways"]["automatic"] for one in told) else 0


def _ways(options, no_cpu, others, profile):
    """By name, how measure.py is to run the model."""
    way = lambda bound=False, graph=False, provider=None, **more: {  # noqa: E731
        "bound": bound, "graph": graph, "provider": provider, "options": {**options, **more}, "profile": False,
    }  # fmt: skip
    ways = {} if no_cpu else {"CPU": way(provider=CPU)}
    for name in others:
        ways[name.removesuffix("ExecutionProvider")] = way(provider=name)
    ways["eager"] = way(auto_graph="0")
    ways["automatic"] = way(auto_graph="1")
    ways["bound"] = way(bound=True, auto_graph="1")
    if environment.captures_graphs():
        ways["graph"] = way(bound=True, graph=True, enable_cuda_graph="1")
    for name in {"eager", "automatic", "graph"} & ways.keys() if profile else ():
        ways[name]["profile"] = True
    return ways


def _shape_words(one):
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in one["inputs"].items())


def _time_all(args, ways, feeds, told, progress):
    print(f"  {'':10}" + "".join(f"{name:>12}" for name in [*COLUMNS, "from CPU"]))
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "feeds.npz", **feeds)
        wanted = None
        for name, way in ways.items():
            with progress.step(name):
                told[name] = _time(args, {**way, "feeds": f"{folder}/feeds.npz", "outputs": f"{folder}/outputs"})
            if "error" in told[name]:
                print(f"  {name:10} {told[name]['error']}")
                continue
            got = pickle.loads(Path(folder, "outputs").read_bytes())
            wanted = got if name == "CPU" else wanted
            told[name] |= agreement(got, wanted)
            _print_row(name, told[name])
    if args.profile:
        _print_profiles(told)


def _time(args, spec):
    spec |= {"model": str(args.model), "seconds": args.seconds}
    command = [sys.executable, "-m", f"{__package__}.measure"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path[1:]])}
    done = subprocess.run(command, input=json.dumps(spec), capture_output=True, text=True, env=environment)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"its process ended with {done.returncode}"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def _print_row(name, row):
    far = "" if row["distance_from_cpu"] is None else f"{row['distance_from_cpu']:.1e}"
    cells = [*(text(row) for text in COLUMNS.values()), "unlike" if row["unlike_cpu"] else far * (name != "CPU")]
    print(f"  {name:10}" + "".join(f"{cell:>12}" for cell in cells), flush=True)


def _picture(title, told):
    """The CPU's bars are cut where they would leave the others no room, and so are whiskers."""
    groups = {_shape_words(one): [_bar(*way) for way in one["ways"].items()] for one in told}
    timed = [bar for group in groups.values() for bar in group if bar.value is not None]
    longest = max((bar.value for bar in timed if bar.name != "CPU"), default=float("inf"))
    end = min(max((bar.reach for bar in timed), default=1), ROOM * longest)
    return bars.drawn(title, "median of a run, the whisker is p99; less is better", groups, end)


def _bar(name, row):
    if "error" in row:
        return bars.Bar(name, row["error"])
    words = f"{_time_text(row['median_us'])}, p99 {_time_text(row['p99_us'])}"
    return bars.Bar(name, words, row["median_us"], row["p99_us"], bars.OURS if name in OURS else bars.OTHERS)


def _print_profiles(told):
    """Of eager runs, and of those that are replayed, in whichever way that is."""
    replayed = lambda way: any(node["replayed"] for node in way.get("profile") or ())  # noqa: E731
    shown = ["eager", *[name for name in ("automatic", "graph") if name in told and replayed(told[name])][:1]]
    for name in shown:
        if nodes := told[name].get("profile"):
            _print_profile(name, nodes, told[name]["median_us"])


def _print_profile(name, nodes, median_us):
    total = sum(node["us"] for node in nodes)
    print(
        f"  {name}: a run takes {_time_text(median_us)}; with events between its nodes these take {_time_text(total)}"
    )
    rows = [("node", "operator", "time", "share", "calls")]
    for node in nodes[:COSTLIEST]:
        share = f"{node['us'] / total:.1%}" if total else ""
        rows.append((_end_of(node["name"]), node["op"], _time_text(node["us"]), share, f"{node['calls']:.4g}"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        cells = [cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))]
        print("    " + "  ".join(cells))
    if len(nodes) > COSTLIEST:
        print(f"    and {len(nodes) - COSTLIEST} others")


def _end_of(name):
    return name if len(name) <= LONGEST_NAME else "…" + name[1 - LONGEST_NAME :]


def _time_text(us):
    return "" if us is None else f"{us:.1f} us" if us < 10_000 else f"{us / 1e3:.1f} ms"
