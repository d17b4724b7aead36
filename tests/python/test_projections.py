"""Queries, keys and values of the same rows as one product, which attention reads in place."""

import encore_session as es
import numpy as np
import pytest
from onnx import TensorProto, helper
from test_fused_attention import HALVES, Network, agrees, numbers, plain, rounded
from test_fusion import on_cpu
from test_vision_blocks import plan_of

WIDTH, HEADS, KV_HEADS, SIZE, ROOM = 64, 4, 2, 16, 8
BLOCK = 32
# Of the largest value: what goes into the cache is rounded, and so are rows on their way there.
CACHED = {"float32": 1e-5, "float16": 6e-3, "bfloat16": 4e-2}


def projected(net, x, columns, seed, biased):
    y = net.node("MatMul", [x, net.constant(numbers((WIDTH, columns), seed, -0.2, 0.2))])
    return net.node("Add", [y, net.constant(numbers((columns,), seed + 1))]) if biased else y


def quantized(net, x, columns, seed, biased):
    rng = np.random.default_rng(seed)
    codes = net.constant(rng.integers(0, 256, (columns, WIDTH // BLOCK, BLOCK // 2)), np.uint8)
    scales = net.constant(rng.uniform(0.005, 0.02, (columns, WIDTH // BLOCK)))
    zeros = net.constant(rng.integers(0, 256, (columns, (WIDTH // BLOCK + 1) // 2)), np.uint8)
    how = {"K": WIDTH, "N": columns, "bits": 4, "block_size": BLOCK, "domain": "com.microsoft"}
    y = net.node("MatMulNBits", [x, codes, scales, zeros], **how)
    return net.node("Add", [y, net.constant(numbers((columns,), seed + 1))]) if biased else y


def decoder(net, product, biased, kinds=("q", "k", "v")):
    """Rows go into a KV cache and look at it."""
    x = net.input("x", [1, "rows", WIDTH])
    past = [net.input(name, [1, KV_HEADS, "past", SIZE]) for name in ("past_k", "past_v")]
    widths = {"q": HEADS * SIZE, "k": KV_HEADS * SIZE, "v": KV_HEADS * SIZE}
    q, k, v = (product(net, x, widths[kind], i, biased) for i, kind in enumerate(kinds))
    net.inputs["mask"] = ([1, "all"], TensorProto.INT64)
    count = net.node("ReduceSum", ["mask", net.ints(1)], keepdims=0)
    net.node("Cast", [net.node("Sub", [count, net.ints(1)])], "last", to=TensorProto.INT32)
    length = net.node("Gather", [net.node("Shape", ["mask"]), net.constant(np.array(1), np.int64)])
    net.node("Cast", [length], "total", to=TensorProto.INT32)
    net.nodes.append(
        helper.make_node(
            "GroupQueryAttention",
            [q, k, v, *past, "last", "total"],
            ["y", "present_k", "present_v"],
            "attention",
            "",
            "com.microsoft",
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
        )
    )
    net.output("y", [1, "rows", WIDTH])
    net.output("present_k", [1, KV_HEADS, "all", SIZE])
    return net


def model_of(net, make_model):
    ends = [
        {name: form if isinstance(form, tuple) else (form, TensorProto.FLOAT) for name, form in part.items()}
        for part in (net.inputs, net.outputs)
    ]
    return make_model(net.nodes, *ends, net.constants)


def fed(rows, past):
    return {
        "x": numbers((1, rows, WIDTH), rows),
        "past_k": numbers((1, KV_HEADS, past, SIZE), 2),
        "past_v": numbers((1, KV_HEADS, past, SIZE), 3),
        "mask": np.ones((1, past + rows), np.int64),
    }


@pytest.mark.parametrize("product", [projected, quantized])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [*HALVES, "float32"])
def test_a_decoder_has_them_packed(encore, make_model, tmp_path, product, biased, dtype):
    model, wide = (model_of(decoder(Network(one), product, biased), make_model) for one in (dtype, "float32"))
    plan = plan_of(model, tmp_path)
    (step,) = [line for line in plan.splitlines() if ".GroupQueryAttention(" in line]
    assert ", _, _, " in step, plan
    assert plan.count("MatMulNBits(" if product is quantized else "MatMul(") == 1 and " Add(" not in plan, plan
    for auto_graph in (0, 1):
        session = es.make_session(model, regions=1, auto_graph=auto_graph)
        for rows, past in ((5, 0), (1, 5), (1, 5), (1, 5), (5, 0)):
            feeds = fed(rows, past)
            mask = {"mask": feeds.pop("mask")}
            ours, theirs = session.run(None, feeds | mask), on_cpu(wide, rounded(feeds, dtype) | mask)
            for got, wanted in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=0, atol=CACHED[dtype] * np.abs(wanted).max())


def encoder(dtype, others=3, biased="qkv", places=("b", "n")):
    """Attention, for which so many of the `others` rows make queries, keys and values, with a bias or without."""
    net = Network(dtype)
    rows = [net.input(name, [*places, 48]) for name in "xz"]
    whole = plain(dtype)  # attention of q, k and v
    for i, name in enumerate("qkv"):
        weights, made = net.constant(numbers((48, 48), i, -0.2, 0.2)), f"{name}.cast"
        y = net.node("MatMul", [rows[i < others], weights], f"{name}.rows" if name in biased else made)
        if name in biased:
            net.node("Add", [y, net.constant(numbers((48,), 7 + i))], made)
    net.constants += [c for c in whole.constants if c.CopyFrom(c) is None and not setattr(c, "name", f"a.{c.name}")]
    for node in whole.nodes[3:]:
        node.input[:] = [f"a.{name}" if name.startswith("c") else name for name in node.input]
        net.nodes.append(node)
    net.outputs = {name: [*places, 48] for name in whole.outputs}
    return net


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("others", [0, 1, 2])
def test_an_encoder_reads_its_columns(encore, make_model, tmp_path, dtype, others):
    """As many of them as are of the same rows."""
    model, wide = (encoder(one, others).model(make_model) for one in (dtype, "float32"))
    plan = plan_of(model, tmp_path)
    assert plan.count("encore.Attention(") == 1 and plan.count("MatMul(") == 1 + (others > 0), plan
    for auto_graph in (0, 1):
        session = es.make_session(model, regions=1, auto_graph=auto_graph)
        for batch in (2, 1, 2, 1, 2):
            feeds = {name: numbers((batch, 7, 48), i + batch) for i, name in enumerate("xz")}
            agrees(session, wide, feeds, dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("biased", ["qv", "k", "kv", ""])
@pytest.mark.parametrize("places", [(2, 7), ("b", 7), ("b", "n")])
def test_some_have_a_bias(encore, make_model, tmp_path, dtype, biased, places):
    """Where dimensions are known onnxruntime makes a Gemm of each that has one, with Reshapes around."""
    model, wide = (encoder(one, biased=biased, places=places).model(make_model) for one in (dtype, "float32"))
    plan = plan_of(model, tmp_path)
    assert plan.count("encore.Attention(") == plan.count("MatMul(") == 1 and "Gemm(" not in plan, plan
    for auto_graph in (0, 1):
        session = es.make_session(model, regions=1, auto_graph=auto_graph)
        for seed in range(5):
            feeds = {name: numbers((2, 7, 48), i + seed) for i, name in enumerate("xz")}
            agrees(session, wide, feeds, dtype)
