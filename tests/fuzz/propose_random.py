"""Random operators, asked for what leaves nothing to chance: else there would be nothing to compare."""

import numpy as np
from element_types import onnx_type
from proposals import proposes

FLOATS = ["float", "double", "float16", "bfloat16"]


def _law(s):
    if "Normal" in s.op:  # of no scale at all the CPU EP does not survive
        return {"mean": s.draw.pick([1.5, -2.0]), "scale": 1e-30}
    low = s.draw.pick([0.0, 1.5, -2.0])
    return {"low": low, "high": low}


def _seed(s):
    return s.maybe(0.3, lambda: s.draw.pick([0.0, 5.0, -1.5]))


@proposes("RandomNormal", "RandomUniform", family="exact")
def of_a_shape(s):
    kind = s.draw.pick([name for name in FLOATS if name != "bfloat16" or s.opset >= 22])
    told = s.maybe(kind != "float" or 0.5, lambda: onnx_type(kind))
    return s.node(types=[kind], shape=s.draw.shape(), dtype=told, seed=_seed(s), **_law(s))


@proposes("RandomNormalLike", "RandomUniformLike", family="exact")
def of_a_likeness(s):
    x = s.data()
    kind = s.draw.pick([name for name in FLOATS if name != "bfloat16" or s.opset >= 22])
    if x.type in FLOATS and s.draw.chance(0.3):
        return s.node(x, seed=_seed(s), **_law(s))
    return s.node(x, types=[kind], dtype=onnx_type(kind), seed=_seed(s), **_law(s))


@proposes("Bernoulli", family="exact")
def bernoulli(s):
    shape = s.draw.shape()
    p = s.new(s.draw.numpy.integers(0, 2, shape), s.draw.pick(s.types()), constant=0.2)
    if s.draw.chance(0.4):
        return s.node(p, seed=_seed(s))
    kind = s.draw.pick(s.row.types(0, "out"))
    return s.node(p, types=[kind], dtype=onnx_type(kind), seed=_seed(s))


@proposes("Multinomial", family="exact")
def multinomial(s):
    rows, classes = s.draw.number(1, 5), s.draw.number(1, 9)
    logs = np.full((rows, classes), -np.inf)
    logs[:, s.draw.number(0, classes - 1)] = s.draw.real()
    x = s.new(logs, s.draw.pick(s.types()), constant=1)  # other contents would leave a choice
    kind = s.draw.pick(["int32", "int64"])
    samples = s.maybe(0.6, lambda: s.draw.number(1, 40))
    return s.node(x, types=[kind], dtype=onnx_type(kind), sample_size=samples, seed=_seed(s))
