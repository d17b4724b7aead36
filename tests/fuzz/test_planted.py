"""Faults are planted where a difference from the CPU EP is accepted, and the fuzzer finds them."""

import compare
import compose
import floor
import fuzz
import numpy as np
import onnxruntime as ort
import propose_flow
import pytest
import trial
from accepted import DECLINED, SHAPE, VALUES
from draw import Draw
from encore_session import ORT_VERSION, only_if
from proposals import MICROSOFT
from reasons import ACCEPTED
from sketch import Sketch

# Composing a case asks the CPU EP, which before 1.30 does not survive some.
needs_a_sturdy_reference = only_if(ORT_VERSION >= (1, 30))
needs_every_operator = only_if(ORT_VERSION >= (1, 32))
TYPES = {"float32": "float", "float64": "double"}


@pytest.fixture
def plant(monkeypatch):
    """plant(spoil): from here on each of a case's arrays is what spoil(array) makes of Encore's."""

    def spoiled(right, spoil):
        return lambda *args: {name: spoil(array.copy()) for name, array in right(*args).items()}

    def use(spoil):
        for way in ("run", "run_bound"):
            monkeypatch.setattr(trial._Session, way, spoiled(getattr(trial._Session, way), spoil))

    return use


def at(*place):
    """Spoils one element of what has a place for it."""

    def spoil(array):
        if array.ndim == len(place) and array.dtype.kind == "f":
            array[place] = array[place] * 1.5 + 1
        return array

    return spoil


def all_nan(array):
    return np.full_like(array, np.nan) if array.dtype.kind == "f" else array


# ---- NaN from nowhere

OF_INTEGERS = set(
    "ArgMax ArgMin ConvInteger DynamicQuantizeLinear MatMulInteger QuantizeLinear QLinearConv QLinearMatMul QLinearAdd "
    "QLinearMul QLinearSigmoid QLinearSoftmax QLinearAveragePool".split()
)
FORGIVEN = {name for entry in ACCEPTED if entry.kind == VALUES and not entry.drawn for name in entry.operators.split()}
NOT_COMPARED = {("com.microsoft", "SwiGLU")}  # the CPU EP has ONNX's alone
MAKE_FLOATS = [key for key in compose.NAMES if key[1] in FORGIVEN - OF_INTEGERS and key not in NOT_COMPARED]


def sound_case(key, seed):
    """A node alone, that nobody made hostile."""
    draw = Draw(seed)
    sketch = Sketch(draw, compose.opset_for(draw, draw.pick(compose.ROWS[key]), key), alone=True)
    sketch.domain, sketch.op = key
    sketch.row = compose.row_of(key, sketch.opset)
    return compose.case_of(sketch, compose.PROPOSALS[key].propose(sketch))


def finite_case(key):
    """Of finite numbers, which make finite numbers."""
    for case in (sound_case(key, seed) for seed in range(100)):
        arrays = [value.array for value in case.feeds() + case.constants() + case.made()]
        if not case.known or case.refused or not all(np.all(np.abs(array) < 1e4) for array in arrays):
            continue
        if any(value.array.dtype.kind == "f" and value.array.size for value in case.made()):
            outcome = trial.try_case(case)
            assert outcome.finding is None
            if key in outcome.ran:
                return case
    raise AssertionError("all have something that is not finite")


@needs_every_operator
@pytest.mark.parametrize("key", MAKE_FLOATS, ids=".".join)
def test_nan_is_excused_by_nobody(key, plant):
    case = finite_case(key)
    plant(all_nan)
    finding = trial.try_case(case).finding
    assert finding and finding.kind == VALUES


# ---- one element, beside those that are excused


def made_case(op, *inputs, domain="", opset=20, wanted=1, types=None, **attrs):
    """A node of these arrays, or pairs of arrays and types, which runs eagerly and once."""
    sketch = Sketch(Draw(1), opset, alone=True)
    sketch.domain, sketch.op = domain, op
    sketch.row = compose.row_of((domain, op), opset)
    of_type = lambda x: x if isinstance(x, tuple) else (x, TYPES.get(x.dtype.name, x.dtype.name))
    values = [x if x is None else sketch.new(*of_type(x)) for x in inputs]
    case = compose.case_of(sketch, sketch.node(*values, wanted=wanted, types=types, **attrs))
    assert case.known and not case.refused, case.refused
    return plain(case)


def plain(case):
    case.bound = case.graphs = case.hidden = False
    case.level, case.extra = trial.NO_LEVEL, []
    return case


def numbers(*shape):
    return np.random.default_rng(5).uniform(-2, 2, shape).astype(np.float32)


def with_nan(array, *places):
    for place in places:
        array[place] = np.nan
    return array


def prompt():
    """Of the second batch the last three rows are padding."""
    rows = [numbers(2, 8, 32) for _ in range(3)]
    lengths = np.array([7, 4], np.int32), np.array(8, np.int32)
    return made_case("GroupQueryAttention", *rows, None, None, *lengths, domain=MICROSOFT, num_heads=2, kv_num_heads=2)


def decode_step():
    step, cache = [numbers(1, 1, 16) for _ in range(3)], [numbers(1, 2, 5, 8) for _ in range(2)]
    past = np.array([3], np.int32)
    told = {"num_heads": 2, "past_present_share_buffer": 1, "wanted": 3, "types": [None] * 3}
    return made_case("DecoderMaskedMultiHeadAttention", *step, None, None, *cache, past, domain=MICROSOFT, **told)


def experts():
    draw = np.random.default_rng(5)
    layers = [draw.integers(0, 256, (4, 16, 16), np.uint8), numbers(4, 16) / 64] * 2
    inputs = [numbers(3, 16), numbers(3, 4), layers[0], abs(layers[1]), None, layers[2], abs(layers[3])]
    told = {"k": 2, "expert_weight_bits": 8, "weights_prepacked": 0, "activation_type": "silu"}
    return made_case("QMoE", *inputs, domain=MICROSOFT, normalize_routing_weights=0, **told)


def taps_on_the_edge():
    """Of the first place of each channel alone: its tap is moved on the edge."""
    offset = np.zeros((1, 2, 4, 4), np.float32)
    offset[:, 0, 0, 0] = -1
    return made_case("DeformConv", numbers(1, 2, 4, 4), numbers(3, 2, 1, 1), offset, kernel_shape=[1, 1])


def rows_with_a_large_number():
    x = numbers(3, 8)
    x[0, 0] = 1e5
    return made_case("LayerNormalization", x, numbers(8), numbers(8))


def recurrence_without_factors():
    inputs = numbers(3, 2, 4), numbers(1, 5, 4), numbers(1, 5, 5)
    return made_case("RNN", *inputs, hidden_size=5, activations=["ScaledTanh"])


def regions():
    rois = np.array([[0, 0, 0, 3, 3], [1, 0, 0, 3, 3]], np.float32)
    image = with_nan(numbers(2, 1, 4, 4), (0, 0, 1, 1))
    return made_case("MaxRoiPool", image, rois, pooled_shape=[1, 1])


def length_beyond_its_total():
    step, cache = [numbers(1, 1, 32) for _ in range(3)], [numbers(1, 2, 8, 16) for _ in range(2)]
    told = {"num_heads": 2, "kv_num_heads": 2, "wanted": 3, "types": [None] * 3}
    lengths = np.array([6], np.int32), np.array(1, np.int32)
    return made_case("GroupQueryAttention", *step, *cache, *lengths, domain=MICROSOFT, **told)


def crop():
    roi = np.array([0, 0, 0.1, 0, 1, 1, 0.8, 1], np.float32)
    told = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    return made_case("Resize", numbers(1, 1, 4, 6), roi, None, np.array([1, 1, 4, 3]), **told)


def crop_to_an_edge():
    roi = np.array([0, 0, -0.2, 0.1, 1, 1, 1, 1], np.float32)
    told = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    return made_case("Resize", numbers(1, 1, 9, 13), roi, None, np.array([1, 1, 20, 13]), **told)


def clipped_nan():
    told = {"activation": "Clip", "activation_params": [-1.0, 2.0], "domain": MICROSOFT}
    return made_case("FusedConv", with_nan(numbers(1, 1, 8), (0, 0, 1)), numbers(1, 1, 2), **told)


# How a difference comes about that is accepted, a place that is excused if there is one, and one that is not.
PLANTED = {
    "Hardmax": (
        lambda: made_case("Hardmax", with_nan(numbers(3, 4), (0, 1)), axis=-1),
        (0, 3),
        (1, 3),
    ),
    "MaxPool": (
        lambda: made_case("MaxPool", with_nan(numbers(1, 1, 8), (0, 0, 1)), kernel_shape=[2]),
        None,
        (0, 0, 5),
    ),
    "FusedConv": (clipped_nan, None, (0, 0, 5)),
    "LayerNormalization": (rows_with_a_large_number, None, (1, 3)),
    "MaxRoiPool": (regions, None, (1, 0, 0, 0)),
    "LRN": (lambda: made_case("LRN", numbers(1, 6, 2, 2) * 3000, size=3), None, (0, 2, 1, 1)),
    "GroupQueryAttention": (prompt, (1, 6, 3), (1, 4, 3)),
    "DecoderMaskedMultiHeadAttention": (decode_step, None, (0, 0, 3)),
    "DecoderMaskedMultiHeadAttention, keys": (decode_step, None, (0, 1, 0, 3)),
    "GroupQueryAttention, total": (length_beyond_its_total, None, (0, 0, 3)),
    "QMoE": (experts, None, (1, 5)),
    "RNN": (recurrence_without_factors, None, (2, 0, 1, 3)),
    "Resize": (crop, None, (0, 0, 1, 1)),
    "Resize, at an edge": (crop_to_an_edge, None, (0, 0, 19, 3)),
    "DeformConv": (taps_on_the_edge, (0, 1, 0, 0), (0, 1, 2, 2)),
    "Inverse": (
        lambda: made_case(
            "Inverse", np.stack([np.ones((2, 2)) + np.eye(2) / 1e4, np.eye(2)]).astype(np.float32), domain=MICROSOFT
        ),
        (0, 1, 1),
        (1, 0, 0),
    ),
    "Softmax": (
        lambda: made_case("Softmax", with_nan(numbers(3, 4), (2, 0))),
        None,
        (1, 3),
    ),
    "GroupNormalization": (
        lambda: made_case("GroupNormalization", numbers(1, 4, 9), numbers(4), numbers(4), opset=21, num_groups=2),
        None,
        (0, 1, 1),
    ),
    "GRU": (
        lambda: made_case(
            "GRU", *[(numbers(*shape) / 4, "float16") for shape in ((2, 3, 4), (1, 15, 4), (1, 15, 5))], hidden_size=5
        ),
        None,
        (1, 0, 2, 4),
    ),
    "MoE": (
        lambda: made_case(
            "MoE",
            *[(numbers(*shape), "bfloat16") for shape in ((3, 4), (3, 2), (2, 5, 4))],
            None,
            (numbers(2, 4, 5), "bfloat16"),
            domain=MICROSOFT,
            activation_type="silu",
        ),
        None,
        (1, 3),
    ),
    "ReduceLogSum": (lambda: made_case("ReduceLogSum", abs(numbers(3, 4)), opset=13, axes=[1], keepdims=0), None, (1,)),
}


@needs_a_sturdy_reference
@pytest.mark.parametrize("name", PLANTED)
def test_what_nothing_excuses_is_found(name, plant):
    make, _, not_excused = PLANTED[name]
    assert trial.try_case(make()).finding is None
    plant(at(*not_excused))
    finding = trial.try_case(make()).finding
    assert finding and finding.kind == VALUES


@needs_a_sturdy_reference
@pytest.mark.parametrize("name", [name for name, (_, excused, _) in PLANTED.items() if excused])
def test_what_is_excused_is_accepted(name, plant):
    make, excused, _ = PLANTED[name]
    plant(at(*excused))
    outcome = trial.try_case(make())
    assert outcome.finding is None and outcome.accepted


@needs_a_sturdy_reference
def test_nan_is_found_beside_a_large_number(plant):
    plant(lambda array: with_nan(array, *[(1, 3)] * (array.shape == (3, 8))))
    finding = trial.try_case(rows_with_a_large_number()).finding
    assert finding and finding.difference.stray[1, 3]


@needs_a_sturdy_reference
@pytest.mark.parametrize("row", [0, 1])
def test_the_logarithm_of_what_cancels_out_may_be_nan(row, plant):
    x = np.array([[1, 1e-9, -1], [1, 2, 3]], np.float32)
    plant(lambda array: with_nan(array, *[(row, 0)] * (array.shape == (2, 1))))
    finding = trial.try_case(made_case("ReduceLogSum", x, opset=13, axes=[1])).finding
    assert (finding is None) == (row == 0)


@needs_a_sturdy_reference
def test_a_second_output_is_looked_at_behind_one_that_is_excused(plant):
    def spoil(array):
        return array + 1 if array.dtype == np.int64 else array

    make = lambda: made_case(
        "MaxPool", with_nan(numbers(1, 1, 8), (0, 0, 1)), kernel_shape=[2], types=[None, "int64"], wanted=2
    )
    assert trial.try_case(make()).accepted
    plant(spoil)
    assert trial.try_case(make()).finding


@needs_a_sturdy_reference
def test_terms_are_as_large_whatever_the_sign_of_their_sum():
    a, b = np.array([[4e3, -4e3, 1e-3]], np.float32), np.array([[1.1], [1.1], [1]], np.float32)
    make = lambda alpha: made_case("FusedMatMul", a, b, domain=MICROSOFT, alpha=alpha)
    for alpha in (1.0, -1.0):
        (reference,) = make(alpha).references
        arrays = {value.name: value.array for value in make(alpha).feeds() + make(alpha).constants()}
        wanted = reference(arrays)[0]
        assert not compare._wrong(reference, arrays, 0, wanted + np.float32(1e-2), wanted).any()


class Chain:
    """Of nodes that read what was made before."""

    def __init__(self):
        self.sketch = Sketch(Draw(1), 20, alone=False)
        self.new = self.sketch.new
        self.case = None

    def add(self, op, *inputs, domain="", **told):
        sketch = self.sketch
        sketch.domain, sketch.op, sketch.row = domain, op, compose.row_of((domain, op), sketch.opset)
        node = sketch.node(*inputs, **told)
        if self.case is None:
            self.case = plain(compose.case_of(sketch, node))
        else:
            assert compose._take(self.case, sketch, node)
        assert self.case.known and not self.case.refused, self.case.refused
        return node.outputs[0]


# ---- sizes


@needs_a_sturdy_reference
def test_sizes_may_depend_on_last_digits(monkeypatch):
    """The CPU EP's Selu of a number near zero is zero."""
    chain = Chain()
    selu = chain.add("Selu", chain.new(np.array([-1e-9, -1, -1]), "float"))
    places = chain.add("NonZero", selu, types=["int64"])
    assert places.array.shape == (1, 2)
    chain.add("Sub", places, chain.new(np.array([5, 6]), "int64"))
    case = chain.case
    outcome = trial.try_case(case)
    assert outcome.finding is None and outcome.accepted == ["a size depends on values, of which the last digits differ"]
    monkeypatch.setattr(trial, "reason_for", lambda finding: None)
    finding = trial.try_case(case).finding
    assert finding.kind == SHAPE and finding.node.op == "NonZero"


@needs_a_sturdy_reference
@pytest.mark.parametrize("inferred", [True, False])
def test_an_if_whose_shape_onnxruntime_infers_wrongly(inferred):
    """onnxruntime takes Attention's heads for empty if it doesn't know how many numbers the bias has, and makes room
    for an If's output by that; the CPU EP can't tell, as it has no Elu of doubles."""
    chain = Chain()
    chain.add("Elu", chain.new(numbers(3), "double"))
    inputs = [chain.new(numbers(*shape), "float") for shape in ((2, 2, 3), (3, 30), (30,))]
    for value in inputs:
        value.dims = list(value.array.shape)
    if inferred:
        inputs[2].dims = ["b"]
    made = chain.add("Attention", *inputs, domain=MICROSOFT, num_heads=2)
    branch = propose_flow._body("branch", [("Neg", [made.name], ["y"])], [], [("y", "float")])
    condition = chain.new(np.array(True), "bool", fixed=True)
    chain.add("If", condition, types=["float"], captured=[made], then_branch=branch, else_branch=branch)
    session = trial._Session(chain.case, chain.case.made())
    assert session.infers_wrong_shapes() == inferred
    assert trial.try_case(chain.case).finding is None


# ---- types


@needs_a_sturdy_reference
def test_a_chain_goes_on_with_the_type_that_a_hostile_node_makes(monkeypatch):
    chain = Chain()
    drawn = chain.add("RandomNormal", types=["float16"], shape=[2, 3], mean=1.5, scale=1e-30)  # without its type
    chain.add("Neg", drawn)
    outcome = trial.try_case(chain.case)
    assert outcome.finding is None and set(outcome.accepted) == {"a hostile node has another type"}
    monkeypatch.setattr(trial, "reason_for", lambda finding: None)
    finding = trial.try_case(chain.case).finding
    assert finding.kind == SHAPE and finding.node.op == "RandomNormal"


# ---- what did not run on Encore


@needs_a_sturdy_reference
def test_a_lost_claim_is_found(monkeypatch):
    def place(*args, **more):
        make(*args, **more)
        args[0].placed = {name: "CPUExecutionProvider" for name in args[0].placed}

    make = trial._Session.__init__
    monkeypatch.setattr(trial._Session, "__init__", place)
    finding = trial.try_case(made_case("Relu", numbers(4))).finding
    assert finding and finding.kind == DECLINED and "Encore does not say why" in finding.text


@needs_a_sturdy_reference
def test_a_lost_claim_is_found_where_the_cpu_has_no_kernel(monkeypatch):
    case = made_case("Sin", (numbers(4), "bfloat16"), opset=22)
    on_cpu = lambda model, options, **_: ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    monkeypatch.setattr(trial.encore_session, "make_session", on_cpu)
    finding = trial.try_case(case).finding
    assert finding and finding.kind == DECLINED and "the CPU EP has no kernel" in finding.text


@needs_a_sturdy_reference
def test_a_declined_node_reads_new_contents_of_what_is_bound():
    case = made_case("MaxPool", numbers(2, 3, 4), kernel_shape=[1], strides=[2**62])
    session = trial._Session(case, case.made())
    (x,), (y,) = case.feeds(), case.made()
    session.bind({x.name: x.array}, {y.name: y.array})
    for array in (x.array, -x.array):
        np.testing.assert_array_equal(session.run_bound({x.name: array})[y.name], array[..., :1])


@needs_a_sturdy_reference
def test_a_declined_node_is_found_with_its_reason(monkeypatch):
    make = lambda: made_case(
        "ScatterElements", numbers(4), np.zeros(1, np.int64), numbers(1), opset=16, reduction="nonsense"
    )
    outcome = trial.try_case(make())
    assert outcome.accepted == ["a word that the attribute doesn't have"]
    monkeypatch.setattr(trial, "reason_for", lambda finding: None)
    finding = trial.try_case(make()).finding
    assert finding.kind == DECLINED and "reduction is 'nonsense'" in finding.text


CHILD = """
import sys
first, count = map(int, sys.argv[2:])
for number in range(first, first + count):
    print("case", number)
    print("ran :Relu com.microsoft:QMoE")
    print("nodes 2 2", flush=True)
print("end", flush=True)
"""


def test_an_operator_that_never_runs_is_found(monkeypatch, tmp_path, capsys):
    (tmp_path / "fuzz.py").write_text(CHILD)
    monkeypatch.setattr(fuzz, "HERE", tmp_path)
    monkeypatch.setattr(floor, "CASES", fuzz.BATCH)
    assert fuzz.Campaign(seed=5, seconds=60, jobs=1, cases=fuzz.BATCH).run() == 1
    said = capsys.readouterr().out
    assert "too few cases on Encore: TopK ran 0 times" in said
    assert "Encore: Relu " not in said and "QMoE" not in said
