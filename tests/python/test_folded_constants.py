"""What halves compute from constants alone, before the first run as each run would have."""

import encore_session as es
import numpy as np
import pytest
from test_fused_attention import HALVES, Network, numbers

STEPS = ["Add", "Sub", "Mul", "Div", "Min", "Max"]


@pytest.mark.parametrize("dtype", HALVES)
def test_to_the_bit(encore, make_model, tmp_path, dtype):
    net = Network(dtype)
    x = net.input("x", ["n", 24, 40])
    made = net.constant(numbers((24, 1), 1, -3, 3))
    for i, op in enumerate(STEPS * 2):
        made = net.node(op, [made, net.constant(numbers((1, 40) if i % 2 else (24, 1), i + 2, -3, 3))])
    low = net.node("Where", [net.node("Less", [made, net.constant(0)]), made, net.constant(numbers((40,), 20))])
    turned = net.node("Transpose", [net.node("Neg", [low])], perm=(1, 0))
    made = net.node("Reshape", [net.node("Cast", [turned], to=net.kind), net.ints(1, 24, 40)])
    net.output(net.node("Mul", [x, made], "y"), ["n", 24, 40])
    model = net.model(make_model)
    folded = es.make_session(model, regions=1, dump_regions=tmp_path)
    (last,) = [sorted(folder.glob("*.txt"))[-1] for folder in tmp_path.iterdir() if folder.is_dir()]
    assert not any(f"{op}(" in last.read_text() for op in ["Add", "Where", "Transpose"])
    feeds = {"x": np.ones((2, 24, 40), np.float32)}
    (got,), (wanted,) = (session.run(None, feeds) for session in (folded, es.make_session(model, regions=0)))
    np.testing.assert_array_equal(got, wanted)
