"""Steps of a language model's decoding in halves: norms and gates are inside the products of the one row that there is.

The products are as large as it takes for them to be made by the kernel that does so.
"""

import encore_session as es
import language_zoo
import numpy as np
import onnxruntime_ep_encore
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_fused_norms import NORMS, SKIP, TYPES, Network, agree
from test_fusion import kernels_of, made_one, on_cpu
from test_language_models import CAPACITY, Steps, clear

DEPTH = COLUMNS = 1024
NORMED = ", 1, false, true, true>"  # ends the name of the kernel that norms on the way


class Halves(Network):
    """With MatMul as its product."""

    def product(self, name, columns=COLUMNS, bias=False, rows="rows"):
        scale = self.depth**-0.5
        weights = self.constant(f"{name}.weights", self.uniform(-2 * scale, 2 * scale, self.depth, columns))
        self.node("MatMul", [rows, weights], [f"{name}.product" if bias else name])
        if bias:
            self.node("Add", [f"{name}.product", self.constant(f"{name}.bias", self.uniform(-3, 3, columns))], [name])
        return self


def is_normed_on_the_way(kernel):
    return "Gemv<" in kernel and kernel.endswith(NORMED)


def check(net, make_model, feeds, dtype, capfd, sizes, on_the_way):
    """Against the same nodes apart; `on_the_way`: whether the product norms its row."""
    model = net.model(make_model)
    session, made = made_one(capfd, lambda options: es.make_session(model, options))
    assert made == sizes
    es.assert_all_on_encore(session)
    agree(session.run(None, feeds), es.make_session(model, fuse_nodes=0).run(None, feeds), dtype)
    if es.on_virtual_gpu():
        assert any(map(is_normed_on_the_way, kernels_of(session, feeds))) == on_the_way


@pytest.mark.parametrize("rows", [1, 2, 8, 20])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", TYPES)
def test_rows(encore, make_model, capfd, dtype, norm, rows):
    net = Halves(dtype, DEPTH, norm).product("y").output("y", COLUMNS)
    if norm == SKIP:
        net.output("sum", DEPTH)
    check(net, make_model, net.feeds(rows), dtype, capfd, [2], rows == 1)


@pytest.mark.parametrize("rows", [1, 2, 8, 20])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", TYPES)
def test_gates(encore, make_model, capfd, dtype, norm, rows):
    net = Halves(dtype, DEPTH, norm).gate(512).output("y", 512)
    if norm == SKIP:
        net.output("sum", DEPTH)
    check(net, make_model, net.feeds(rows), dtype, capfd, [6], rows == 1)
    if es.on_virtual_gpu() and rows <= 8:
        kernels = kernels_of(es.make_session(net.model(make_model)), net.feeds(rows))
        assert len(kernels) == len(net.inputs) + len(net.outputs) + (1 if rows == 1 else 2), kernels


@pytest.mark.parametrize("depth,columns", [(2048, 520), (520, 2048), (12288, 512), (12296, 512), (1028, 1024), (8, 8)])
def test_sizes(encore, make_model, capfd, depth, columns):
    """A row that is not whole packs is left alone, one that shared memory has no room for, and what is soon done."""
    net = Halves("float16", depth).product("y", columns).output("y", columns).output("sum", depth)
    on_the_way = depth % 8 == 0 and depth <= 12288 and depth * columns >= 1 << 20
    check(net, make_model, net.feeds(1), "float16", capfd, [2], on_the_way)


@pytest.mark.parametrize("epsilon", [None, 0.0, 0.25])
@pytest.mark.parametrize("norm", NORMS)
def test_epsilon_and_zeros(encore, make_model, capfd, norm, epsilon):
    net = Halves("float16", DEPTH, norm, epsilon).product("y").output("y", COLUMNS)
    feeds = {name: values * 0.25 for name, values in net.feeds(1).items()}
    check(net, make_model, feeds, "float16", capfd, [2], True)
    if epsilon != 0:
        zeros = {name: values * 0 for name, values in feeds.items()}
        check(net, make_model, zeros, "float16", capfd, [2], True)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_bias_goes_along(encore, make_model, capfd, dtype):
    net = Halves(dtype, DEPTH).product("y", bias=True).output("y", COLUMNS)
    for rows in (1, 4):
        agree(
            es.make_session(net.model(make_model)).run(None, net.feeds(rows)),
            es.make_session(net.model(make_model), fuse_nodes=0).run(None, net.feeds(rows)),
            dtype,
        )


@pytest.mark.parametrize("norm", NORMS)
def test_against_the_cpu(encore, make_model, norm):
    net = Halves("float16", DEPTH, norm).gate(512).output("y", 512)
    model, feeds = net.model(make_model), net.feeds(1)
    agree(es.make_session(model).run(None, feeds), on_cpu(model, feeds), "float16")


@pytest.mark.parametrize("bad", [np.nan, np.inf, 60000.0])
def test_values_that_are_no_numbers(encore, make_model, capfd, bad):
    net = Halves("float16", DEPTH).product("y").output("y", COLUMNS).output("sum", DEPTH)
    feeds = net.feeds(1)
    feeds["x"][0, 0, 5] = feeds["skip"][0, 0, 5] = bad
    check(net, make_model, feeds, "float16", capfd, [2], True)


def test_rows_that_others_read_stay(encore, make_model, capfd):
    read = Halves("float16", DEPTH).product("y").product("z").output("y", COLUMNS).output("z", COLUMNS)
    wanted = Halves("float16", DEPTH).product("y").output("y", COLUMNS).output("rows", DEPTH)
    for net in (read, wanted):
        check(net, make_model, net.feeds(1), "float16", capfd, [], False)


@es.needs_graphs
@pytest.mark.parametrize("how", ["product", "gate"])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("dtype", TYPES)
def test_it_is_captured_and_replayed(encore, make_model, dtype, rows, how):
    net = Halves(dtype, DEPTH)
    (net.product("y") if how == "product" else net.gate(COLUMNS)).output("y", COLUMNS).output("sum", DEPTH)
    model = net.model(make_model)
    session, apart = es.make_session(model, enable_cuda_graph=1), es.make_session(model, fuse_nodes=0)
    forms = {name: ((1, rows, shape[-1]), np.float32) for name, shape in net.outputs.items()}
    bound = es.Bound(session, net.feeds(rows), forms)
    for seed in range(4):
        feeds = net.feeds(rows, seed=seed)
        agree([bound.run(feeds)[name] for name in forms], apart.run(None, feeds), dtype)
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert report["state"] == "ready"
    assert report["replays"] > 1


# ---- where the last keys are


@pytest.mark.parametrize("less", [1, -7, 1 << 40])
@pytest.mark.parametrize("opset,axis", [(11, 1), (18, -1)])
def test_last_keys_are_counted_in_a_mask(encore, make_model, opset, axis, less):
    axes = numpy_helper.from_array(np.array([axis]), "axes")
    by = numpy_helper.from_array(np.array([less]), "less")
    given = {"axes": [axis]} if opset < 13 else {}
    nodes = [
        helper.make_node("ReduceSum", ["mask", "axes"][: 1 if given else 2], ["count"], keepdims=0, **given),
        helper.make_node("Sub", ["count", "less"], ["place"]),
        helper.make_node("Cast", ["place"], ["last"], to=TensorProto.INT32),
    ]
    ends = {"mask": (["n", "keys"], TensorProto.INT64)}, {"last": (["n"], TensorProto.INT32)}
    model = make_model(nodes, *ends, [by] if given else [axes, by], opset=opset)
    session = es.make_session(model)
    for shape in ((1, 1), (3, 5), (2, 2048), (1, 5000), (4, 0), (0, 4)):
        mask = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, shape)
        wanted = (mask.sum(1) - less).astype(np.int32)
        assert (session.run(None, {"mask": mask})[0] == wanted).all()
        if es.on_virtual_gpu() and mask.size:
            assert len(kernels_of(session, {"mask": mask})) == 1


# ---- a whole model


LAYERS, HEADS, KV_HEADS, HEAD = 2, 16, 4, 64
DIMS = {
    "qkv_proj.MatMul.weight": [DEPTH, (HEADS + 2 * KV_HEADS) * HEAD],
    "o_proj.MatMul.weight": [HEADS * HEAD, DEPTH],
    "down_proj.MatMul.weight": [COLUMNS, DEPTH],
    "_proj.MatMul.weight": [DEPTH, COLUMNS],
    "lm_head.MatMul.weight": [DEPTH, COLUMNS],
    "embed_tokens.weight": [COLUMNS, DEPTH],
    "norm.weight": [DEPTH],
    "_cache": [256, HEAD // 2],
}


def wide_llama(kind):
    """The zoo's llama with larger weights."""
    model = language_zoo.graph("llama", kind)
    for tensor in model.graph.initializer:
        tensor.dims[:] = next(dims for end, dims in DIMS.items() if tensor.name.endswith((end, f"layer{end}")))
    heads = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "scale": HEAD**-0.5}
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name in heads:
                attribute.CopyFrom(helper.make_attribute(attribute.name, heads[attribute.name]))
    for end in (*model.graph.input, *model.graph.output):
        dims = end.type.tensor_type.shape.dim
        if end.name.startswith(("past", "present")):
            dims[1].dim_value = KV_HEADS
        elif end.name == "logits":
            dims[2].dim_value = COLUMNS
    for tensor, values in language_zoo.weights("llama", model, 0):
        tensor.raw_data = values.tobytes()
    return model


class Decoder:
    """Reads tokens one by one, each in a step."""

    def __init__(self, model, **options):
        self.session = es.make_session(model.SerializeToString(), **options)
        self.steps = Steps(self.session, model, 1)

    def feeds(self, tokens, step):
        mask = np.arange(CAPACITY) < np.full((1, 1), step + 1)
        return {"input_ids": np.array([[tokens[step]]]), "attention_mask": mask.astype(np.int64)}

    def read(self, tokens):
        clear(self.steps.caches)
        run = lambda step: self.steps.step.run(self.feeds(tokens, step))["logits"].copy()
        return np.concatenate([run(step) for step in range(len(tokens))], axis=1)


@es.needs_graphs
def test_a_language_model(encore):
    """Its steps are captured once, and a layer is five kernels."""
    tokens = np.random.default_rng(0).integers(3, COLUMNS, 12)
    model, truth = wide_llama("f16"), wide_llama("f32")
    decoder = Decoder(model, enable_cuda_graph=1)
    got = decoder.read(tokens).astype(np.float32)
    (report,) = onnxruntime_ep_encore.graph_report(decoder.session)
    assert report["state"] == "ready"
    assert report["replays"] > 1

    def close(wanted):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-2 * wanted.std())

    close(Decoder(model, fuse_nodes=0).read(tokens).astype(np.float32))
    feeds = {"input_ids": tokens[None], "attention_mask": np.ones((1, len(tokens)), np.int64)}
    none = np.zeros((1, KV_HEADS, 0, HEAD), np.float32)
    pasts = [item.name for item in truth.graph.input if item.name.startswith("past")]
    close(on_cpu(truth, feeds | dict.fromkeys(pasts, none))[0])
    if es.on_virtual_gpu():
        step = lambda: decoder.steps.step.run(decoder.feeds(tokens, 11), graph_id=es.EAGER)
        kernels = [entry["name"] for entry in es.trace(decoder.session, step) if entry["what"] == "kernel"]
        kernels = [name for name in kernels if "CopyMany" not in name]
        assert sum(map(is_normed_on_the_way, kernels)) == 2 * LAYERS + 1  # and the head's
        assert sum("DecodeStep" in name for name in kernels) == LAYERS
        assert len(kernels) == 5 * LAYERS + 3, kernels  # the head, the embedding, and what counts the mask
