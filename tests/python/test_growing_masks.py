"""Masks that grow with each token: one graph serves many lengths (auto_graph), with the results of eager runs, to the
bit; and where a mask's length matters, nothing is longer than it is."""

import encore_session as es
import language_zoo
import numpy as np
import onnxruntime_ep_encore
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_language_models import NUMPY, bind_caches, caches, clear

pytestmark = pytest.mark.core

CAPACITY = 400
VOCABULARY = 512
SEED = 60


def report(session):
    (region,) = onnxruntime_ep_encore.region_report(session)
    return region


def load(name, kind):
    """With angles for as many positions as there are in the caches."""
    model = language_zoo.load(name, kind, SEED)
    for tensor in model.graph.initializer:
        if tensor.name in language_zoo.TABLES:
            dims = (CAPACITY, tensor.dims[1])
            values = language_zoo.table(tensor.name, dims, 10000.0).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return model


class Sequences:
    """Generates as onnxruntime-genai does: caches in place, at their full length, and a mask of all tokens so far,
    which is another one each time. All else of a step stays where it is."""

    def __init__(self, session, model, batch=1, capacity=CAPACITY):
        self.session, self.batch = session, batch
        self.caches = caches(session, language_zoo.cache_shapes(model, batch, capacity))
        self.logits = NUMPY[session.get_outputs()[0].type]
        self.step = self._bound(np.zeros((batch, 1), np.int64))
        clear(self.caches)

    def _bound(self, ids):
        run = es.Bound(self.session, {"input_ids": ids}, {"logits": ((*ids.shape, VOCABULARY), self.logits)})
        bind_caches(run, self.caches)
        return run

    def run(self, ids, mask):
        ids, mask = ids.astype(np.int64), es.on_device(mask.astype(np.int64))
        run = self.step if ids.shape[1] == 1 else self._bound(ids)
        run.binding.bind_ortvalue_input("attention_mask", mask)
        return run.run({"input_ids": ids})["logits"]


def tokens(batch, count, seed=0):
    return np.random.default_rng(seed).integers(3, VOCABULARY, (batch, count))


def generate(sequences, prompt, steps):
    """The logits of a prompt, which is padded in front where rows are shorter, and of tokens behind it."""
    ids, lengths = tokens(sequences.batch, prompt + steps), prompt - np.arange(sequences.batch) % prompt
    mask = np.arange(prompt + steps) >= prompt - lengths[:, None]
    yield sequences.run(ids[:, :prompt], mask[:, :prompt])
    for end in range(prompt + 1, prompt + steps + 1):
        yield sequences.run(ids[:, end - 1 : end], mask[:, :end])


def same(got, wanted):
    assert got.tobytes() == wanted.tobytes()


def agree(some, others):
    for got, wanted in zip(some, others, strict=True):
        same(got, wanted)


@pytest.fixture(scope="module")
def llama():
    return load("llama", "f16")


@pytest.mark.parametrize(
    "name, kind, batch, steps",
    [("llama", "f16", 1, 330), ("gptoss", "f16", 1, 60), ("llama", "f16", 2, 60)],
)
def test_few_graphs_serve_all_lengths(encore, name, kind, batch, steps):
    model = load(name, kind)
    session, eager = (es.make_session(model, regions=1, auto_graph=auto) for auto in (1, 0))
    agree(generate(Sequences(session, model, batch), 7, steps), generate(Sequences(eager, model, batch), 7, steps))
    told = report(session)
    lengths = [256, CAPACITY] if steps > 256 else [256]
    assert told["lengths"] == {"total_sequence_length": lengths}
    assert told["first_runs"] == 2 + len(lengths)  # the prompt, and one from before the mask was seen to grow
    assert told["captures"] <= len(lengths) + 1 and told["refusal"] == "", told
    assert told["replays"] >= steps - 2 * len(lengths) - 3 and told["eager"] == 0, told
    assert "attention_mask[1]" in told["changing"]
    assert report(eager)["grown"] == 0


@pytest.mark.parametrize(
    "name, kind", [("llama", "int4"), ("llama", "cache_int8"), ("gptoss", "int4"), ("qwen", "f16")]
)
def test_of_other_models(encore, name, kind):
    model = load(name, kind)
    session, eager = (es.make_session(model, regions=1, auto_graph=auto) for auto in (1, 0))
    agree(generate(Sequences(session, model), 7, 20), generate(Sequences(eager, model), 7, 20))
    assert report(session)["replays"] > 10


def test_another_sequence_needs_no_other_graphs(encore, llama):
    session, eager = (es.make_session(llama, regions=1, auto_graph=auto) for auto in (1, 0))
    sequences = Sequences(session, llama)
    for prompt in (7, 40, 7):
        clear(sequences.caches)
        agree(generate(sequences, prompt, 20), generate(Sequences(eager, llama), prompt, 20))
    assert report(session)["lengths"] == {"total_sequence_length": [256]}
    # Prompts are of their own length.
    assert report(session)["keys"] == 4


def test_arrays(encore, llama):
    """Whose caches come from the host and go there, at their full length."""
    session, eager = (es.make_session(llama, regions=1, auto_graph=auto) for auto in (1, 0))
    shapes = language_zoo.cache_shapes(llama, 1, 64)
    states = [{name: np.zeros(shape, np.float16) for name, shape in shapes.items()} for _ in range(2)]
    ids = tokens(1, 40)
    names = [output.name for output in session.get_outputs()]
    for end in range(1, 40):
        made = []
        for state, one in zip(states, (session, eager)):
            feeds = {"input_ids": ids[:, end - 1 : end], "attention_mask": np.ones((1, end), np.int64)}
            outputs = dict(zip(names, one.run(names, feeds | state), strict=True))
            state |= {name: outputs[name.replace("past_key_values", "present")] for name in shapes}
            made.append(outputs)
        agree(made[0].values(), made[1].values())
    told = report(session)
    assert told["lengths"] == {"total_sequence_length": [64]} and told["replays"] > 30, told


def test_threads(encore, llama):
    session, eager = (es.make_session(llama, regions=1, auto_graph=auto) for auto in (1, 0))
    wanted = list(generate(Sequences(eager, llama), 7, 40))

    def work(number):
        for _ in range(2):
            agree(generate(Sequences(session, llama), 7, 40), wanted)

    es.in_threads(2, work)
    assert report(session)["replays"] > 60


def test_a_past_that_grows_is_as_it_is(encore, llama):
    """The present is as long as the mask then."""
    session, eager = (es.make_session(llama, regions=1, auto_graph=auto) for auto in (1, 0))
    for length in (4, 5, 6, 7):
        shapes = language_zoo.cache_shapes(llama, 1, length - 1)
        feeds = {name: np.ones(shape, np.float16) for name, shape in shapes.items()}
        feeds |= {"input_ids": tokens(1, 1), "attention_mask": np.ones((1, length), np.int64)}
        agree(session.run(None, feeds), eager.run(None, feeds))
    assert report(session)["grown"] == 0 and report(session)["keys"] == 4


def test_several_tokens_at_once(encore, llama):
    """As drafts that are checked: new ones are fewer than all."""
    session, eager = (es.make_session(llama, regions=1, auto_graph=auto) for auto in (1, 0))
    some, others = Sequences(session, llama), Sequences(eager, llama)
    ids = tokens(1, 64)
    for end in range(4, 64, 4):
        mask = np.ones((1, end))
        same(some.run(ids[:, end - 4 : end], mask), others.run(ids[:, end - 4 : end], mask))
    assert report(session)["lengths"] == {"total_sequence_length": [256]}
    assert report(session)["replays"] > 8


def test_it_can_be_switched_off(encore, llama):
    session = es.make_session(llama, regions=1, auto_graph=1, pad="off")
    list(generate(Sequences(session, llama), 7, 10))
    assert report(session)["grown"] == 0 and report(session)["keys"] == 11


@pytest.mark.parametrize("options", [{"regions": 0}, {"enable_cuda_graph": 1}])
def test_without_automatic_graphs(encore, llama, options):
    session, eager = es.make_session(llama, **options), es.make_session(llama, regions=1, auto_graph=0)
    ids, mask = tokens(1, 7), np.ones((1, 7))
    same(Sequences(session, llama).run(ids, mask), Sequences(eager, llama).run(ids, mask))


# ---- small models, of which some have lengths that matter


def of_mask(make_model, steps, made, kind=TensorProto.INT64):
    """Steps as (operator, inputs, output, attributes) to y, and another one, so that there is a region."""
    nodes = [helper.make_node(op, ins, [out], out, **attributes) for op, ins, out, attributes in steps]
    nodes.append(helper.make_node("Neg", ["y"], ["z"], "negative"))
    constants = [numpy_helper.from_array(np.array(value), name) for name, value in (("one", [1]), ("at", 1))]
    return make_model(nodes, {"mask": (["batch", "total"], kind)}, {"y": made, "z": made}, constants)


def runs(model, dtype, **options):
    session, eager = (es.make_session(model, regions=1, auto_graph=auto, **options) for auto in (1, 0))
    for length in range(3, 12):
        feeds = {"mask": np.random.default_rng(length).integers(0, 2, (2, length)).astype(dtype)}
        agree(session.run(None, feeds), eager.run(None, feeds))
    return report(session)


TO_INT32, TO_FLOAT = {"to": TensorProto.INT32}, {"to": TensorProto.FLOAT}


@pytest.mark.parametrize(
    "steps, kind",
    [
        ([("ReduceSum", ["mask", "one"], "y", {})], TensorProto.INT64),
        ([("Cast", ["mask"], "m", TO_INT32), ("ReduceSum", ["m", "one"], "y", {})], TensorProto.INT64),
        ([("Cast", ["mask"], "m", TO_INT32), ("ReduceSum", ["m", "one"], "y", {})], TensorProto.BOOL),
        ([("ReduceSum", ["mask", "one"], "s", {}), ("Cast", ["s"], "y", TO_FLOAT)], TensorProto.INT32),
    ],
)
def test_sums_of_integers(encore, make_model, steps, kind):
    op, _, _, attributes = steps[-1]
    made = attributes.get("to", TensorProto.INT32 if len(steps) > 1 else kind)
    told = runs(of_mask(make_model, steps, (["batch", 1], made), kind), helper.tensor_dtype_to_np_dtype(kind))
    assert told["lengths"] == {"total": [256]} and told["captures"] <= 2 and told["replays"] >= 5, told


@pytest.mark.parametrize(
    "steps, made",
    [
        ([("ReduceMean", ["mask", "one"], "y", {})], (["batch", 1], TensorProto.INT64)),
        ([("ReduceMin", ["mask", "one"], "y", {})], (["batch", 1], TensorProto.INT64)),
        ([("Cast", ["mask"], "m", TO_FLOAT), ("ReduceSum", ["m", "one"], "y", {})], (["batch", 1], TensorProto.FLOAT)),
        ([("Cast", ["mask"], "y", TO_FLOAT)], (["batch", "total"], TensorProto.FLOAT)),
        ([("CumSum", ["mask", "at"], "y", {})], (["batch", "total"], TensorProto.INT64)),
        (
            [("Shape", ["mask"], "s", {}), ("Expand", ["at", "s"], "e", {}), ("ReduceSum", ["e", "one"], "y", {})],
            (["batch", 1], TensorProto.INT64),
        ),
    ],
)
def test_where_the_length_matters(encore, make_model, steps, made):
    told = runs(of_mask(make_model, steps, made), np.int64)
    assert told["grown"] == 0 and told["lengths"] == {} and told["changing"] == ["mask[1]"], told


def test_what_is_padded_on_request_is_padded(encore, make_model):
    model = of_mask(make_model, [("ReduceSum", ["mask", "one"], "y", {})], (["batch", 1], TensorProto.INT64))
    told = runs(model, np.int64, pad="total:8,16")
    assert told["grown"] == 0 and told["padded"] > 0 and told["keys"] == 2, told


def test_beside_what_is_padded(encore, make_model):
    model = of_mask(make_model, [("ReduceSum", ["mask", "one"], "y", {})], (["batch", 1], TensorProto.INT64))
    told = runs(model, np.int64, pad="batch:4")
    assert told["lengths"] == {"total": [256]} and told["padded"] == 9 and told["grown"] == 8, told
