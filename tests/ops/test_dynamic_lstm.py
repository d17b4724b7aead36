"""DynamicQuantizeLSTM: an LSTM whose weights have 8 bits, and whose inputs and states are quantized as they come."""

import numpy as np
import pytest
from encore_session import CPU_CLIPS_BYTES
from harness import Case, Const, check, floats, integers
from refusal import fails

MICROSOFT = "com.microsoft"
DIRECTIONS = ["forward", "reverse", "bidirectional"]


def case(
    dtype="int8",
    steps=5,
    batch=3,
    size=4,
    hidden=6,
    direction="forward",
    channels=False,
    constant=True,
    without=(),
    **rest,
):
    attrs = {"hidden_size": hidden, "direction": direction, **rest.pop("attrs", {})}
    count, rows = 2 if direction == "bidirectional" else 1, 4 * hidden
    each = (count, rows) if channels else (count,)

    def zero():
        # For channels the CPU EP wants but one.
        return np.full(each, 0 if dtype == "int8" and channels else 3, dtype)

    def scale():
        return floats(*each, low=0.003, high=0.006)

    small = lambda *shape: floats(*shape, low=-0.6, high=0.6)
    lengths = rest.pop("lengths", None)
    most = 60 if CPU_CLIPS_BYTES else 100
    low, high = (-most, most) if dtype == "int8" else (0, 60)
    weights = [integers(dtype, count, depth, rows, low=low, high=high) for depth in (size, hidden)]
    inputs = [
        floats(steps, batch, size),
        *weights,
        small(count, 2 * rows),
        None if lengths is None else Const(np.array(lengths, np.int32)),
        small(count, batch, hidden),
        small(count, batch, hidden),
        small(count, 3 * hidden),
        scale(),
        zero(),
        scale(),
        zero(),
    ]
    inputs = [None if i in without else x for i, x in enumerate(inputs)]
    if constant:
        inputs = [Const(x) if i in (1, 2, 3, 7, 8, 9, 10, 11) and x is not None else x for i, x in enumerate(inputs)]
    name = "-".join(
        filter(None, [rest.pop("name", ""), dtype, direction, "channels" * channels, "constant" * constant])
    )
    rest = {"outputs": 3, "family": "in bytes", **rest}
    return Case("DynamicQuantizeLSTM", inputs, attrs, domain=MICROSOFT, name=name, **rest)


CASES = [
    *[
        case(dtype, direction=direction, channels=channels, constant=constant)
        for dtype in ("int8", "uint8")
        for direction in DIRECTIONS
        for channels in (False, True)
        for constant in (False, True)
    ],
    case(without=(3, 5, 6, 7), name="bare"),
    case(without=(5,), name="only-c"),
    case(lengths=[5, 5, 5], name="lengths"),
    case(batch=12, direction="bidirectional", name="many"),
    case(batch=1, steps=20, size=40, hidden=64, name="large"),
    case(batch=17, steps=3, size=33, hidden=20, channels=True, name="odd", misaligned=True),
    case(attrs={"input_forget": 1}, name="coupled"),
    case(attrs={"clip": 0.4}, name="clipped"),
    case(attrs={"activations": ["HardSigmoid", "Relu", "Softsign"]}, name="activations"),
    # What is quantized here is the same to the last bit.
    *[
        case(steps=1, direction=d, batch=b, name=f"single-{b}", tolerance=(1e-5, 1e-5))
        for d in DIRECTIONS
        for b in (3, 9)
    ],
    case(outputs=[False, True, False], name="end"),
]


@pytest.mark.parametrize("made", CASES, ids=str)
def test_dynamic_quantize_lstm(made):
    check(made)


def test_sequences_of_other_lengths():
    """Each as if it were alone, but for the scale of the states that they share."""
    check(case(lengths=[2, 5, 0], without=(3, 6, 7), name="ends"))


@pytest.mark.parametrize(
    "place,shape,words", [(1, (1, 4, 23), "W has shape"), (8, (2,), "W's scale"), (11, (1, 5), "R's scale or zero")]
)
def test_what_does_not_fit(place, shape, words):
    made = case(constant=False)
    made.inputs[place] = np.ones(shape, made.inputs[place].dtype)
    fails("DynamicQuantizeLSTM", made.inputs, made.attrs, words, outputs=3, domain=MICROSOFT)
