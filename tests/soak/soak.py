#!/usr/bin/env python3
"""Threads do random things over a few sessions for a while, and every answer is checked.

    python tests/soak/soak.py [--seconds 60] [--threads 8] [--seed 1] [--mix graph=8,release=4] [--sessions graphs]

Actions of a mix, each with its weight:
  graph      a run of a captured graph with new contents, which the thread captures first
  fault      the same, with an index out of range: that run alone has to fail
  eager      a run with everything in device memory that is not captured
  plain      a run with NumPy arrays
  bad        the same, with an index out of range
  host       the same under a graph's id, which has to be refused
  release    one of the thread's graphs is released
  open       a session is opened, captures, and is closed
Sessions, which all threads share: graphs (as often as it is named), eager, automatic (with auto_graph), padded (with
few lengths, too), unified (one stream for all, captured), given (a stream of the application's, captured).

It goes on beyond its seconds until each action has been tried. Exits with 1 after an error, or if host or device
memory have grown.
"""

import argparse
import collections
import faulthandler
import gc
import random
import sys
import threading
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "python")]

import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore
from encore_session import EAGER, HAS_GRAPHS, Bound, is_gone, make_session, make_stream, run_options
from onnx import TensorProto, helper, numpy_helper

MIX = "graph=8,fault=1,eager=2,plain=2,bad=1,host=1,release=1,open=1"
KINDS = ("graphs", "eager", "automatic", "padded", "unified", "given")
SESSIONS = "graphs,graphs,eager,automatic,padded,unified"
UNCAPTURED = ("eager", "automatic", "padded")  # under an id
WITHOUT_GRAPHS = {"eager", "plain", "bad", "open"}
IDS = 6
MOST_ERRORS = 20
PATIENCE = 120  # seconds that a busy machine gets beyond those asked for
MIB = 1 << 20
WIDTH, ROWS, LAYERS = 48, 40, 4


class Model:
    """Rows of a table are looked up, added to x, and go through layers of products, and what keeps them small."""

    def __init__(self):
        rng = np.random.default_rng(11)
        self.table = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
        self.weights = [(rng.standard_normal((WIDTH, WIDTH)) / 7).astype(np.float32) for _ in range(LAYERS)]
        nodes = [
            helper.make_node("Gather", ["table", "i"], ["rows"], "lookup"),
            helper.make_node("Add", ["x", "rows"], ["t0"], "start"),
        ]
        for k in range(LAYERS):
            nodes += [
                helper.make_node("MatMul", [f"t{k}", f"w{k}"], [f"p{k}"], f"product{k}"),
                helper.make_node("Sigmoid", [f"p{k}"], [f"s{k}"], f"sigmoid{k}"),
                helper.make_node("ReduceMean", [f"s{k}"], [f"m{k}"], f"mean{k}", axes=[-1]),
                helper.make_node("Sub", [f"s{k}", f"m{k}"], ["y" if k + 1 == LAYERS else f"t{k + 1}"], f"centre{k}"),
            ]
        ends = {"x": (TensorProto.FLOAT, ["n", WIDTH]), "i": (TensorProto.INT64, ["n"])}
        inputs = [helper.make_tensor_value_info(name, *form) for name, form in ends.items()]
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])
        constants = [numpy_helper.from_array(w, f"w{k}") for k, w in enumerate(self.weights)]
        constants.append(numpy_helper.from_array(self.table, "table"))
        graph = helper.make_graph(nodes, "soak", inputs, [output], constants)
        self.bytes = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
        ).SerializeToString()

    def check(self, y, x, i):
        t = x + self.table[i]
        for w in self.weights:
            s = 1 / (1 + np.exp(-(t @ w)))
            t = s - s.mean(-1, keepdims=True)
        np.testing.assert_allclose(y, t, rtol=1e-3, atol=3e-4)


class Sessions:
    """Those that all threads share, by a name with a number."""

    def __init__(self, model, names):
        self.model = model
        self.streams = []
        self.all = {f"{name}{k}": self.open(name) for k, name in enumerate(names)}
        self.captured = [name for name in self.all if HAS_GRAPHS and not name.startswith(UNCAPTURED)]

    def open(self, kind):
        options = {} if kind in UNCAPTURED or not HAS_GRAPHS else {"enable_cuda_graph": 1}
        options["auto_graph"] = int(kind in ("automatic", "padded"))
        if kind == "padded":
            options["pad"] = "n:8,64,200"  # of which some runs have more
        if kind == "unified":
            options["use_ep_level_unified_stream"] = 1
        if kind == "given":
            self.streams.append(make_stream())
            options["user_compute_stream"] = self.streams[-1].get_handle()
        session_options = ort.SessionOptions()
        session_options.log_severity_level = 4
        return make_session(self.model.bytes, session_options, **options)


class Tally:
    def __init__(self):
        self.counts = collections.Counter()
        self.tried = set()
        self.errors = []
        self.lock = threading.Lock()

    def add(self, action):
        with self.lock:
            self.counts[action] += 1
            self.tried.add(action)

    def fail(self, action, error):
        with self.lock:
            self.tried.add(action)
            self.errors.append(f"{action}: {type(error).__name__}: {' '.join(str(error).split())[:400]}")


class Worker:
    """One thread, with its graphs: each of a size of its own, so that a mix-up shows."""

    def __init__(self, number, seed, sessions, mix, tally):
        self.number, self.sessions, self.model, self.tally = number, sessions, sessions.model, tally
        self.random = random.Random(f"{seed} {number}")
        self.numpy = np.random.default_rng([seed, number])
        self.actions, self.weights = list(mix), list(mix.values())
        self.bound = {}

    def work(self, end):
        while self._is_needed(end) and len(self.tally.errors) < MOST_ERRORS:
            action = self.random.choices(self.actions, self.weights)[0]
            try:
                getattr(self, action)()
                self.tally.add(action)
            except Exception as error:
                self.tally.fail(action, error)
        self.bound.clear()

    def _is_needed(self, end):
        now = time.monotonic()
        return now < end or (now < end + PATIENCE and not self.tally.tried.issuperset(self.actions))

    def contents(self, rows, bad=False):
        i = self.numpy.integers(-ROWS, ROWS, rows)
        if bad:
            i[self.random.randrange(rows)] = self.random.choice([ROWS, -ROWS - 1, 2**40])
        return {"x": self.numpy.standard_normal((rows, WIDTH)).astype(np.float32), "i": i}

    def bind(self, session, rows):
        return Bound(session, self.contents(rows), {"y": ((rows, WIDTH), np.float32)})

    def check(self, bound, rows, graph_id):
        feeds = self.contents(rows)
        self.model.check(bound.run(feeds, graph_id)["y"], **feeds)

    def _graph(self):
        name, graph_id = self.random.choice(self.sessions.captured), self.random.randrange(IDS)
        rows = 1 + graph_id + IDS * self.number
        if (name, graph_id) not in self.bound:
            self.bound[name, graph_id] = self.bind(self.sessions.all[name], rows)
        return self.bound[name, graph_id], rows, graph_id

    def _any_session(self):
        return self.sessions.all[self.random.choice(list(self.sessions.all))]

    def _has_to_fail(self, run, *words):
        try:
            run()
        except Exception as error:
            if not any(word in str(error) for word in words):
                raise
        else:
            raise AssertionError(f"a run succeeded that had to fail with {' or '.join(words)}")

    # ---- actions

    def graph(self):
        self.check(*self._graph())

    def fault(self):
        bound, rows, graph_id = self._graph()
        self.check(bound, rows, graph_id)
        bad = self.contents(rows, bad=True)
        self._has_to_fail(lambda: bound.run(bad, graph_id), "Gather node 'lookup': index")
        self.check(bound, rows, graph_id)

    def eager(self):
        rows = self.random.randint(1, 300)
        self.check(self.bind(self._any_session(), rows), rows, EAGER)

    def plain(self):
        feeds = self.contents(self.random.randint(0, 100))
        (y,) = self._any_session().run(None, feeds, run_options(EAGER))
        self.model.check(y, **feeds)

    def bad(self):
        feeds = self.contents(self.random.randint(1, 50), bad=True)
        session = self._any_session()
        self._has_to_fail(lambda: session.run(None, feeds, run_options(EAGER)), "Gather node 'lookup': index")

    def host(self):
        session = self.sessions.all[self.random.choice(self.sessions.captured)]
        feeds = self.contents(7)
        self._has_to_fail(lambda: session.run(None, feeds, run_options(IDS)), "host memory")

    def release(self):
        session = self.sessions.all[self.random.choice(self.sessions.captured)]
        if hasattr(session, "release_captured_graph"):  # onnxruntime 1.30 on
            session.release_captured_graph(self.random.randrange(IDS))

    def open(self):
        session = self.sessions.open(self.random.choice(["graphs", "eager", "automatic", "padded"]))
        bound = self.bind(session, 5)
        for _ in range(3):
            self.check(bound, 5, 1 if HAS_GRAPHS else EAGER)


# ---- memory


def host_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def device_bytes(sessions):
    """What the shared sessions have in use, graphs included, and what is gone of the device's memory.

    Automatic graphs stay, and what they work in is not told as in use.
    """
    reports = [onnxruntime_ep_encore.memory_report(session) for session in sessions.all.values()]
    in_use = sum(report["arena"]["in_use_bytes"] + report["arena"]["graph_bytes"] for report in reports)
    holders = [holder for report in reports for holder in report["holders"]]
    in_use -= sum(holder["bytes"] for holder in holders if holder["name"] == "scratch of automatic graphs")
    device = reports[0]["device"]
    return in_use, device["total_bytes"] - device["free_bytes"]


# ---- the whole


def soak(seconds, threads, seed, mix, names, most_growth):
    """Returns the number of errors, growth included."""
    model = Model()
    sessions, tally = Sessions(model, names), Tally()
    if not sessions.captured:
        mix = {action: weight for action, weight in mix.items() if action in WITHOUT_GRAPHS}
    in_use_before, _ = device_bytes(sessions)
    start = time.monotonic()
    end = start + seconds
    workers = [Worker(k, seed, sessions, mix, tally) for k in range(threads)]
    running = [threading.Thread(target=worker.work, args=(end,), daemon=True) for worker in workers]
    for thread in running:
        thread.start()
    time.sleep(seconds * 0.4)  # by then every thread has most of its graphs
    host_then, (_, taken_then) = host_bytes(), device_bytes(sessions)
    for thread in running:
        if not is_gone(thread, max(0, end + PATIENCE - time.monotonic()) + 120):
            faulthandler.dump_traceback(all_threads=True)
            tally.fail("a thread", TimeoutError("hangs"))
    spent = time.monotonic() - start
    host_now = host_bytes()
    workers.clear()
    gc.collect()
    in_use, taken = device_bytes(sessions)

    done = sum(tally.counts.values())
    print(", ".join(f"{action} {tally.counts[action]}" for action in mix), f"({done / spent:.0f} a second)")
    print(f"host memory {host_then / MIB:.0f} -> {host_now / MIB:.0f} MiB; device memory {taken_then / MIB:.0f} -> "
          f"{taken / MIB:.0f} MiB; in use by the sessions {in_use_before} -> {in_use} bytes")  # fmt: skip
    if host_now - host_then > most_growth:
        tally.fail("host memory", MemoryError(f"has grown by {(host_now - host_then) / MIB:.0f} MiB"))
    if taken - taken_then > most_growth:
        tally.fail("device memory", MemoryError(f"has grown by {(taken - taken_then) / MIB:.0f} MiB"))
    if in_use != in_use_before:
        tally.fail("device memory", MemoryError(f"{in_use - in_use_before} bytes were never freed"))
    for action in mix:
        if not tally.counts[action]:
            tally.fail(action, AssertionError("was never done"))
    for error in tally.errors:
        print("ERROR", error)
    failed = f"{len(tally.errors)} failed, " if tally.errors else ""
    print(f"{failed}{done} passed in {spent:.1f}s", flush=True)
    return len(tally.errors)


def parse_mix(text):
    """{"graph": 8, ...} of "graph=8,..."."""
    known = [part.split("=")[0] for part in MIX.split(",")]
    mix = {}
    for part in text.split(","):
        action, _, weight = part.partition("=")
        if action not in known or not weight.isdigit():
            raise argparse.ArgumentTypeError(f"'{part}' is no ACTION=WEIGHT; actions are {', '.join(known)}")
        mix[action] = int(weight)
    return mix


def parse_sessions(text):
    names = text.split(",")
    for name in names:
        if name not in KINDS:
            raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(KINDS)}")
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mix", type=parse_mix, default=MIX)
    parser.add_argument("--sessions", type=parse_sessions, default=SESSIONS)
    parser.add_argument("--growth", type=int, default=64, metavar="MIB", help="how much memory may grow")
    args = parser.parse_args()
    print(f"seed {args.seed}, {args.threads} threads, {args.seconds:g} seconds", flush=True)
    return 1 if soak(args.seconds, args.threads, args.seed, args.mix, args.sessions, args.growth * MIB) else 0


if __name__ == "__main__":
    sys.exit(main())
