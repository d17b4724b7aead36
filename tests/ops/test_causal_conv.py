import pytest
from harness import Case, check, floats
from refusal import declined, fails

TYPES = ["float32", "float16", "bfloat16"]


def conv(batch, channels, length, kernel, *, bias=True, past=True, dtype="float32", activation=None, **rest):
    given = [
        floats(batch, channels, length),
        floats(channels, 1, kernel),
        floats(channels) if bias else None,
        floats(batch, channels, kernel - 1) if past else None,
    ]
    while given[-1] is None:
        given.pop()
    attrs = {"activation": activation} if activation else {}
    return Case("CausalConvWithState", given, attrs, dtype, 2, "matmul", opset=27, name=activation or "", **rest)


CASES = [
    *[conv(2, 5, 17, 4, dtype=t, activation=how) for t in TYPES for how in ("silu", "swish", "none")],
    *[conv(2, 3, 9, 4, bias=bias, past=past) for bias in (True, False) for past in (True, False)],
    conv(1, 2048, 1, 4, dtype="float16", activation="silu"),
    conv(3, 700, 130, 4, dtype="bfloat16"),
    conv(2, 3, 2, 6),
    conv(2, 3, 5, 1, past=False),
    conv(2, 3, 0, 3, reference=lambda x, w, bias, past: [x, past]),  # which the CPU EP's Conv refuses
    conv(0, 3, 5, 3),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_causal_conv(case):
    check(case)


def test_causal_conv_refuses():
    x, w = floats(2, 3, 5), floats(3, 1, 4)
    declined("CausalConvWithState", [x, w], {"activation": "relu"}, opset=27, outputs=2)
    for inputs, words in [
        ([x, floats(3, 2, 4)], "weight"),
        ([x, floats(2, 1, 4)], "weight"),
        ([x, floats(3, 1, 0)], "weight"),
        ([x, w, floats(2)], "bias"),
        ([x, w, floats(3), floats(2, 3, 4)], "past_state"),
        ([floats(2, 15), w], "input"),
    ]:
        fails("CausalConvWithState", inputs, {}, words, opset=27, outputs=2, ranks=False)
