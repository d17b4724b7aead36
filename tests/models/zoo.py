"""Well-known models for tests and benchmarks: stored as graphs without weights, filled from a seed when loaded.

`tools/export_models.py` makes the graphs. A tensor it left empty carries the metadata `seeded: <mean> <std>`, measured
on a model whose activations are of unit size: filled with normal numbers of that kind, a model stays within float16.
Only the float32 graphs are stored; the exporter checks that torch's float16 graphs differ from them in types alone.
Needs numpy and onnx, nothing else. `python zoo.py NAME...` prints the files of models, or all names if given none.
"""

import hashlib
import os
import pathlib
import sys
import zlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

GRAPHS = pathlib.Path(__file__).resolve().parent
CACHE = GRAPHS.parents[1] / "build" / "models"
SEEDED = "seeded"
BATCH = "batch"


def names():
    """Every model that load() knows."""
    stored = sorted(file.stem for file in GRAPHS.glob("*.onnx"))
    return [f"{stem}_{suffix}" for stem in stored for suffix in ("f32", "f16")] + ["chain_f32"]


def load(name, seed=0, batch=None):
    """The model with weights. Its first dimension is dynamic unless `batch` says how large it is."""
    return _complete(_without_weights(name), seed, batch)


def filled(file):
    """A stored graph with weights."""
    return _complete(onnx.load(file), 0, None)


def chain(n=100, seed=0, batch=None):
    """n dependent rounds of mul, add, tanh on [batch, 256]; load("chain_f32") is chain(100)."""
    return _complete(_chain_without_weights(n), seed, batch)


def path(name, seed=0, batch=None, directory=None):
    """A file with load()'s model, written on first use to `directory`, $ENCORE_MODEL_CACHE or build/models."""
    directory = pathlib.Path(directory or os.environ.get("ENCORE_MODEL_CACHE") or CACHE)
    source = pathlib.Path(__file__).read_bytes() + _without_weights(name).SerializeToString(deterministic=True)
    variant = "dynamic" if batch is None else f"b{batch}"
    file = directory / f"{name}_{variant}_seed{seed}_{hashlib.sha256(source).hexdigest()[:12]}.onnx"
    if not file.exists():
        directory.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}")
        onnx.save(load(name, seed, batch), unfinished)
        unfinished.replace(file)  # Other processes see a whole file or none.
    return file


def inputs(name, batch=1, seed=0):
    """Feeds for one run, by input name."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in _without_weights(name).graph.input:
        tensor = value.type.tensor_type
        shape = [batch if dim.dim_param == BATCH else dim.dim_value for dim in tensor.shape.dim]
        feeds[value.name] = _FEEDS[value.name](rng, shape).astype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return feeds


def to_half(model):
    """Makes float16 of everything that is float32, as torch does when it exports `module.half()`."""
    graph = model.graph
    limit = np.finfo(np.float16).max  # A mask is the least number of its type.
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            if tensor.HasField("raw_data"):
                tensor.raw_data = numpy_helper.to_array(tensor).clip(-limit, limit).astype(np.float16).tobytes()
            tensor.data_type = TensorProto.FLOAT16


def mark_seeded(tensor, mean, std):
    """Leaves the values of a tensor to load()."""
    tensor.metadata_props.add(key=SEEDED, value=f"{mean:g} {std:.3g}")


def _without_weights(name):
    if name not in names():
        raise ValueError(f"no model is named '{name}'; there are: {', '.join(names())}")
    if name == "chain_f32":
        return _chain_without_weights(100)
    stem, _, suffix = name.rpartition("_")
    model = onnx.load(GRAPHS / f"{stem}.onnx")
    if suffix == "f16":
        to_half(model)
    return model


def _chain_without_weights(n):
    """Every round adds x, so that the output depends on it however long the chain is."""
    width = 256
    nodes = []
    weights = []
    last = "x"
    for i in range(n):
        weights.append(TensorProto(name=f"scale_{i}", data_type=TensorProto.FLOAT, dims=[width]))
        mark_seeded(weights[-1], mean=1, std=0.1)
        nodes += [
            helper.make_node("Mul", [last, f"scale_{i}"], [f"mul_{i}"], f"mul_{i}"),
            helper.make_node("Add", [f"mul_{i}", "x"], [f"add_{i}"], f"add_{i}"),
            helper.make_node("Tanh", [f"add_{i}"], [f"tanh_{i}"], f"tanh_{i}"),
        ]
        last = f"tanh_{i}"
    ends = [helper.make_tensor_value_info(key, TensorProto.FLOAT, [BATCH, width]) for key in ("x", last)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _complete(model, seed, batch):
    for tensor in model.graph.initializer:
        _fill(tensor, seed)
    if batch is not None:
        _fix_batch(model.graph, batch)
    return model


def _fill(tensor, seed):
    for entry in tensor.metadata_props:
        if entry.key == SEEDED:
            mean, std = map(np.float32, entry.value.split())
            rng = np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])
            values = rng.standard_normal(tuple(tensor.dims), np.float32) * std + mean
            tensor.raw_data = values.astype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).tobytes()
            tensor.metadata_props.remove(entry)
            return


def _fix_batch(graph, batch):
    del graph.value_info[:]  # Shapes derived from the batch; whoever reads the model infers them anew.
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == BATCH:
                dim.dim_value = batch


def _normal(rng, shape):
    return rng.standard_normal(shape, np.float32)


def _image(rng, shape):
    """Coarse patches under fine noise; noise alone would make all images alike to a network that averages them."""
    patch = 56
    coarse = _normal(rng, [*shape[:2], shape[2] // patch, shape[3] // patch])
    return coarse.repeat(patch, 2).repeat(patch, 3) + 0.5 * _normal(rng, shape)


def _tokens(rng, shape):
    return rng.integers(0, 30522, shape)  # BERT's vocabulary


def _padding(rng, shape):
    """1 for a token, 0 for padding after it."""
    lengths = rng.integers(shape[1] // 2, shape[1], (shape[0], 1), endpoint=True)
    return np.arange(shape[1]) < lengths


_FEEDS = {"image": _image, "input_ids": _tokens, "attention_mask": _padding, "x": _normal}


if __name__ == "__main__":
    for each in sys.argv[1:]:
        print(path(each))
    if not sys.argv[1:]:
        print(*names(), sep="\n")
