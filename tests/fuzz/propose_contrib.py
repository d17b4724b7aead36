"""Operators of com.microsoft that language and diffusion models have beside those of ONNX."""

import functools

import numpy as np
from proposals import MICROSOFT, proposes

ours = functools.partial(proposes, domain=MICROSOFT, family="reduce", mild=True)


def _like(s, x):
    return lambda *shape: s.like(x, list(shape), mild=True)


@ours("GroupNorm", "SkipGroupNorm")
def group_norm(s):
    groups, each = s.draw.number(1, 4), s.draw.pick([1, 3, 4, 8, 10])
    shape = [s.draw.number(1, 2), s.draw.number(1, 9), s.draw.number(1, 9), groups * each]
    x = s.data(shape=shape, mild=True)
    like = _like(s, x)
    inputs = [x, like(shape[3]), like(shape[3])]
    more = {}
    if s.op == "SkipGroupNorm":
        inputs += [like(*s.draw.pick([shape, [shape[0], shape[3]], [shape[0], 1, 1, shape[3]]]))]
        inputs += [s.maybe(0.5, lambda: like(shape[3]))]
        more = {"types": [None, None], "wanted": s.draw.number(1, 2)}
        more["types"] = more["types"][: more["wanted"]]
    return s.node(*inputs, groups=groups, activation=s.draw.pick([0, 1]), **more)


@ours("EmbedLayerNormalization", steady=False)
def embed_layer_norm(s):
    batch, length, width, words = s.draw.number(1, 3), s.draw.number(1, 9), s.draw.pick([1, 5, 8, 64]), 7
    name = s.draw.pick(s.types(2))
    # Of tables and vectors onnxruntime wants to know the shapes.
    like = lambda *shape: s.new(s.draw.contents(name, list(shape), True), name, constant=1)
    table = like(words, width)
    ids = lambda most, *shape: s.fixed(
        np.array(s.draw.picks(range(most), int(np.prod(shape)))).reshape(shape), "int32", constant=0.3
    )
    segments = s.draw.chance(0.6)
    places = s.maybe(0.4, lambda: ids(length + 1, s.draw.pick([1, batch]), length))
    return s.node(
        ids(words, batch, length),
        ids(2, batch, length) if segments else None,
        table,
        like(length + 1, width),
        like(2, width) if segments else None,
        like(width),
        like(width),
        None,
        places,
        types=[None, "int32", None],
        like=2,
        wanted=[True, True, s.draw.chance(0.5)],
        epsilon=abs(s.draw.real()) + 1e-5,
    )


@ours("GatedRMSNorm")
def gated_rms_norm(s):
    width = s.draw.pick([1, 5, 8, 64, 130])
    x = s.data(shape=[s.draw.number(1, 3), s.draw.number(1, 5), width * s.draw.number(1, 3)], mild=True)
    gate = s.like(x, list(x.array.shape), mild=True)
    activation = s.maybe(0.7, lambda: s.draw.pick(["silu", "swish", "sigmoid"]))
    return s.node(x, s.like(x, [width], mild=True), gate, activation=activation, epsilon=abs(s.draw.real()) + 1e-5)


def _streams(s):
    lead, branches, width = [s.draw.number(1, 4)], s.draw.pick([1, 2, 4, 5]), s.draw.pick([1, 5, 8, 64])
    flat = s.draw.chance(0.4)
    x = s.data(shape=[*lead, branches * width] if flat else [*lead, branches, width], mild=True)
    return x, lead, branches, width, branches if flat else None


@ours("BranchwiseRMSNorm")
def branchwise_rms_norm(s):
    x, _, branches, width, told = _streams(s)
    shape = s.draw.pick([[branches * width], [branches, width], [width]])
    scale = s.maybe(0.7, lambda: s.like(x, shape, mild=True))
    return s.node(x, scale, num_branches=told, epsilon=abs(s.draw.real()) + 1e-5)


@ours("HyperConnectionPreMix", "HyperConnectionPostMix", sums=True)
def mix(s):
    x, lead, branches, width, told = _streams(s)
    like = _like(s, x)
    gate = like(*lead, *s.draw.pick([[branches], [branches, 1], [branches, width]]))
    if s.op == "HyperConnectionPreMix":
        return s.node(x, gate, num_branches=told, reduction_scale=s.maybe(0.5, s.draw.real))
    matrix = s.maybe(0.6, lambda: like(*lead, branches, branches))
    return s.node(x, like(*lead, width), gate, matrix, num_branches=told)


@ours("EngramGate", steady=False)
def engram_gate(s):
    batch, length, branches = s.draw.number(1, 2), s.draw.number(1, 5), s.draw.number(1, 4)
    width = s.draw.pick([1, 5, 8, 64])
    key = s.data(shape=[batch, length, branches, width], mild=True)
    like = _like(s, key)
    more = {"types": [None, None], "wanted": 2} if s.draw.chance(0.5) else {}
    scales = [like(branches, width) for _ in range(3 if more else 2)]
    return s.node(key, like(*key.array.shape), like(batch, length, width), *scales, **more)


@ours("BiasAdd")
def bias_add(s):
    x = s.data(low=3, high=3, mild=True)
    shape = list(x.array.shape)
    return s.node(x, s.like(x, shape[-1:], mild=True), s.like(x, shape, mild=True))


@ours("BiasSplitGelu")
def bias_split_gelu(s):
    x = s.data(shape=[s.draw.number(1, 3), s.draw.number(1, 5), 2 * s.draw.pick([1, 5, 8, 40])], mild=True)
    return s.node(x, s.like(x, [x.array.shape[-1]], mild=True))


@ours("GatedAdd", own_types=True)  # of which what is rounded in between is a part
def gated_add(s):
    x = s.data(low=1, mild=True)
    shape = list(x.array.shape)
    return s.node(x, s.like(x, shape, mild=True), s.like(x, [*shape[:-1], 1], mild=True))


@ours("ScaledSiLU", own_types=True)
def scaled_silu(s):
    x = s.data(mild=True)
    return s.node(x, s.maybe(0.4, lambda: s.like(x, [], mild=True)), alpha=s.maybe(0.5, s.draw.real))


@ours("LinearAttentionGate")
def linear_attention_gate(s):
    heads = s.draw.pick([1, 3, 8, 32])
    a = s.data(shape=[s.draw.number(1, 3), s.draw.number(1, 9), heads], mild=True)
    vectors = [s.data(types=["float"], shape=[heads], mild=True) for _ in range(2)]
    b = s.maybe(0.6, lambda: s.like(a, list(a.array.shape), mild=True))
    more = {"types": [None, None], "wanted": 2} if b else {}
    return s.node(a, *vectors, b, **more)


@ours("BiasDropout", "BitmaskDropout", "BitmaskBiasDropout")
def dropout_around(s):
    x = s.data(low=1, mild=True)
    shape = list(x.array.shape)
    inputs = [x]
    if s.op != "BitmaskDropout":
        inputs += [s.like(x, s.draw.pick([shape, shape[-1:]]), mild=True)]
        inputs += [s.maybe(0.5, lambda: s.like(x, shape, mild=True))]
    # What training drops is random, so only where nothing is dropped there is something to compare.
    inputs += [s.maybe(0.5, lambda: s.fixed(0.0, "float")), s.maybe(0.3, lambda: s.fixed(False, "bool"))]
    mask = "bool" if s.op == "BiasDropout" else "uint32"
    return s.node(*inputs, types=[None, mask], wanted=2)


def _ids(s, kind, *shape, most=5):
    return s.fixed(np.array(s.draw.picks(range(most), int(np.prod(shape)))).reshape(shape), kind, constant=0.2)


@proposes("NGramRepeatBlock", domain=MICROSOFT, family="exact", steady=False)
def ngram_repeat_block(s):
    batch, tokens = s.draw.number(1, 3), s.draw.number(5, 9)
    ids = _ids(s, "int64", batch, s.draw.number(1, 12))
    scores = s.data(types=["float"], shape=[batch, tokens])
    return s.node(ids, scores, like=1, ngram_size=s.draw.number(1, 4))


@proposes("NGramHashMapping", "VarlenNGramHashMapping", domain=MICROSOFT, family="exact", steady=False)
def ngram_hash(s):
    packed = s.op == "VarlenNGramHashMapping"
    kind = s.draw.pick(s.types())
    most, heads, batch = s.draw.number(2, 5), s.draw.number(1, 3), s.draw.number(1, 3)
    state, outputs = most - 1, (most - 1) * heads
    lengths = [s.draw.number(1, 7) for _ in range(batch)]
    tokens = [sum(lengths)] if packed else [batch, lengths[0]]
    table = lambda count, *among: s.fixed(s.draw.picks(among, count), kind)
    segments = s.draw.chance(0.4)
    inputs = [_ids(s, kind, *tokens), table(most, 1, 3, -7, 2**30 + 1), table(outputs, 1, 2, 97, 1009)]
    if packed:
        inputs.append(s.fixed(np.cumsum([0, *lengths]), "int32", constant=1))
    inputs += [
        s.maybe(0.5, lambda: _ids(s, kind, batch, state)),
        s.maybe(0.3, lambda: table(outputs, 0, 100)),
        s.maybe(0.5, lambda: s.fixed(3, kind)),
        _ids(s, "int32", *tokens, most=2) if segments else None,
    ]
    attrs = {"max_ngram_size": most, "n_head_per_ngram": heads, "pad_id": 4}
    attrs["reset_on_eos"] = s.maybe(0.5, lambda: 1)
    if not packed:
        return s.node(*inputs, types=[kind, kind], wanted=2, **attrs)
    capacity = s.maybe(0.4, lambda: s.draw.number(1, 8))
    inputs += [
        _ids(s, "int32", batch, state, most=2) if segments and s.draw.chance(0.6) else None,
        _ids(s, "int32", batch, most=9) if capacity else None,
    ]
    wanted = [True, True, segments, capacity is not None]
    attrs["state_update_capacity"] = capacity
    return s.node(*inputs, types=[kind, kind, "int32", kind], wanted=wanted, **attrs)
