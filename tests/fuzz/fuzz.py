#!/usr/bin/env python3
"""Tries random operators and chains of them on Encore, beside the CPU EP of the same onnxruntime.

    python tests/fuzz/fuzz.py --seconds 120 --seed 7 [--jobs 2]
    python tests/fuzz/fuzz.py --repeat 7000123 [--count 8]

Cases run in child processes, some hundreds in each, so that a crash is a finding like any other. A finding is one line
with the command that repeats it. Exits with 1 if there are findings, or if an operator ran in too few of the cases.
"""

import argparse
import collections
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import floor

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path[:0] = [str(path) for path in (HERE, TESTS, TESTS / "ops", TESTS.parent / "python")]

A_SEED = 1_000_000  # numbers of cases for each seed
BATCH = 400
HANGS_AFTER = 60  # seconds without a word
# What a sanitizer says, or the C library, of the end of a process.
LAST_WORDS = re.compile(r"(ERROR: \w+Sanitizer: .*|runtime error: .*|terminate called.*|what\(\): .*|Assertion .*)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--cases", type=int, default=A_SEED, help="or as soon as so many have been tried, in batches")
    parser.add_argument("--seed", type=int, help="default: another each time")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--repeat", type=int, metavar="NUMBER", help="try this case, here, and describe it")
    parser.add_argument("--count", type=int, default=1, help="and so many in all, for what needs a history")
    parser.add_argument("--child", type=int, nargs=2, metavar=("NUMBER", "COUNT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return run_batch(*args.child)
    if args.repeat is not None:
        return repeat(args.repeat, args.count)
    seed = args.seed if args.seed is not None else int.from_bytes(os.urandom(3), "little")
    print(f"seed {seed}, {args.seconds:g} seconds, {args.jobs} jobs", flush=True)
    return Campaign(seed, args.seconds, args.jobs, args.cases).run()


# ---- in a child process


def run_batch(first, count):
    """Tells the parent what it does, line by line."""
    from compose import compose
    from trial import try_case

    def tell(*words):
        os.write(1, (" ".join(" ".join(map(str, words)).splitlines()) + "\n").encode())

    for number in range(first, first + count):
        tell("case", number)
        tell("phase", "reference")
        try:
            case = compose(number)
            outcome = try_case(case, lambda name: tell("phase", name))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            tell("finding", f"the fuzzer itself: {type(error).__name__}: {error} at {where.filename}:{where.lineno}")
            continue
        if outcome.finding:
            tell("finding", outcome.finding)
        for reason in set(outcome.accepted):
            tell("accepted", reason)
        tell("ran", *[f"{domain}:{operator}" for domain, operator in outcome.ran])
        tell("nodes", outcome.nodes_on_encore, outcome.nodes)
    tell("end")
    sys.stdout.flush()
    os._exit(0)  # what onnxruntime does on its way out is no case


def repeat(first, count):
    from compose import compose
    from trial import describe, try_case

    failed = 0
    for number in range(first, first + count):
        case = compose(number)
        print(describe(case) if case.nodes else f"{number}: onnx cannot write it")
        outcome = try_case(case)
        failed += outcome.finding is not None
        for reason in outcome.accepted:
            print("accepted:", reason)
        print(f"{number}:", outcome.finding or "passed")
    return 1 if failed else 0


# ---- the parent


class Campaign:
    """Hands batches to children until the time or the cases are over, and tells what they found."""

    def __init__(self, seed, seconds, jobs, cases=A_SEED):
        self.next = seed * A_SEED
        self.beyond = self.next + cases
        self.seconds, self.jobs = seconds, jobs
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.accepted = collections.Counter()
        self.ran = collections.Counter()  # cases by (domain, operator)
        self.slowest = 0, None

    def run(self):
        start = time.monotonic()
        self.end = start + self.seconds
        workers = [threading.Thread(target=self._work) for _ in range(self.jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        seconds, counts = time.monotonic() - start, self.counts
        for reason, times in self.accepted.most_common():
            print(f"{times:6} accepted: {reason}")
        share = 100 * counts["on Encore"] / max(1, counts["nodes"])
        print(
            f"{counts['cases'] / seconds:.0f} cases a second; {counts['nodes']} nodes, {share:.1f}% of them on Encore"
        )
        print(f"the slowest took {self.slowest[0]:.1f} s: {self.slowest[1]}")
        if counts["lost"]:
            print(f"the CPU EP itself did not survive {counts['lost']} cases")
        below = floor.below(self.ran) if counts["cases"] >= floor.CASES else []
        for line in below:
            print(f"too few cases on Encore: {line}")
        failed = f"{counts['failed']} failed, " if counts["failed"] else ""
        print(f"{failed}{counts['cases'] - counts['failed']} passed in {seconds:.1f}s", flush=True)
        return 1 if counts["failed"] or below or not counts["cases"] else 0

    def _work(self):
        while time.monotonic() < self.end:
            with self.lock:
                first = self.next
                self.next += BATCH
            if first >= self.beyond:
                return
            number, last = first, first + BATCH
            while number < last and time.monotonic() < self.end:
                number = self._run_child(number, last - number)

    def _run_child(self, first, count):
        """Runs cases from the first on; returns the number from which on others are left."""
        child = Child(first, count)
        for line in child.lines(self.end):
            word, _, rest = line.partition(" ")
            with self.lock:
                self._note(child, word, rest)
        if not child.died:
            return first + count
        if child.number is None:
            raise SystemExit(f"a child ended before its first case: {child.last_words()}")
        if child.phase == "reference" and not child.is_encores():
            with self.lock:
                self.counts["lost"] += 1
        else:
            how = self._narrowed(child)
            with self.lock:
                self._say(how, f"{child.phase} {child.how()}")
        return child.number + 1

    def _note(self, child, word, rest):
        now = time.monotonic()
        if word == "case":
            child.began = now
            child.number = int(rest)
            self.counts["cases"] += 1
        elif word == "phase":
            child.phase = rest
        elif word == "finding":
            self._say(f"--repeat {child.number}", rest)
        elif word == "accepted":
            self.accepted[rest] += 1
        elif word == "ran":
            self.ran.update(tuple(name.split(":")) for name in rest.split())
        elif word == "nodes":
            on_encore, nodes = map(int, rest.split())
            self.counts["on Encore"] += on_encore
            self.counts["nodes"] += nodes
            self.slowest = max(self.slowest, (now - child.began, child.number))

    def _say(self, how, what):
        self.counts["failed"] += 1
        print(f"python tests/fuzz/fuzz.py {how}  # {what}", flush=True)

    def _narrowed(self, child):
        """The fewest cases before the one that ended the process with which it ends again."""
        before = 0
        while child.number - before >= child.first:
            again = Child(child.number - before, before + 1)
            for _ in again.lines(float("inf")):
                pass
            if again.died:
                return f"--repeat {again.first}" + (f" --count {before + 1}" if before else "")
            before = 2 * before + 1
        return f"--repeat {child.first} --count {child.number - child.first + 1}"


class Child:
    """A process that tries some cases."""

    def __init__(self, first, count):
        self.first, self.number, self.phase = first, None, "reference"
        self.died = self.hung = False
        self.errors = tempfile.TemporaryFile()
        command = [sys.executable, str(HERE / "fuzz.py"), "--child", str(first), str(count)]
        # Memory that there cannot be is refused by a sanitizer too, rather than reported.
        asan = ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "allocator_may_return_null=1"]))
        environment = {**os.environ, "ASAN_OPTIONS": asan}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=environment)
        self.said = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.said.put(line.rstrip("\n"))
        self.said.put(None)

    def lines(self, end):
        """What it says, until it ends, dies, says nothing for too long, or has done a case when the time is over."""
        line = self._next()
        while line not in (None, "end"):
            yield line
            if line.startswith("nodes") and time.monotonic() > end:
                break
            line = self._next()
        self.died = line is None
        if self.hung or not self.died:
            self.process.kill()
        self.process.wait()

    def _next(self):
        try:
            return self.said.get(timeout=HANGS_AFTER)
        except queue.Empty:
            self.hung = True
            return None

    def is_encores(self):
        """Whether a sanitizer names Encore, whoever was at work."""
        return "Sanitizer" in self._errors() and "libonnxruntime_providers_cuda_plugin" in self._errors()

    def how(self):
        if self.hung:
            return f"hangs: not a word for {HANGS_AFTER} s"
        code = self.process.returncode
        return f"ended with {'signal ' + str(-code) if code < 0 else 'code ' + str(code)}: {self.last_words()}"

    def last_words(self):
        said = self._errors()
        found = LAST_WORDS.search(said)
        return found[1] if found else " ".join(said[-300:].split())

    def _errors(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
