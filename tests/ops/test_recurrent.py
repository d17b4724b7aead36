"""LSTM, GRU and RNN. The CPU EP is the reference; a few lines of numpy are where it has no kernel: of doubles, and of
batches first."""

import numpy as np
import pytest
from harness import FLOATS, Case, Const, check, floats
from refusal import declined, fails

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DIRECTIONS = ["forward", "reverse", "bidirectional"]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def plain(op, hidden, direction="forward", layout=0, before=False):
    """The operator with its own activations, in doubles."""

    def run(x, w, r, b=None, lengths=None, h=None, c=None, p=None):
        x, w, r = (a.astype(np.float64) for a in (x, w, r))
        if layout:
            x = x.swapaxes(0, 1)
        (steps, batch, _), count = x.shape, w.shape[0]
        swap = lambda a: a.swapaxes(0, 1) if layout else a
        h = np.zeros((count, batch, hidden)) if h is None else swap(h).astype(np.float64)
        c = np.zeros((count, batch, hidden)) if c is None else swap(c).astype(np.float64)
        b = np.zeros((count, 2 * GATES[op] * hidden)) if b is None else b
        p = np.zeros((count, 3 * hidden)) if p is None else p
        lengths = [steps] * batch if lengths is None else lengths
        y, y_h, y_c = np.zeros((steps, count, batch, hidden)), np.zeros_like(h), np.zeros_like(c)
        for d in range(count):
            for s in range(batch):
                times = range(lengths[s])
                turned = direction == "reverse" or d == 1
                hs, cs = h[d, s], c[d, s]
                for t in reversed(times) if turned else times:
                    hs, cs = step(op, x[t, s], w[d], r[d], b[d], p[d], hs, cs, before)
                    y[t, d, s], y_h[d, s], y_c[d, s] = hs, hs, cs
        if layout:
            y = y.transpose(2, 0, 1, 3)
        return [y, swap(y_h), swap(y_c)][: 3 if op == "LSTM" else 2]

    return run


def step(op, x, w, r, b, p, h, c, before):
    wb, rb = np.split(b.astype(np.float64), 2)
    a, u = w @ x + wb, r @ h + rb
    if op == "RNN":
        return np.tanh(a + u), c
    if op == "GRU":
        size = len(h)
        z, s = sigmoid((a + u)[:size]), sigmoid((a + u)[size : 2 * size])
        last = s * u[2 * size :] if before else r[2 * size :] @ (s * h) + rb[2 * size :]
        return (1 - z) * np.tanh(a[2 * size :] + last) + z * h, c
    i, o, f, g = np.split(a + u, 4)
    pi, po, pf = np.split(p, 3)
    c = sigmoid(f + pf * c) * c + sigmoid(i + pi * c) * np.tanh(g)
    return sigmoid(o + po * c) * np.tanh(c), c


def case(op, steps=5, batch=3, size=4, hidden=6, lengths=None, direction="forward", **rest):
    """With every input that the operator has, unless `without` names it by its place."""
    attrs = {"hidden_size": hidden, **rest.pop("attrs", {})}
    if direction != "forward":
        attrs["direction"] = direction
    count, rows = 2 if direction == "bidirectional" else 1, GATES[op] * hidden
    layout = attrs.get("layout", 0)
    state = (batch, count, hidden) if layout else (count, batch, hidden)
    small = lambda *shape: floats(*shape, low=-0.6, high=0.6)
    inputs = [
        floats(batch, steps, size) if layout else floats(steps, batch, size),
        small(count, rows, size),
        small(count, rows, hidden),
        small(count, 2 * rows),
        None if lengths is None else Const(np.array(lengths, np.int32)),
        small(*state),
    ]
    if op == "LSTM":
        inputs += [small(*state), small(count, 3 * hidden)]
    for i in rest.pop("without", ()):
        inputs[i] = None
    while inputs[-1] is None:
        inputs.pop()
    if rest.pop("constant", False):
        inputs[1:4] = [None if i is None else Const(i) for i in inputs[1:4]]
    # Doubles the CPU EP does not compute, nor batches first.
    if layout or rest.get("dtype") == "float64":
        rest["reference"] = plain(op, hidden, direction, layout, attrs.get("linear_before_reset", 0))
    outputs = rest.pop("outputs", 3 if op == "LSTM" else 2)
    return Case(op, inputs, attrs, outputs=outputs, family="recurrent", **rest)


OPS = list(GATES)
BEFORE = {"attrs": {"linear_before_reset": 1}, "name": "before"}
AFTER = {"RNN": {}, "LSTM": {}, "GRU": {"attrs": {"linear_before_reset": 1}}}
CASES = [
    *[case(op, dtype=t, direction=d) for op in OPS for d in DIRECTIONS for t in FLOATS if t != "bfloat16"],
    *[case(op, dtype="bfloat16", direction="bidirectional", opset=22) for op in OPS],
    *[case("GRU", dtype=t, direction="bidirectional", **BEFORE) for t in FLOATS if t != "bfloat16"],
    # Many sequences: the other way of making a step.
    *[case(op, batch=9, dtype=t, direction="bidirectional") for op in OPS for t in FLOATS if t != "bfloat16"],
    case("GRU", batch=33, hidden=40, **BEFORE),
    case("LSTM", batch=600, steps=3, lengths=[i % 4 for i in range(600)]),
    # All steps in one launch: sequences by the number of lanes that make a product, and units that fill no block.
    *[
        case(
            op,
            steps=7,
            batch=batch,
            hidden=hidden,
            direction="bidirectional",
            name="persistent",
            tolerance=(5e-5, 5e-5),  # sums of a hundred terms in another order, seven times
            **AFTER[op],
        )
        for op in OPS
        for batch, hidden in [(1, 12), (2, 140), (5, 64), (9, 20), (17, 44), (32, 8)]
    ],
    *[
        case(op, steps=6, batch=batch, hidden=36, dtype=t, name="persistent", opset=22, **AFTER[op])
        for op in OPS
        for t in ("float16", "bfloat16")
        for batch in (1, 6)
    ],
    *[
        case(op, steps=6, batch=3, hidden=36, direction=d, name="persistent-layout", attrs={"layout": 1} | more)
        for op in OPS
        for d in ("reverse", "bidirectional")
        for more in [AFTER[op].get("attrs", {})]
    ],
    case("LSTM", steps=6, batch=3, hidden=36, attrs={"input_forget": 1, "clip": 0.3}, name="persistent-coupled"),
    case("LSTM", steps=6, hidden=36, without=(3, 5, 6, 7), name="persistent-bare"),
    case("LSTM", steps=6, hidden=36, outputs=[False, True, True], name="persistent-end"),
    # Weights that are constants, which cuDNN is given in its own order
    *[
        case(
            op,
            batch=12,
            dtype=t,
            direction=d,
            constant=True,
            without=(7,) if op == "LSTM" else (),
            name="constant",
            **more,
        )
        for op, more in [("RNN", {}), ("LSTM", {}), ("GRU", {"attrs": {"linear_before_reset": 1}})]
        for d in ("forward", "bidirectional")
        for t in FLOATS
        if t != "bfloat16"
    ],
    case("RNN", batch=12, constant=True, attrs={"activations": ["Relu"]}, name="constant-relu"),
    *[
        case(
            op, batch=12, constant=True, without=(3, 5, 6, 7) if op == "LSTM" else (3, 5), name="constant-bare", **more
        )
        for op, more in [("RNN", {}), ("LSTM", {}), ("GRU", {"attrs": {"linear_before_reset": 1}})]
    ],
    case("LSTM", batch=12, constant=True, without=(7,), outputs=[False, True, True], name="constant-end"),
    case("LSTM", batch=2, constant=True, without=(7,), name="constant-few"),
    case(
        "GRU",
        batch=12,
        constant=True,
        lengths=[i % 6 for i in range(12)],
        name="constant-lengths",
        attrs={"linear_before_reset": 1},
    ),
    # Lengths
    *[case(op, lengths=[5, 2, 1], direction=d) for op in OPS for d in DIRECTIONS],
    *[case(op, lengths=[3, 0, 4], direction=d, name="none") for op in OPS for d in DIRECTIONS],
    # In one launch
    *[
        case(op, steps=7, batch=n, hidden=24, lengths=[7 - 3 * i % 8 for i in range(n)], direction=d, **AFTER[op])
        for op in OPS
        for n in (1, 5, 32)
        for d in DIRECTIONS
    ],
    *[case(op, steps=7, batch=2, hidden=8, lengths=[0, 4], **{**AFTER[op], "name": "none"}) for op in OPS],
    *[case(op, hidden=8, lengths=[0, 0, 0], **{**AFTER[op], "name": "nothing"}) for op in OPS],
    case("GRU", lengths=[5, 5, 5], name="all", attrs={"linear_before_reset": 1}),
    *[case(op, batch=9, lengths=[5, 4, 3, 2, 1, 1, 5, 3, 2], direction="bidirectional") for op in OPS],
    # Absent inputs and outputs
    *[case(op, without=(3, 5, 6, 7) if op == "LSTM" else (3, 5), name="bare") for op in OPS],
    case("LSTM", without=(5,), name="only-c"),
    case("LSTM", without=(6,), name="only-h"),
    *[case(op, outputs=[False, True], name="end", direction="bidirectional") for op in OPS],
    *[case(op, outputs=[True], name="sequence") for op in OPS],
    case("LSTM", outputs=[False, False, True], name="cell", lengths=[2, 5, 3]),
    # Batches first
    *[case(op, attrs={"layout": 1}, direction=d, name="layout") for op in OPS for d in DIRECTIONS],
    *[case(op, attrs={"layout": 1}, direction="bidirectional", lengths=[5, 0, 3], name="layout") for op in OPS],
    *[case(op, attrs={"layout": 1}, batch=9, direction="bidirectional", name="layout") for op in OPS],
    # Attributes
    *[case(op, attrs={"clip": 0.3}, name="clip", direction="reverse") for op in OPS],
    case("LSTM", attrs={"input_forget": 1}, name="coupled"),
    case("GRU", attrs={"clip": 0.3, "linear_before_reset": 1}, name="clip"),
    *[case(op, opset=opset) for op in OPS for opset in (7, 14, 22)],
    # Sizes
    *[case(op, steps=1, batch=1, size=1, hidden=1) for op in OPS],
    *[case(op, steps=2, batch=5, size=100, hidden=130, direction="bidirectional") for op in OPS],
    *[case(op, steps=2, batch=2, size=64, hidden=256, dtype="float16") for op in OPS],
    case("LSTM", steps=4, batch=1, size=512, hidden=512, tolerance=(5e-5, 5e-5)),  # sums of a thousand terms
    case("LSTM", steps=40, batch=2, size=8, hidden=64, direction="bidirectional"),
    case("LSTM", batch=1, hidden=7, misaligned=True),
    case("LSTM", batch=9, hidden=8, misaligned=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_recurrent(case):
    check(case)


ACTIVATIONS = {
    "Relu": {},
    "Tanh": {},
    "Sigmoid": {},
    "Affine": {"activation_alpha": [0.5], "activation_beta": [0.1]},
    "LeakyRelu": {"activation_alpha": [0.3]},
    "ThresholdedRelu": {"activation_alpha": [0.2]},
    "ScaledTanh": {"activation_alpha": [0.7], "activation_beta": [1.3]},
    "HardSigmoid": {"activation_alpha": [0.3], "activation_beta": [0.4]},
    "Elu": {"activation_alpha": [0.8]},
    "Softsign": {},
    "Softplus": {},
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    check(case("RNN", attrs={"activations": [name], **ACTIVATIONS[name]}))


@pytest.mark.parametrize("name", ["LeakyRelu", "HardSigmoid", "Elu"])
def test_their_defaults(name):
    check(case("RNN", attrs={"activations": [name]}))


def test_a_default_that_the_cpu_ep_has_otherwise():
    """ONNX takes it from the operator of that name: 1. The CPU EP has 0."""
    attrs = {"activations": ["ThresholdedRelu"]}
    reference = lambda x, w, r: [np.where((y := x @ w[0].T) > 1, y, 0)[:, None]]
    check(case("RNN", attrs=attrs, steps=1, without=(3, 5), outputs=1, reference=reference))


def test_arguments_go_to_those_that_have_some():
    attrs = {
        "activations": ["Sigmoid", "LeakyRelu", "Tanh", "HardSigmoid", "Relu", "Elu"],
        "activation_alpha": [0.3, 0.25, 0.9],
        "activation_beta": [0.4],
    }
    check(case("LSTM", direction="bidirectional", attrs=attrs))
    attrs = {"activations": ["HardSigmoid", "ScaledTanh"], "activation_alpha": [0.3, 0.7], "activation_beta": [0.4, 1]}
    check(case("GRU", attrs=attrs))
    check(case("GRU", attrs={"linear_before_reset": 1, **attrs}))


@pytest.mark.parametrize("op", OPS)
def test_no_steps(op):
    made = case(op, steps=0, reference=plain(op, 6), capture=False)
    check(made)


@pytest.mark.parametrize("op", OPS)
def test_no_sequences(op):
    check(case(op, batch=0, reference=plain(op, 6), capture=False))


@pytest.mark.parametrize("op", OPS)
def test_no_input(op):
    check(case(op, size=0, reference=plain(op, 6), capture=False))


def inputs_of(op, **changes):
    made = case(op, **changes)
    return [i.value if isinstance(i, Const) else i for i in made.inputs], made.attrs


def refused(op, words, change, at, **changes):
    inputs, attrs = inputs_of(op, **changes)
    inputs[at] = change
    fails(op, inputs, attrs, words, opset=14, outputs=2)


@pytest.mark.parametrize("op", OPS)
def test_shapes_that_do_not_fit(op):
    rows = GATES[op] * 6
    refused(op, "W has shape .* is wanted", floats(1, rows + 1, 4), 1)
    refused(op, "R has shape .* is wanted", floats(1, rows, 5), 2)
    refused(op, "B has shape .* is wanted", floats(1, rows), 3)
    refused(op, "initial_h has shape .* is wanted", floats(1, 2, 6), 5)
    refused(op, "sequence_lens has shape", np.ones(2, np.int32), 4, lengths=[1, 1, 1])
    # A region leaves them on the device, whose kernels tell a number and its limit.
    long = r"a sequence has length 6; X has 5 steps|a value is not allowed: 6 \(limit 5\)"
    negative = r"a sequence has length -1|a value is not allowed: -1 \(limit 5\)"
    refused(op, long, np.array([1, 6, 2], np.int32), 4, lengths=[1, 1, 1])
    refused(op, negative, np.array([1, -1, 2], np.int32), 4, lengths=[1, 1, 1])


@pytest.mark.parametrize(
    "attrs",
    [
        {"activations": ["Mish"]},
        {"direction": "sideways"},
        {"layout": 2},
        {"clip": 0.0},
        {"clip": -1.0},
        {"hidden_size": -5},
    ],
    ids=str,
)
def test_attributes_that_are_no_good(attrs):
    inputs, known = inputs_of("RNN")
    declined("RNN", inputs, {**known, **attrs}, opset=14, outputs=2)


def test_activations_of_another_number():
    inputs, known = inputs_of("GRU")
    declined("GRU", inputs, {**known, "activations": ["Tanh"]}, opset=14, outputs=2)
