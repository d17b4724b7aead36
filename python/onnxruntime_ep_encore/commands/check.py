"""`encore check`: what is here, and what a model becomes."""

import collections
import json
import re
import tempfile
import time
from pathlib import Path

from .. import memory_report, placement_report, region_report
from . import environment
from .inputs import each_shape, make_feeds
from .mistake import Mistake
from .results import agreement
from .sessions import device, mistakes_of, on_cpu, open_session, warn_of_virtual

RUNS = 3  # after which what can be replayed is


def check(args):
    if args.json and not args.model:
        raise Mistake("--json tells of a model, and none was named")
    if not args.model:
        return 0 if environment.tell() else 1
    chosen = device()
    print(f"{args.model} on {environment.device_words(chosen)}")
    warn_of_virtual(chosen)
    told = {"model": str(args.model), "device": environment.device_words(chosen)}
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(args.model, args.option, dump_regions=folder)
        told["placement"] = placement_report(session)
        told["operators"] = _operators_after_fusion(Path(folder))
    _print_placement(told["placement"])
    if told["operators"]:
        parts = ", ".join(f"{count} {op}" for op, count in told["operators"].items())
        print(f"what they become: {parts}")
    cpu = on_cpu(args.model)
    told["runs"] = []
    for shapes in each_shape(args.shape):
        feeds, assumed = make_feeds(session, shapes, args.input)
        with mistakes_of(args.model, assumed):
            told["runs"].append(_run(session, feeds, cpu))
        _print_run(told["runs"][-1], assumed)
    if args.json:
        args.json.write_text(json.dumps(told, indent=1))
    return 0


def _operators_after_fusion(folder):
    """How many there are of each in the regions, as the last pass has left them."""
    found = collections.Counter()
    for region in folder.iterdir():
        plan = sorted(region.iterdir())[-1].read_text()
        found.update(re.findall(r"^ *[^#\n]*? = ([\w.]+)(?:@\d+)?\(", plan, re.M))
    short = collections.Counter()
    for op, count in found.items():
        short[op.rpartition(".")[2]] += count
    del short["Region"]  # whose steps are counted
    return dict(short.most_common())


def _print_placement(nodes):
    parts = collections.Counter(node["part"] for node in nodes if node["part"])
    alone = [node for node in nodes if node["on_encore"] and not node["part"]]
    elsewhere = [node for node in nodes if not node["on_encore"]]
    regions = f"{sum(parts.values())} in {len(parts)} region{'s' * (len(parts) != 1)}"
    print(f"nodes: {len(nodes)}; {regions}, {len(alone)} alone on Encore, {len(elsewhere)} elsewhere")
    for part, count in parts.items():
        print(f"  {count:5} nodes  {part}")
    for what, some in (("alone", alone), ("elsewhere", elsewhere)):
        for node in some:
            print(f"  {what:11} {_label(node)}: {node['why'].removeprefix('alone: ')}")


def _label(node):
    return node["node"] + (f" in {node['inside']}" if node["inside"] else "")


def _run(session, feeds, cpu):
    before = region_report(session)
    took = []
    for _ in range(RUNS):
        start = time.perf_counter()
        got = session.run(None, feeds)
        took.append(time.perf_counter() - start)
    after = region_report(session)
    memory = memory_report(session)["arena"]
    return {
        "inputs": {name: list(array.shape) for name, array in feeds.items()},
        "outputs": {each.name: _shape(made) for each, made in zip(session.get_outputs(), got)},
        "first_ms": took[0] * 1e3,
        "then_ms": took[-1] * 1e3,
        "regions": len(after),
        "replayed": sum(now["replays"] > then["replays"] for then, now in zip(before, after)),
        "refusals": sorted({now["refusal"] for now in after if now["refusal"]}),
        "scratch_bytes": sum(region["scratch_bytes"] for region in after),
        "held_bytes": memory["held_bytes"],
        "peak_in_use_bytes": memory["peak_in_use_bytes"],
        **agreement(got, cpu.run(None, feeds) if cpu else None),
    }


def _shape(made):
    """Of an array, or how many a sequence or a map has."""
    return list(made.shape) if hasattr(made, "shape") else [len(made)]


def _print_run(run, assumed):
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in run["inputs"].items())
    print(f"run: {shapes or 'no inputs'}{'; ' + ', '.join(assumed) if assumed else ''}")
    for name, shape in run["outputs"].items():
        print(f"  output      {name} {'x'.join(map(str, shape)) or 'scalar'}")
    print(f"  time        {run['first_ms']:.1f} ms the first time, {run['then_ms']:.1f} ms the third")
    print(f"  replayed    {run['replayed']} of {run['regions']} region{'s' * (run['regions'] != 1)}")
    for refusal in run["refusals"]:
        print(f"  not so      {refusal}")
    mb = lambda size: f"{size / 1e6:.1f} MB"  # noqa: E731
    print(f"  memory      {mb(run['held_bytes'])} held, of which graphs work in {mb(run['scratch_bytes'])}")
    if run["unlike_cpu"]:
        print("  agreement   NONE with the CPU: another shape or text, or other infinities or NaNs")
    elif run["distance_from_cpu"] is None:
        print("  agreement   unknown: onnxruntime's CPU provider cannot run the model")
    else:
        print(f"  agreement   with the CPU, within {run['distance_from_cpu']:.1e} of each output's largest number")
