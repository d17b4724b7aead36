"""com.microsoft's operators on integers in a library's orders."""

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
