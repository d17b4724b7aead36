"""Nodes of all operators with each of their dimensions padded: where Encore allows that, results are the same.

    python tests/fuzz/test_padded_nodes.py FIRST COUNT

tries the cases of these numbers.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

pytestmark = pytest.mark.newest

BATCH = 150
LONGEST = 300  # what is longer takes long
# Of the longer shape another kernel may be chosen, with sums in another order.
CLOSE = {"rtol": 2e-2, "atol": 2e-2}


class Alone:
    """One node, with what it reads fed, dimensions named after their lengths, and nodes behind to make it a region."""

    def __init__(self, node, opset):
        from written_model import write

        model, _ = write([node], node.makes(), opset)
        self.model = onnx.load_from_string(model)
        graph = self.model.graph
        arrays = {name: v.array for v in node.reads() for name in (v.name, f"{v.name}_fed")}
        self.feeds = {value.name: arrays[value.name] for value in graph.input}
        for value in graph.input:
            shape = value.type.tensor_type.shape
            shape.Clear()
            shape.SetInParent()
            for length in self.feeds[value.name].shape:
                shape.dim.add(dim_param=f"of_{length}")
        for value in graph.output:
            graph.node.append(helper.make_node("Identity", [value.name], [f"{value.name}_seen"]))
            value.name += "_seen"

    def lengths(self):
        return sorted({n for array in self.feeds.values() for n in array.shape if 0 < n < LONGEST})

    def run(self, **options):
        """Its outputs; None if it may not be padded, or refuses what it reads in any case."""
        from encore_session import make_session
        from reference import message, quiet_options

        try:
            session = make_session(self.model, quiet_options(), **options)
        except Exception as error:
            assert not options or "'pad' can't pad" in message(error), message(error)
            return None
        try:
            return session.run(None, self.feeds)
        except Exception:
            if options:
                raise
            return None


def differ(got, wanted):
    if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        return True
    if got.tobytes() == wanted.tobytes():
        return False
    if got.dtype.kind not in "fc":
        return not np.array_equal(got, wanted)
    return not np.allclose(got.astype(np.float64), wanted.astype(np.float64), equal_nan=True, **CLOSE)


def try_nodes(number):
    """How often something was padded; what went wrong is printed."""
    from compose import compose

    print("reference", number, flush=True)
    case = compose(number)
    print("Encore", number, flush=True)
    padded = 0
    if not case.nodes or case.refused or not case.known:
        return padded
    for node in case.nodes:
        alone = Alone(node, case.opset)
        wanted = alone.run()
        for length in alone.lengths() if wanted else []:
            try:
                got = alone.run(pad=f"of_{length}:{length + 2}")
            except Exception as error:
                print(f"wrong {number}: {node.op} with {length} padded:", " ".join(str(error).split()), flush=True)
                continue
            padded += got is not None
            if got and any(map(differ, got, wanted)):
                print(f"wrong {number}: {node.op} with {length} padded differs", flush=True)
    return padded


@pytest.mark.parametrize("first", range(9_000_000, 9_000_000 + 4 * BATCH, BATCH))
def test_what_may_be_padded_gives_the_same(first):
    """In processes of their own: the CPU EP does not survive every case that is composed."""
    end, padded = first + BATCH, 0
    while first < end:
        command = [sys.executable, __file__, str(first), str(end - first)]
        child = subprocess.run(command, capture_output=True, text=True, errors="replace")
        told = [line.split(" ", 1) for line in child.stdout.splitlines()]
        wrong = [text for word, text in told if word == "wrong"]
        assert not wrong, wrong
        padded += sum(int(text) for word, text in told if word == "padded")
        if child.returncode == 0:
            break
        word, number = [line for line in told if line[0] in ("reference", "Encore")][-1]
        assert word == "reference", f"case {number} ended the process: {child.stderr[-2000:]}"
        first = int(number) + 1
    assert padded > 100


if __name__ == "__main__":
    tests = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(tests), str(tests / "ops")]
    first, count = map(int, sys.argv[1:])
    for number in range(first, first + count):
        print("padded", try_nodes(number), flush=True)
