"""Cases of PagedAttention, and sessions of it that update caches where they are."""

import numpy as np
from encore_session import HAS_GRAPHS, assert_all_on_encore, empty_on_device, on_device, run_options
from group_query import MICROSOFT, in_order
from harness import Case, Const, floats, seeded, session
from onnx import TensorProto, helper
from pages_reference import PAGED, batch, quarters, reference, tables

HALVES = ["float16", "bfloat16"]


def paged(
    news,
    pasts,
    dtype="float16",
    heads=4,
    kv_heads=2,
    size=64,
    slots=16,
    rotary=None,
    weights=False,
    sinks=False,
    places=False,
    metadata=None,
    cache="",
    spare=0,
    misaligned=False,
    packed=False,
    latent=None,
    name="",
    **attrs,
):
    """Replays have other sequences of as many tokens in all, and other pages."""
    attrs = {"num_heads": heads, "kv_num_heads": kv_heads, **attrs}
    rng = seeded("paged", news, pasts)
    width = max(-(-(n + p) // slots) for n, p in zip(news, pasts)) + 1
    room = slots * width

    def inputs(key):
        new, past = list(news), list(pasts)
        if key:
            new = rng.permutation(news).tolist()
            past = [int(rng.integers(0, room - n + 1)) for n in new]
        x = batch(new, past, heads, kv_heads, size, slots, width, packed, cache, spare, key, latent is not None)
        if rotary is not None:
            x["cos"], x["sin"] = (quarters if cache else tables)(room + 3, rotary)
        if sinks:
            x["sinks"] = floats(heads, low=-1, high=1)
        if weights:
            x["q_weight"], x["k_weight"] = floats(size, low=0.5, high=1.5), floats(size, low=0.5, high=1.5)
        if places:  # every third token is not kept, the others are kept where the table has them, or elsewhere
            tokens = sum(news) + spare
            x["places"] = rng.permutation(len(x["key_cache"]) * slots)[:tokens].astype(np.int32)
            x["places"][::3] = -1
        if metadata:
            x["metadata"] = Const(np.array(metadata, np.int32))
        return in_order(PAGED, x)

    if rotary is not None:
        attrs["do_rotary"] = 1
    if cache:
        attrs |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_TENSOR"}
    if cache == "int4":
        attrs |= {"k_cache_dtype": "int4", "v_cache_dtype": "int4"}
    if latent is not None:  # how many of a row's channels are values
        attrs = {n: v for n, v in attrs.items() if n not in ("v_quant_type", "v_cache_dtype")}
        attrs |= {"kv_cache_layout": "LATENT", "v_head_size": latent}
    what = [f"{n}+{p}" for n, p in zip(news, pasts)] if len(news) < 5 else [f"{len(news)}_sequences"]
    what += [f"h{heads}_{kv_heads}_{size}", f"of{slots}", cache, name]
    return Case(
        "PagedAttention",
        inputs(0),
        attrs,
        dtype=dtype,
        outputs=3 if latent is None else 2,
        domain=MICROSOFT,
        name="_".join(filter(None, what)),
        family="cached",
        reference=reference(PAGED, cache, **attrs),
        misaligned=misaligned,
        replays=(inputs(1), inputs(2)),
    )


def model_of(op, names, attrs, forms, outputs=3):
    """`forms`: what a node's inputs are, and what they are fed as if that has no type in numpy."""
    narrow = {n: kind for n, (_, _, kind) in forms.items() if kind}
    nodes = [helper.make_node("Cast", [n], [n + "_n"], to=kind) for n, kind in narrow.items()]
    inputs = [("" if n not in forms else n + "_n" * (n in narrow)) for n in names]
    while not inputs[-1]:
        inputs.pop()
    made = ["y", "key_cache_out", "value_cache_out"][:outputs]
    cast = [n for n in made[1:] if n[:-4] in narrow]
    nodes.append(helper.make_node(op, inputs, [n + "_n" * (n in cast) for n in made], "it", domain=MICROSOFT, **attrs))
    nodes += [helper.make_node("Cast", [n + "_n"], [n], to=TensorProto.FLOAT) for n in cast]
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(t)), s)
        for n, (s, t, _) in forms.items()
    ]
    graph = helper.make_graph(nodes, "pages", values, [helper.make_empty_tensor_value_info(n) for n in made])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


class Server:
    """A node whose caches are updated where they are, with or without outputs for them."""

    def __init__(self, sequences, room, outputs, graph=True, cache="", latent=False):
        kv_heads, width = 1 if latent else 2, -(-room // 16)
        self.attrs = {"num_heads": 4, "kv_num_heads": kv_heads, "do_rotary": 1}
        if latent:
            self.attrs |= {"kv_cache_layout": "LATENT"}
        elif cache == "int4":
            self.attrs |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_TENSOR"}
            self.attrs |= {"k_cache_dtype": "int4", "v_cache_dtype": "int4"}
        self.x = batch((1,) * sequences, (0,) * sequences, 4, kv_heads, 64, 16, width, cache=cache, latent=latent)
        self.x["cos"], self.x["sin"] = (quarters if cache else tables)(room, 32)
        self.x = {n: getattr(v, "value", v) for n, v in self.x.items()}
        for n, v in self.x.items():
            if v.dtype == np.float32 and not n.endswith("_scale"):
                self.x[n] = v.astype(np.float16)
        forms = {n: (v.shape, v.dtype, None) for n, v in self.x.items()}
        options = {"enable_cuda_graph": 1, "min_num_runs_before_cuda_graph_capture": 1} if graph and HAS_GRAPHS else {}
        self.session = session(model_of("PagedAttention", PAGED, self.attrs, forms, outputs), **options)
        assert_all_on_encore(self.session)
        self.binding = self.session.io_binding()
        self.inputs = {n: on_device(v) for n, v in self.x.items()}
        for n, value in self.inputs.items():
            self.binding.bind_ortvalue_input(n, value)
        self.y = empty_on_device((sequences, 256), np.float16)
        self.binding.bind_ortvalue_output("y", self.y)
        self.caches = [n for n in ("key_cache", "value_cache") if n in self.x]
        for n in self.caches[: outputs - 1]:
            self.binding.bind_ortvalue_output(n + "_out", self.inputs[n])

    def step(self, graph=None, **changed):
        for n, value in changed.items():
            self.x[n] = np.asarray(value, self.x[n].dtype).reshape(self.x[n].shape)
            self.inputs[n].update_inplace(self.x[n])
        self.session.run_with_iobinding(self.binding, run_options(graph))
        return [v.numpy() for v in (self.y, *(self.inputs[n] for n in self.caches))]
