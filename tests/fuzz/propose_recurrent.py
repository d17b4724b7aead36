"""LSTM, GRU and RNN."""

from proposals import proposes

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
BOUNDED = "Tanh Sigmoid ScaledTanh HardSigmoid Softsign".split()
UNBOUNDED = "Relu Affine LeakyRelu Elu Softplus".split()  # by which halves run away


def _small(s, kind, shape):
    """Numbers by which a state does not run away."""
    return s.new(s.draw.numpy.uniform(-0.5, 0.5, shape), kind, constant=0.5)


# Some activations let a state grow, and its errors too.
NEAR = {"float": (1e-4, 1e-4), "float16": (2e-2, 2e-2), "bfloat16": (1e-1, 1e-1)}


# The CPU EP has batches first in no version.
@proposes("LSTM", "GRU", "RNN", family="recurrent", mild=True, tolerance=NEAR)
def recurrent(s):
    steps, batch, size, hidden = (s.draw.number(1, most) for most in (5, 11, 9, 17))
    x = s.data(shape=[steps, batch, size], mild=True)
    direction = s.draw.pick(["forward", "forward", "reverse", "bidirectional"])
    count, rows = 2 if direction == "bidirectional" else 1, GATES[s.op] * hidden
    small = lambda *shape: _small(s, x.type, shape)
    lengths = s.maybe(0.3, lambda: s.fixed([s.draw.number(0, steps) for _ in range(batch)], "int32"))
    inputs = [x, small(count, rows, size), small(count, rows, hidden)]
    inputs += [s.maybe(0.7, lambda: small(count, 2 * rows)), lengths]
    inputs += [s.maybe(0.5, lambda: small(count, batch, hidden))]
    attrs = {"direction": s.maybe(direction != "forward" or 0.5, lambda: direction), "hidden_size": hidden}
    if s.op == "LSTM":
        inputs += [s.maybe(0.5, lambda: small(count, batch, hidden)), s.maybe(0.3, lambda: small(count, 3 * hidden))]
        attrs["input_forget"] = s.maybe(0.2, lambda: s.draw.pick([0, 1]))
    if s.op == "GRU" and s.opset >= 3:
        attrs["linear_before_reset"] = s.maybe(0.5, lambda: s.draw.pick([0, 1]))
    attrs["clip"] = s.maybe(0.2, lambda: abs(s.draw.real()) + 0.01)
    if s.draw.chance(0.3):
        known = BOUNDED + UNBOUNDED * (x.type in ("float", "double"))
        names = s.draw.picks(known, count * {"RNN": 1, "GRU": 2, "LSTM": 3}[s.op])
        attrs["activations"] = names
        attrs["activation_alpha"] = [abs(s.draw.real()) / 2 for _ in names]
        attrs["activation_beta"] = [s.draw.real() / 2 for _ in names]
    wanted = [s.draw.chance(0.7) for _ in range(3 if s.op == "LSTM" else 2)]
    if not any(wanted):
        wanted[0] = True
    return s.node(*inputs, wanted=wanted, **attrs)
