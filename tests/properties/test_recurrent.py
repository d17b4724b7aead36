"""LSTM, GRU and RNN with any of their attributes and inputs, down to one unit and one sequence."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from propose_recurrent import BOUNDED, GATES, UNBOUNDED

from properties.drawn import Drawn

pytestmark = pytest.mark.newest

ACTIVATIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}


def squash(name, alpha, beta):
    """Of those names that have arguments, as ONNX writes them down."""
    return {
        "Tanh": np.tanh,
        "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "Relu": lambda x: np.maximum(x, 0),
        "Affine": lambda x: alpha * x + beta,
        "LeakyRelu": lambda x: np.where(x < 0, alpha * x, x),
        "ScaledTanh": lambda x: alpha * np.tanh(beta * x),
        "HardSigmoid": lambda x: np.clip(alpha * x + beta, 0, 1),
        "Elu": lambda x: np.where(x < 0, alpha * np.expm1(x), x),
        "Softsign": lambda x: x / (1 + abs(x)),
        "Softplus": lambda x: np.logaddexp(0, x),
    }[name]


class Plain:
    """The operator in doubles: of doubles, batches first, and of nothing the CPU EP computes none."""

    def __init__(self, op, attrs):
        self.op, self.attrs = op, attrs
        self.direction = attrs.get("direction", "forward")
        count = 2 if self.direction == "bidirectional" else 1
        own = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}[op] * count
        names = attrs.get("activations", own)
        alphas, betas = (attrs.get(f"activation_{which}", [0.0] * len(names)) for which in ("alpha", "beta"))
        with_alpha = [n for n in names if n in ("Affine", "LeakyRelu", "ScaledTanh", "HardSigmoid", "Elu")]
        with_beta = [n for n in with_alpha if n not in ("LeakyRelu", "Elu")]
        alphas, betas = iter(alphas[: len(with_alpha)]), iter(betas[: len(with_beta)])
        made = []
        for name in names:
            alpha = next(alphas) if name in with_alpha else 0
            made.append(squash(name, alpha, next(betas) if name in with_beta else 0))
        each = ACTIVATIONS[op]
        self.squash = [made[i : i + each] for i in range(0, len(made), each)]

    def __call__(self, x, w, r, b=None, lengths=None, h=None, c=None, p=None):
        first = self.attrs.get("layout", 0)
        swap = lambda a: a.swapaxes(0, 1) if first else a
        x, (count, _, hidden) = swap(x).astype(np.float64), r.shape
        steps, batch, _ = x.shape
        h, c = (np.zeros((count, batch, hidden)) if a is None else swap(a).astype(np.float64) for a in (h, c))
        b = np.zeros((count, 2 * GATES[self.op] * hidden)) if b is None else b.astype(np.float64)
        p = np.zeros((count, 3 * hidden)) if p is None else p.astype(np.float64)
        lengths = [steps] * batch if lengths is None else lengths
        y, y_h, y_c = np.zeros((steps, count, batch, hidden)), np.zeros_like(h), np.zeros_like(c)
        for d in range(count):
            turned = self.direction == "reverse" or d == 1
            for s in range(batch):
                times = range(lengths[s])
                hs, cs = h[d, s], c[d, s]
                for t in reversed(times) if turned else times:
                    wx = w[d].astype(np.float64) @ x[t, s]
                    hs, cs = self.step(self.squash[d], wx, r[d].astype(np.float64), *np.split(b[d], 2), p[d], hs, cs)
                    y[t, d, s], y_h[d, s], y_c[d, s] = hs, hs, cs
        y = y.transpose(2, 0, 1, 3) if first else y
        return [a.astype(x.dtype) for a in (y, swap(y_h), swap(y_c))]

    def step(self, squash, wx, r, wb, rb, p, h, c):
        most = self.attrs.get("clip", np.inf)
        f, g = (lambda x, of=of: of(np.clip(x, -most, most)) for of in (squash[0], squash[min(1, len(squash) - 1)]))
        a = wx + wb
        if self.op == "RNN":
            return f(a + r @ h + rb), c
        if self.op == "GRU":
            size = len(h)
            z, s = np.split(f((a + r @ h + rb)[: 2 * size]), 2)
            r, rb, a = r[2 * size :], rb[2 * size :], a[2 * size :]
            last = s * (r @ h + rb) if self.attrs.get("linear_before_reset", 0) else r @ (s * h) + rb
            return (1 - z) * g(a + last) + z * h, c
        i, o, forget, cell = np.split(a + r @ h + rb, 4)
        pi, po, pf = np.split(p, 3)
        i = f(i + pi * c)
        kept = 1 - i if self.attrs.get("input_forget", 0) else f(forget + pf * c)
        c = kept * c + i * g(cell)
        return f(o + po * c) * squash[2](c), c


@pytest.mark.parametrize("op", list(GATES))
@given(st.data())
def test_recurrent(op, data):
    it = Drawn(data, op, since=7)
    layout = it.maybe(0, 1) if it.opset >= 14 else None
    steps, batch, size, hidden = (
        it.pick(2, 1, 3, 5, 0),
        it.pick(2, 1, 3, 9, 11, 0),
        it.pick(2, 1, 5, 0),
        it.pick(2, 1, 3, 8, 17),
    )
    direction = it.maybe("forward", "reverse", "bidirectional")
    kind = it.pick(*[name for name in it.sketch.types() if name != "bfloat16" or it.opset >= 22])
    count, rows = 2 if direction == "bidirectional" else 1, GATES[op] * hidden

    def small(*shape):  # numbers by which a state does not run away
        return it.tensor_of(it.sketch.draw.numpy.uniform(-0.5, 0.5, shape), kind)

    def maybe(make):
        return make() if it.pick(False, True) else None

    state = (batch, count, hidden) if layout else (count, batch, hidden)
    x = small(batch, steps, size) if layout else small(steps, batch, size)
    inputs = [x, small(count, rows, size), small(count, rows, hidden), maybe(lambda: small(count, 2 * rows))]
    inputs += [maybe(lambda: it.told(it.numbers(0, steps, batch), "int32")), maybe(lambda: small(*state))]
    attrs = {"direction": direction, "layout": layout, "hidden_size": hidden}
    if op == "LSTM":
        inputs += [maybe(lambda: small(*state)), maybe(lambda: small(count, 3 * hidden))]
        attrs["input_forget"] = it.maybe(0, 1)
    if op == "GRU":
        attrs["linear_before_reset"] = it.maybe(0, 1)
    attrs["clip"] = it.maybe(0.25, 2.0)
    if it.pick(False, True):
        names = st.sampled_from(BOUNDED + UNBOUNDED * (kind in ("float", "double")))
        total = count * ACTIVATIONS[op]
        attrs["activations"] = names = it(st.lists(names, min_size=total, max_size=total))
        attrs["activation_alpha"], attrs["activation_beta"] = ([it.pick(0.5, 0.25, 1.0) for _ in names] for _ in "ab")
    attrs = {key: value for key, value in attrs.items() if value is not None}
    wanted = [it.pick(True, False) for _ in range(3 if op == "LSTM" else 2)]
    if not any(wanted):
        wanted[0] = True
    plain = Plain(op, attrs)
    alone = layout == 1 or kind == "double" or 0 in (steps, batch, size)
    reference = lambda *arrays: [made for made, want in zip(plain(*arrays), wanted) if want]
    it.agrees(*inputs, wanted=wanted, reference=reference if alone else None, **attrs)
