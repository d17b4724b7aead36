"""Language models as onnxruntime-genai's builder makes them: stored as graphs without weights, filled from a seed.

`tools/export_language_models.py` makes the graphs: of each model one in float32 for the CPU, whose answers are the
truth, and for CUDA one in float16, one whose products have weights of four bits, and one in float16 with its cache in
pages; and of one model those whose caches are of codes. The graphs of a model call a weight by the same name and so get
the same values; `rounded=True` gives the float32 model those that four bits can hold.

Random models hesitate between tokens. Here the head looks for the embedding of the token before: each token is followed
by the next number unless attention or the network says something louder, and the best token is far from the second
best. Where head and embedding are one tensor, the last norm turns the signs of half of the features, or each token
would follow itself.
"""

import pathlib
import zlib

import numpy as np
import onnx
from onnx import TensorProto, helper

GRAPHS = pathlib.Path(__file__).resolve().parent / "language"
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.MatMul.weight"
TABLES = {"cos_cache": np.cos, "sin_cache": np.sin}  # of the rotary embedding
THETA = "theta"  # the metadata of those that follow from it; others are stored
BLOCK = 32  # weights that share a scale
LOUDEST = 5.0  # of keys and values, about: a cache of codes clips what is louder
PROJECTIONS = "q_proj", "k_proj", "v_proj"  # parts of qkv_proj, where they are apart
MOST = {TensorProto.INT8: 128, TensorProto.UINT8: 8, TensorProto.FLOAT8E4M3FN: 448}  # of its codes, by the cache's type

# Standard deviations, times the root of what a product sums over, where they aren't 1: of what decides how sharp
# attention is, and of what decides how loud a layer is beside the embedding.
GAINS = {
    "llama": {"qkv_proj": 1.5, "o_proj": 1.2, "down_proj": 1.2},
    "qwen": {"qkv_proj": 1.7, "o_proj": 1.3, "down_proj": 1.3},
    "gptoss": {"qkv_proj": 1.3, "router": 2.0},
}


def names():
    return sorted(file.stem for file in GRAPHS.glob("*.onnx"))


def load(name, kind, seed=0, rounded=False):
    """The model with weights, small enough for one message; `names()` tells which kinds there are."""
    model = graph(name, kind)
    for tensor, values in weights(name, model, seed, rounded):
        tensor.raw_data = values.tobytes()
    return model


def save(name, kind, folder, seed=0):
    """The model with its weights in a file beside it, as one of any size must be; returns the model's file."""
    model = graph(name, kind)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "model.onnx.data", "wb") as file:
        for tensor, values in weights(name, model, seed):
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": "model.onnx.data", "offset": file.tell(), "length": values.nbytes}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            file.write(values.tobytes())
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def without_windowed_caches(model):
    """Every layer's cache holds the whole sequence, as with the builder's windowed_kv_cache=false."""
    for node in model.graph.node:
        kept = [attribute for attribute in node.attribute if attribute.name != "sliding_window_cache"]
        del node.attribute[:]
        node.attribute.extend(kept)
    return model


def cache_shapes(model, batch, capacity):
    """Of the past by input name: what every layer's keys and values need for so many positions."""
    shapes = {}
    (table,) = (tensor for tensor in model.graph.initializer if tensor.name == "cos_cache")
    ends = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            attributes = {attribute.name: attribute.i for attribute in node.attribute}
            positions = attributes["local_window_size"] if attributes.get("sliding_window_cache") else capacity
            for past in node.input[3:5]:
                size = ends[past][3].dim_value or 2 * table.dims[1]
                shapes[past] = (batch, ends[past][1].dim_value, positions, size)
    return shapes


def graph(name, kind):
    """The model without weights."""
    if f"{name}_{kind}" not in names():
        raise ValueError(f"no model is named '{name}_{kind}'; there are: {', '.join(names())}")
    return onnx.load(GRAPHS / f"{name}_{kind}.onnx")


def weights(name, model, seed, rounded=False):
    """Pairs of a tensor and its values, one after the other: a large model's fill the memory."""
    coarse = _quantized_names(graph(name, "int4")) if rounded else ()
    tied = all(tensor.name != EMBEDDING for tensor in model.graph.initializer)
    gains = GAINS[name.partition("_")[0]]
    packed = None
    for tensor in model.graph.initializer:
        if tensor.HasField("raw_data"):
            continue
        base, part = _part(tensor.name)
        dims = tuple(tensor.dims)
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        if part and (packed is None or packed[0] != base):
            rows = _to_rows(base, _values(base, _unquantized_dims(base, part, dims), seed, gains, tied))
            packed = (base, *_quantize(rows))
        if part:
            values = packed[1 if part == "packed" else 2].reshape(dims)
        elif base.endswith(("k_scale", "v_scale")):
            values = (1 + _normal(base, dims, seed) * np.float32(0.1)) * np.float32(LOUDEST / MOST[_cache_type(model)])
        elif base in TABLES:
            values = table(base, dims, float(tensor.metadata_props[0].value))
        elif part := next((part for part in PROJECTIONS if f".attn.{part}." in base), None):
            whole, columns, width = _place(base, part, model)
            values = _values(whole, (dims[0], width), seed, gains, tied)[:, columns]
        else:
            values = _values(base, dims, seed, gains, tied)
            if base in coarse:
                values = _from_rows(base, _round(_to_rows(base, values)))
        yield tensor, values.astype(dtype)


# ---- values


def table(name, dims, theta):
    """Of the rotary embedding: [position, half of the features of a head]."""
    frequencies = theta ** -(np.arange(dims[1]) / dims[1])
    return TABLES[name](np.outer(np.arange(dims[0]), frequencies))


def _values(name, dims, seed, gains, tied):
    """A weight in float32, whichever graph it is for."""
    if name == HEAD and not tied:
        embedding = _normal(EMBEDDING, dims[::-1], seed)
        return np.ascontiguousarray(np.roll(embedding, 1, axis=0).T)
    values = _normal(name, dims, seed)
    if name in (HEAD, EMBEDDING):
        return values
    if tied and ".final_norm_layernorm." in name:
        return np.sign(values)
    if name.endswith("norm.weight"):
        return 1 + values * np.float32(0.1)
    if name.endswith((".bias", ".sinks")):
        return values * np.float32(0.3)
    gain = next((gain for part, gain in gains.items() if f".{part}." in name), 1.0)
    return values * np.float32(gain / _summed(dims) ** 0.5)


def _place(name, part, model):
    """Of a projection that other graphs have beside two others in one: that one, the columns in it, and its width."""
    dims = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    widths = [dims[name.replace(part, other)][1] for other in PROJECTIONS]
    end = sum(widths[: PROJECTIONS.index(part) + 1])
    return name.replace(part, "qkv_proj"), slice(end - dims[name][1], end), sum(widths)


def _cache_type(model):
    return next(value.type.tensor_type.elem_type for value in model.graph.input if value.name.endswith(".key"))


def _normal(name, dims, seed):
    return np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(dims, np.float32)


def _summed(dims):
    """How many products a sum has: weights of experts are [expert, out, in], others [in, out]."""
    return dims[-1] if len(dims) == 3 else dims[0]


# ---- weights of four bits


def _part(name):
    """The name of the weight of which this tensor is a part, and which: None if it is the weight itself."""
    for ending, weight, part in (
        (".weight_Q4", ".weight", "packed"),
        (".weight_scales", ".weight", "scales"),
        (".qweight", ".weight", "packed"),
        (".scales", ".weight", "scales"),
    ):
        if name.endswith(ending):
            return name.removesuffix(ending) + weight, part
    return name, None


def _quantized_names(model):
    parts = (_part(tensor.name) for tensor in model.graph.initializer)
    return {base for base, part in parts if part}


def _is_of_experts(name):
    return ".experts." in name


def _unquantized_dims(name, part, dims):
    if _is_of_experts(name):  # [expert, out, in / 2] and [expert, out, in / BLOCK]
        return (*dims[:2], dims[2] * (2 if part == "packed" else BLOCK))
    return (dims[1] * BLOCK, dims[0])  # of [out, in / BLOCK, BLOCK / 2] and [out, in / BLOCK]


def _to_rows(name, values):
    """With what a product sums over last."""
    return values if _is_of_experts(name) else values.T


def _from_rows(name, values):
    return values if _is_of_experts(name) else np.ascontiguousarray(values.T)


def _codes(rows):
    """Integers from 1 to 15 around 8, in blocks, and the blocks' scales in float16."""
    blocks = np.ascontiguousarray(rows).reshape(*rows.shape[:-1], -1, BLOCK)
    scales = (np.abs(blocks).max(-1, keepdims=True) / 7).astype(np.float16)
    return (np.rint(blocks / scales.astype(np.float32)) + 8).clip(0, 15).astype(np.uint8), scales


def _quantize(rows):
    """Two codes in a byte, the earlier one in the lower bits; and the scales."""
    codes, scales = _codes(rows)
    return codes[..., 0::2] | codes[..., 1::2] << 4, scales[..., 0]


def _round(rows):
    codes, scales = _codes(rows)
    return ((codes.astype(np.float32) - 8) * scales.astype(np.float32)).reshape(rows.shape)


if __name__ == "__main__":
    print(*names(), sep="\n")
