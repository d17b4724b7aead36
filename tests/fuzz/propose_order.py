"""com.microsoft's operators on integers in a library's orders."""

import numpy as np
from element_types import onnx_type
from proposals import MICROSOFT, proposes

COLUMNS, ROWS, COL32, COL4, COL32_2R = range(5)


def _scale(s):
    return s.fixed(s.draw.pick([0.01, 0.05, 0.5]), "float", constant=0.6)


def _shape(s, *orders):
    tiled = any(order >= COL32 for order in orders)
    rows, columns = (
        (s.draw.pick([32, 64]), s.draw.pick([32, 96])) if tiled else (s.draw.number(1, 9), s.draw.number(1, 9))
    )
    return [*s.draw.pick([[], [1], [3]]), rows, columns]


@proposes("QuantizeWithOrder", "DequantizeWithOrder", domain=MICROSOFT, family="exact", steady=False)
def with_order(s):
    order = s.draw.number(0, 4)
    orders = (order, ROWS) if s.op == "DequantizeWithOrder" else (ROWS, order)
    x = s.data(shape=_shape(s, *orders), mild=True)
    kind = s.draw.pick(["float", "float16"]) if s.op == "DequantizeWithOrder" else "int8"
    to = onnx_type(kind) if s.op == "DequantizeWithOrder" else None
    return s.node(x, _scale(s), types=[kind], order_input=orders[0], order_output=orders[1], to=to)


@proposes("QOrderedGelu", domain=MICROSOFT, family="exact", steady=False)
def gelu(s):
    order = s.maybe(0.5, lambda: s.draw.number(0, 4))
    return s.node(s.data(shape=_shape(s, ROWS)), _scale(s), _scale(s), order_X=order, order_Y=order)


@proposes("QOrderedLayerNormalization", domain=MICROSOFT, family="exact", steady=False)
def norm(s):
    x = s.data(shape=[s.draw.number(0, 3), s.draw.number(1, 4), s.draw.pick([1, 4, 64, 129])])
    gamma = s.data(s.types(2), shape=[x.array.shape[-1]], mild=True)
    beta = s.maybe(0.5, lambda: s.like(gamma, list(gamma.array.shape), mild=True))
    return s.node(x, _scale(s), gamma, beta, _scale(s), epsilon=s.maybe(0.5, lambda: 1e-5))


@proposes("QOrderedMatMul", domain=MICROSOFT, family="exact", steady=False)
def product(s):
    orders = s.draw.pick([(ROWS, COLUMNS), (ROWS, COLUMNS), (COL32, COL4), (COL32, COL32_2R)])
    rows, depth, columns = (s.draw.pick([32, 64]) if orders[0] == COL32 else s.draw.number(1, 20) for _ in range(3))
    batch = s.draw.pick([[], [1], [3]])
    x = s.data(shape=[*batch, rows, depth])
    weight = s.like(x, [*s.draw.pick([[], batch]), depth, columns])
    scales = s.maybe(0.5, lambda: s.data(["float"], shape=[columns], mild=True)) or _scale(s)
    bias = s.maybe(0.5, lambda: s.data(["float"], shape=[columns], mild=True)) if orders[0] == ROWS else None
    added = s.maybe(0.5, lambda: s.like(x, [*batch, rows, columns]))
    rest = (added, _scale(s)) if added else ()
    told = {"order_A": orders[0], "order_B": orders[1], "order_Y": orders[0]}
    return s.node(x, _scale(s), weight, scales, _scale(s), bias, *rest, **told)


def _matrix(s, x, rows, columns):
    scales = s.maybe(0.5, lambda: s.data(["float"], shape=[columns], mild=True)) or _scale(s)
    return s.like(x, [rows, columns]), scales, s.data(["float"], shape=[columns], mild=True)


@proposes("QOrderedAttention", domain=MICROSOFT, family="exact", steady=False)
def attention(s):
    batch, rows, heads = s.draw.number(1, 2), s.draw.pick([1, 7, 70]), s.draw.number(1, 3)
    width = heads * s.draw.pick([1, 4, 16, 40])
    x = s.data(shape=[batch, rows, width])
    weights, scales, biases = zip(*(_matrix(s, x, width, width) for _ in range(3)))
    shape = s.draw.pick([[batch], [2 * batch], [batch, rows], [batch, rows, rows], [batch, 1, rows + 1, rows + 1]])
    seen = np.array(s.draw.picks([0, 1, 1, rows], int(np.prod(shape)))).reshape(shape)
    mask = s.maybe(0.7, lambda: s.fixed(seen, "int32", constant=0.3))
    results = [_scale(s) for _ in range(3)]
    inputs = [x, _scale(s), *results, *weights, *scales, *biases, *(_scale(s) for _ in range(3)), mask]
    told = {"order_input": ROWS, "order_weight": COLUMNS, "order_output": ROWS, "num_heads": heads}
    return s.node(*inputs, **told, unidirectional=s.maybe(0.3, lambda: 1))


@proposes("QOrderedLongformerAttention", domain=MICROSOFT, family="exact", steady=False)
def longformer(s):
    batch, heads, window = s.draw.number(1, 2), s.draw.number(1, 3), s.draw.pick([1, 3, 20])
    rows, hidden = 2 * window * s.draw.number(1, 3), heads * s.draw.pick([1, 4, 16])
    x = s.data(shape=[batch, rows, hidden])
    made = []
    for _ in range(2):
        weight, _, bias = _matrix(s, x, hidden, 3 * hidden)
        made.append([weight, _scale(s), bias])
    mask = s.fixed(np.array(s.draw.picks([0, 0, -10000], batch * rows)).reshape(batch, rows), "float16", constant=0.3)
    tokens = s.fixed(np.array(s.draw.picks([0, 0, 1], batch * rows)).reshape(batch, rows), "int32", constant=0.3)
    told = {"order_input": ROWS, "order_weight": COLUMNS, "order_global_weight": COLUMNS, "order_output": ROWS}
    rest = [*made[1], _scale(s), tokens, _scale(s)]
    return s.node(x, _scale(s), *made[0], _scale(s), _scale(s), mask, *rest, window=window, num_heads=heads, **told)
