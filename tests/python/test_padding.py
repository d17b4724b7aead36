"""Dimensions padded to a few lengths (pad): the same answers, of few shapes; or a reason why not."""

import contextlib
import functools

import encore_session
import numpy as np
import onnxruntime_ep_encore
import pytest
from encore_session import Bound, in_threads, needs_graphs, only_if
from onnx import TensorProto, helper, numpy_helper

FLOAT = np.float32
WIDTH = 8
PAD = "batch:2,4,8"
make_session = functools.partial(encore_session.make_session, regions=1)  # which pad


def constant(name, shape, seed=0, dtype=FLOAT):
    values = np.random.default_rng(seed).standard_normal(shape)
    return numpy_helper.from_array(values.astype(dtype) if dtype == FLOAT else (values * 9).astype(dtype), name)


@pytest.fixture(scope="module")
def model(make_model):
    """Rows of a table, multiplied and normed, and how long each is."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], "look_up"),
        helper.make_node("MatMul", ["rows", "w"], ["p"], "product"),
        helper.make_node("Softmax", ["p"], ["y"], "softmax"),
        helper.make_node("ReduceSum", ["rows", "last"], ["sums"], "sum", keepdims=0),
    ]
    constants = [constant("table", (50, WIDTH)), constant("w", (WIDTH, WIDTH), 1)]
    constants.append(numpy_helper.from_array(np.array([-1]), "last"))
    ins = {"ids": (["batch", 3], TensorProto.INT64)}
    return make_model(nodes, ins, {"y": ["batch", 3, WIDTH], "sums": ["batch", 3]}, constants)


def ids(rows, seed=0):
    return {"ids": np.random.default_rng(seed).integers(0, 50, (rows, 3))}


def agrees(session, plain, feeds):
    for got, wanted in zip(session.run(None, feeds), plain.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def keys(session):
    return [region["keys"] for region in onnxruntime_ep_encore.region_report(session)]


@pytest.mark.parametrize("auto_graph", [0, 1])
def test_few_shapes_are_run(encore, model, auto_graph):
    session, plain = make_session(model, pad=PAD, auto_graph=auto_graph), make_session(model)
    for seed in range(3):
        for rows in (1, 2, 3, 4, 5, 7, 8):
            agrees(session, plain, ids(rows, seed))
    (region,) = onnxruntime_ep_encore.region_report(session)
    assert region["keys"] == 3 and region["padded"] == 3 * 4
    assert not auto_graph or region["replays"] > 10


def test_what_no_length_suits_stays_as_it_is(encore, model):
    session, plain = make_session(model, pad=PAD), make_session(model)
    for rows in (0, 9, 100):
        agrees(session, plain, ids(rows))
    assert keys(session) == [3]


def test_tensors_on_the_device(encore, model):
    session, plain = make_session(model, pad=PAD, auto_graph=1), make_session(model)
    wanted = {rows: plain.run(None, ids(rows)) for rows in (3, 4)}
    for _ in range(3):
        for rows in (3, 4):
            bound = Bound(session, ids(rows), {"y": ((rows, 3, WIDTH), FLOAT), "sums": ((rows, 3), FLOAT)})
            made = bound.run()
            np.testing.assert_allclose(made["y"], wanted[rows][0], rtol=1e-6)
            np.testing.assert_allclose(made["sums"], wanted[rows][1], rtol=1e-6)


@needs_graphs
def test_graphs_by_id_are_padded_too(encore, model):
    session, plain = make_session(model, pad=PAD, enable_cuda_graph=1), make_session(model)
    bound = Bound(session, ids(3), {"y": ((3, 3, WIDTH), FLOAT), "sums": ((3, 3), FLOAT)})
    for seed in range(5):
        np.testing.assert_allclose(
            bound.run(ids(3, seed), graph_id=1)["y"], plain.run(None, ids(3, seed))[0], rtol=1e-6
        )


def test_threads(encore, model):
    session, plain = make_session(model, pad=PAD, auto_graph=1), make_session(model)
    wanted = {rows: plain.run(None, ids(rows)) for rows in range(1, 9)}

    def work(number):
        for turn in range(20):
            rows = (number + turn) % 8 + 1
            np.testing.assert_allclose(session.run(None, ids(rows))[0], wanted[rows][0], rtol=1e-6)

    in_threads(4, work)


def test_two_dimensions(encore, make_model):
    nodes = [
        helper.make_node("Add", ["x", "z"], ["s"], "add"),
        helper.make_node("Transpose", ["s"], ["t"], "turn", perm=[1, 0, 2]),
        helper.make_node("LayerNormalization", ["t", "scale"], ["y"], "norm"),
    ]
    ins = {"x": ["batch", "sequence", WIDTH], "z": ["sequence", WIDTH]}
    model = make_model(nodes, ins, {"y": ["sequence", "batch", WIDTH]}, [constant("scale", WIDTH)])
    session, plain = make_session(model, pad="batch:4;sequence:16,32"), make_session(model)
    for batch, sequence in ((3, 7), (4, 9), (1, 17), (4, 16), (2, 33)):
        random = np.random.default_rng(batch)
        x = {"x": random.standard_normal((batch, sequence, WIDTH)), "z": random.standard_normal((sequence, WIDTH))}
        agrees(session, plain, {name: array.astype(FLOAT) for name, array in x.items()})
    assert keys(session) == [3]


# What is added has a last row's values: others might be faults that no run without them has.
def test_nothing_that_is_added_is_a_fault(encore, make_model):
    nodes = [
        helper.make_node("Sub", ["ids", "ten"], ["i"], "less"),
        helper.make_node("Gather", ["table", "i"], ["y"], "look_up"),
    ]
    constants = [constant("table", (5, WIDTH)), numpy_helper.from_array(np.array(10), "ten")]
    model = make_model(nodes, {"ids": (["batch"], TensorProto.INT64)}, {"y": ["batch", WIDTH]}, constants)
    session, plain = make_session(model, pad="batch:8"), make_session(model)
    agrees(session, plain, {"ids": np.array([10, 14, 12])})
    with pytest.raises(Exception, match="Gather node 'look_up'"):
        session.run(None, {"ids": np.array([10, 15, 12])})
    agrees(session, plain, {"ids": np.array([13])})


def test_inputs_that_disagree_are_the_models_error(encore, make_model):
    nodes = [helper.make_node("Add", ["x", "z"], ["s"], "add"), helper.make_node("Relu", ["s"], ["y"], "relu")]
    model = make_model(nodes, {"x": ["batch", 4], "z": ["batch", 4]}, {"y": ["batch", 4]})
    session, plain = make_session(model, pad="batch:4,8"), make_session(model)
    one = {"x": np.ones((1, 4), FLOAT), "z": np.ones((3, 4), FLOAT)}
    agrees(session, plain, one)  # broadcasting, which the names deny
    with pytest.raises(Exception, match="node 'add( to relu)?'"):
        session.run(None, {"x": np.ones((2, 4), FLOAT), "z": np.ones((3, 4), FLOAT)})


@only_if(encore_session.NEWEST_OPSET >= 24)
def test_keys_that_disagree_with_queries_are_all_seen(encore, make_model):
    """Both are named alike, and nothing is padded if they are not as long."""
    node = helper.make_node("Attention", ["q", "k", "k"], ["y"], "attention", q_num_heads=2, kv_num_heads=2)
    ends = {"q": ["batch", "seq", 16], "k": ["batch", "seq", 16]}
    model = make_model([node], ends, {"y": ["batch", "seq", 16]}, opset=24)
    session, plain = make_session(model, pad="seq:8,16", use_tf32=0), make_session(model, use_tf32=0)
    random = np.random.default_rng(0)
    for lengths in ((5, 7), (7, 5), (6, 6)):
        feeds = {name: random.standard_normal((2, rows, 16)).astype(FLOAT) for name, rows in zip("qk", lengths)}
        np.testing.assert_allclose(session.run(None, feeds)[0], plain.run(None, feeds)[0], atol=1e-5)


@pytest.fixture
def refusal(capfd):
    """refusal(model, **options): what is said, if only in the log, where onnxruntime goes on with the CPU."""

    def say(model, **options):
        with pytest.raises(Exception) as raised:
            make_session(model, **options)
        return str(raised.value) + capfd.readouterr().err

    return say


def test_a_node_that_brings_rows_together_is_named(encore, make_model, refusal):
    nodes = [helper.make_node("Relu", ["x"], ["r"], "relu"), helper.make_node("Hardmax", ["r"], ["y"], "over", axis=0)]
    model = make_model(nodes, {"x": ["batch", 4]}, {"y": ["batch", 4]})
    said = refusal(model, pad="batch:4")
    assert "'pad' can't pad 'batch'" in said and "Hardmax node 'over' goes along it" in said, said


@pytest.mark.parametrize(
    "pad, says",
    [
        ("bach:4", "names a dimension 'bach', which no input has; theirs are batch"),
        ("batch", "it must be dimensions of the model's inputs with lengths"),
        ("batch:", "it must be dimensions"),
        ("batch:0", "it must be dimensions"),
        ("batch:2,x", "it must be dimensions"),
        ("batch:2;batch:4", "it must be dimensions"),
        (":4", "it must be dimensions"),
    ],
)
def test_mistakes(encore, model, pad, says, refusal):
    assert says in refusal(model, pad=pad)


def test_padding_is_for_regions(encore, model, refusal):
    assert "'pad' is for regions, which 'regions=0'" in refusal(model, pad=PAD, regions=0, auto_graph=0)


def test_lengths_as_python_has_them(encore, model):
    session = onnxruntime_ep_encore.session(model.SerializeToString(), pad={"batch": [4, 2]}, use_tf32=False)
    agrees(session, make_session(model), ids(3))
    assert keys(session) == [1]


SENTENCES = {"ids": (["batch", "sequence"], TensorProto.INT64), "mask": (["batch", "sequence"], TensorProto.INT64)}


WINDOW = 2  # keys on either side
WINDOWS = ["window", "chosen window"]


class Encoder:
    """Token embeddings and a layer of attention, as exporters write them, of any batch and sequence."""

    def __init__(self, make_model, dtype=FLOAT, mask="added", layers=1):
        self.nodes, self.constants, self.dtype = [], [], dtype
        self.kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        tokens = self.node("Gather", self.weights("tokens", (30, 16)), "ids")
        length = self.node("Gather", self.node("Shape", "ids"), self.integers([1]))
        positions = self.weights("positions", (1, 64, 16))
        positions = self.node("Slice", positions, self.integers([0]), length, self.integers([1]))
        x = self.node("Add", tokens, positions)
        for layer in range(layers):
            output = "hidden" if layer + 1 == layers else None
            x = self.node("Add", x, self.attention(x, mask), output=output)
        self.node("Gather", x, self.integers(0), output="first", axis=1)
        outs = {"hidden": (["batch", "sequence", 16], self.kind), "first": (["batch", 16], self.kind)}
        self.model = make_model(self.nodes, SENTENCES, outs, self.constants)

    def attention(self, x, mask):
        q, k, v = (self.heads(self.node("MatMul", x, self.weights(name, (16, 16)))) for name in "qkv")
        k = self.node("Transpose", k, perm=[0, 1, 3, 2])
        scores = self.node("Mul", self.node("MatMul", q, k), self.numbers(0.35))
        if mask != "none":
            seen = self.seen(mask)
            least = self.numbers(-np.inf if mask in ("empty rows", *WINDOWS) else np.finfo(self.dtype).min)
            if mask == "chosen window":
                scores = self.node("Where", seen, scores, least)
            else:
                scores = self.node("Add", scores, self.node("Where", seen, self.numbers(0), least))
        weights = self.node("Softmax", scores, axis=-1)
        if mask == "empty rows":
            weights = self.node("Where", self.node("IsNaN", weights), self.numbers(0), weights)
        made = self.node("Transpose", self.node("MatMul", weights, v), perm=[0, 2, 1, 3])
        return self.node("Reshape", made, self.integers([0, 0, 16]))

    def seen(self, mask):
        seen = self.node("Cast", "mask", to=TensorProto.BOOL)
        if mask == "flat":
            return self.gathered(seen)
        seen = self.node("Unsqueeze", seen, self.integers([1, 2]))
        if mask not in ("causal", *WINDOWS):
            return seen
        positions = self.positions(1)
        row = self.node("Unsqueeze", positions, self.integers([1]))
        if mask in WINDOWS:
            distance = self.node("Abs", self.node("Sub", positions, row))
            return self.node("And", seen, self.node("LessOrEqual", distance, self.integers(WINDOW)))
        return self.node("And", seen, self.node("LessOrEqual", positions, row))

    def gathered(self, mask):
        """mask[row, key], as torch's older exporter has it of positions."""
        row = self.node("Unsqueeze", self.positions(0), self.integers([1, 2, 3]))
        key = self.node("Unsqueeze", self.positions(1), self.integers([0, 1, 2]))
        at = self.node("Add", key, self.node("Mul", row, self.length(1)))
        picked = self.node("Gather", self.node("Flatten", mask, axis=2), at)
        flat = self.node("Reshape", picked, self.integers([-1]))
        return self.node("Reshape", flat, self.node("Shape", at))

    def length(self, axis):
        return self.node("Gather", self.node("Shape", "ids"), self.integers([axis]))

    def positions(self, axis):
        length = self.node("Gather", self.node("Shape", "ids"), self.integers(axis))
        return self.node("Range", self.integers(0), length, self.integers(1))

    def heads(self, x):
        return self.node("Transpose", self.node("Reshape", x, self.integers([0, 0, 2, 8])), perm=[0, 2, 1, 3])

    def node(self, op, *inputs, output=None, **attributes):
        made = output or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [made], f"{op}_{len(self.nodes)}", **attributes))
        return made

    def keep(self, array):
        self.constants.append(numpy_helper.from_array(array, f"c{len(self.constants)}"))
        return self.constants[-1].name

    def weights(self, name, shape):
        return self.keep(np.random.default_rng(len(self.constants)).standard_normal(shape).astype(self.dtype) / 2)

    def numbers(self, value):
        return self.keep(np.array(value, self.dtype))

    def integers(self, value):
        return self.keep(np.array(value, np.int64))


def sentences(batch, length, seed=0):
    random = np.random.default_rng(seed)
    mask = np.arange(length) < random.integers(1, length + 1, (batch, 1))
    return {"ids": random.integers(0, 30, (batch, length)), "mask": mask.astype(np.int64)}


def masked_mean(encoder):
    """As sentence-transformers are exported."""
    shape = encoder.node("Shape", "hidden")
    mask = encoder.node("Expand", encoder.node("Unsqueeze", "mask", encoder.integers([-1])), shape)
    mask = encoder.node("Cast", mask, to=encoder.kind)
    total = encoder.node("ReduceSum", encoder.node("Mul", "hidden", mask), encoder.integers([1]), keepdims=0)
    count = encoder.node("ReduceSum", mask, encoder.integers([1]), keepdims=0)
    return encoder.node("Div", total, encoder.node("Clip", count, encoder.numbers(1e-4)))


def pooled_by_attention(encoder):
    scores = encoder.node("MatMul", "hidden", encoder.weights("scores", (16, 1)))
    weighted = encoder.node("Mul", "hidden", encoder.node("Softmax", scores, axis=1))
    return encoder.node("ReduceSum", weighted, encoder.integers([1]), keepdims=0)


def last_place(encoder):
    count = encoder.node("ReduceSum", "mask", encoder.integers([1]), keepdims=0)
    return encoder.node("Sub", count, encoder.integers(1))


def last_token(encoder):
    """As sequence classifiers are exported, of masks with nothing in them, too: that is the last row."""
    place = encoder.node("Unsqueeze", last_place(encoder), encoder.integers([-1]))
    row = encoder.node("Unsqueeze", encoder.positions(0), encoder.integers([-1]))
    return encoder.node("GatherND", "hidden", encoder.node("Concat", row, place, axis=-1))


def last_token_of_merged_axes(encoder):
    at = encoder.node("Add", last_place(encoder), encoder.node("Mul", encoder.positions(0), encoder.length(1)))
    return encoder.node("Gather", encoder.node("Flatten", "hidden", axis=2), at)


def last_token_of_elements(encoder):
    place = encoder.node("Unsqueeze", last_place(encoder), encoder.integers([1, 2]))
    size = encoder.node("Concat", encoder.length(0), encoder.integers([1, 16]), axis=0)
    one = encoder.node("GatherElements", "hidden", encoder.node("Expand", place, size), axis=1)
    return encoder.node("Squeeze", one, encoder.integers([1]))


def reduced(op):
    return lambda encoder: encoder.node(op, "hidden", encoder.integers([1]), keepdims=0)


# Other lengths take other kernels, which add up terms of up to ten in another order.
CLOSE = {np.float32: {"rtol": 1e-5, "atol": 1e-5}, np.float16: {"rtol": 1e-2, "atol": 4e-3}}
POOLS = {op: reduced(op) for op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp")}
POOLS["masked mean"] = masked_mean
POOLS["attention"] = pooled_by_attention
POOLS["last"] = lambda encoder: encoder.node("Gather", "hidden", encoder.integers(-1), axis=1)
POOLS["last token"] = last_token
POOLS["last token of merged axes"] = last_token_of_merged_axes
POOLS["last token of elements"] = last_token_of_elements
POOLS["arg max"] = lambda encoder: encoder.node("ArgMax", "hidden", axis=1, keepdims=0)


@pytest.mark.parametrize("mask", ["added", "none", "empty rows", "flat", "causal"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_sequences_of_attention(encore, make_model, dtype, mask):
    model = Encoder(make_model, dtype, mask).model
    session = make_session(model, pad="batch:2,4;sequence:8,16,32", auto_graph=1)
    plain = make_session(model)
    for seed in range(2):
        for batch, length in ((1, 3), (2, 8), (3, 5), (4, 16), (3, 31), (2, 33), (5, 7)):
            feeds = sentences(batch, length, seed)
            if mask == "empty rows":
                feeds["mask"][0] = 0
            for got, wanted in zip(session.run(None, feeds), plain.run(None, feeds), strict=True):
                np.testing.assert_allclose(got, wanted, **CLOSE[dtype])
    assert keys(session) == [6]


@pytest.mark.parametrize("mask", WINDOWS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows_that_see_none_of_those_that_were_there(encore, make_model, dtype, mask):
    """They would be no numbers, and nor would be the second layer's rows, though these give them no weight."""
    model = Encoder(make_model, dtype, mask, layers=2).model
    session = make_session(model, pad="batch:2,4;sequence:16,32", auto_graph=1)
    plain = make_session(model)
    for batch, length in ((1, 3), (2, 8), (3, 5), (4, 16), (1, 17), (2, 1), (2, 33)):
        feeds = sentences(batch, length)
        feeds["mask"][:] = 1
        feeds["mask"][0, length - min(WINDOW, length - 1) :] = 0
        for got, wanted in zip(session.run(None, feeds), plain.run(None, feeds), strict=True):
            assert np.isfinite(wanted).all()
            np.testing.assert_allclose(got, wanted, **CLOSE[dtype])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("pool", POOLS)
def test_what_is_made_of_a_whole_sequence(encore, make_model, pool, dtype):
    encoder = Encoder(make_model, dtype)
    encoder.node("Identity", POOLS[pool](encoder), output="pooled")
    kind = TensorProto.INT64 if pool == "arg max" else encoder.kind
    model = make_model(encoder.nodes, SENTENCES, {"pooled": (["batch", 16], kind)}, encoder.constants)
    session, plain = make_session(model, pad="batch:2,4;sequence:8,16", auto_graph=1), make_session(model)
    for seed in range(2):
        for batch, length in ((1, 3), (2, 8), (3, 5), (4, 16), (3, 17), (2, 1)):
            feeds = sentences(batch, length, seed)
            if pool.startswith("last"):
                feeds["mask"][-1] = 0
            (got,), (wanted,) = session.run(None, feeds), plain.run(None, feeds)
            np.testing.assert_allclose(got, wanted, **CLOSE[dtype])
    assert keys(session) == [4]


def pooled(make_model, pool):
    encoder = Encoder(make_model)
    encoder.node("Identity", pool(encoder), output="pooled")
    return make_model(encoder.nodes, SENTENCES, {"pooled": ["batch", 16]}, encoder.constants)


# More than there is: what is added is no answer to that.
@pytest.mark.parametrize("pool", [last_token, last_token_of_merged_axes, last_token_of_elements])
def test_picking_beyond_the_end_stays_a_fault(encore, make_model, pool):
    session = make_session(pooled(make_model, pool), pad="batch:4;sequence:8")
    feeds = sentences(3, 5)
    feeds["mask"][2] = [3, 1, 1, 1, 1]
    with pytest.raises(Exception, match="Gather"):
        session.run(None, feeds)
    feeds["mask"][2] = -3
    with pytest.raises(Exception, match="Gather") if pool != last_token_of_merged_axes else contextlib.nullcontext():
        session.run(None, feeds)


def counted_by_the_length(encoder):
    """Not the same with another length."""
    at = encoder.node("Sub", encoder.length(1), encoder.node("ReduceSum", "mask", encoder.integers([1]), keepdims=0))
    return encoder.node("Gather", encoder.node("Flatten", "hidden", axis=2), at)


def of_transposed_axes(encoder):
    at = encoder.node("Add", last_place(encoder), encoder.node("Mul", encoder.positions(0), encoder.length(1)))
    turned = encoder.node("Transpose", "hidden", perm=[1, 0, 2])
    return encoder.node("Gather", encoder.node("Flatten", turned, axis=2), at)


@pytest.mark.parametrize("pool", [counted_by_the_length, of_transposed_axes])
def test_what_picks_by_the_length_is_refused(encore, make_model, refusal, pool):
    assert "computes with its length" in refusal(pooled(make_model, pool), pad="sequence:8")


ATTENTION = {
    "onnx": ("Attention", "", {"q_num_heads": 2, "kv_num_heads": 2}),
    "causal": ("Attention", "", {"q_num_heads": 2, "kv_num_heads": 2, "is_causal": 1}),
    "heads": ("MultiHeadAttention", "com.microsoft", {"num_heads": 2}),
    "causal heads": ("MultiHeadAttention", "com.microsoft", {"num_heads": 2, "unidirectional": 1}),
    "projected": ("Attention", "com.microsoft", {"num_heads": 2}),
}


class Operator(Encoder):
    """Attention in one node."""

    def __init__(self, make_model, kind, dtype, mask):
        self.kind_of_attention = kind
        super().__init__(functools.partial(make_model, opset=23), dtype, mask)

    def attention(self, x, mask):
        op, domain, attributes = ATTENTION[self.kind_of_attention]
        given = self.given(mask, domain)
        if self.kind_of_attention == "projected":
            inputs = [x, self.weights("w", (16, 48)), self.weights("b", (48,)), given]
        else:
            inputs = [self.node("MatMul", x, self.weights(name, (16, 16))) for name in "qkv"]
            inputs += [given] if domain == "" else ["", given]
        return self.node(op, *inputs, domain=domain, **attributes)

    def given(self, mask, domain):
        if mask == "none":
            return ""
        if domain == "":
            seen = self.seen("added")
            least = self.numbers(np.finfo(self.dtype).min)
            return seen if mask == "of keys" else self.node("Where", seen, self.numbers(0), least)
        given = "mask" if mask == "of keys" else self.node("ReduceSum", "mask", self.integers([1]), keepdims=0)
        return self.node("Cast", given, to=TensorProto.INT32)


@pytest.mark.parametrize("mask", ["none", "of keys", "other"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("kind", ATTENTION)
def test_sequences_of_an_operator_of_attention(encore, make_model, kind, dtype, mask):
    model = Operator(make_model, kind, dtype, mask).model
    session = make_session(model, pad="batch:2,4;sequence:8,16", auto_graph=1)
    plain = make_session(model)
    for seed in range(2):
        for batch, length in ((1, 3), (2, 8), (3, 5), (4, 16), (3, 17), (2, 1)):
            feeds = sentences(batch, length, seed)
            if seed:
                feeds["mask"][0] = 0
            for got, wanted in zip(session.run(None, feeds), plain.run(None, feeds), strict=True):
                np.testing.assert_allclose(got, wanted, **CLOSE[dtype])
    assert keys(session) == [4]


def test_tables_of_positions_are_long_enough(encore, make_model, refusal):
    model = Encoder(make_model).model
    make_session(model, pad="sequence:8,64")
    assert "has a table of 64, and 65 is longer" in refusal(model, pad="sequence:8,65")


def test_what_goes_along_a_sequence_otherwise_is_refused(encore, make_model, refusal):
    encoder = Encoder(make_model)
    encoder.node("Hardmax", "hidden", output="one", axis=1)
    model = make_model(encoder.nodes, SENTENCES, {"one": ["batch", "sequence", 16]}, encoder.constants)
    assert "goes along it" in refusal(model, pad="sequence:8")
    make_session(model, pad="batch:8")
