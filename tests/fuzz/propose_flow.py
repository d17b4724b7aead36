"""If, Loop and Scan: small bodies of elementwise operators."""

from element_types import onnx_type
from onnx import helper
from proposals import proposes

NUMBERS = ["float", "double", "float16", "bfloat16", "int32", "int64"]


def _body(name, nodes, inputs, outputs):
    """A callable that makes the graph; inputs and outputs are (name, type), or (name, type, shape)."""

    def make(as_type):
        told = [[helper.make_tensor_value_info(n, onnx_type(as_type(t)), *(shape or [None])) for n, t, *shape in ends]
                for ends in (inputs, outputs)]  # fmt: skip
        return helper.make_graph([helper.make_node(op, i, o, name=f"{name}_{op}") for op, i, o in nodes], name, *told)

    return make


@proposes("If", family="reduce")
def if_(s):
    x = s.data([name for name in NUMBERS if name in s.row.types(0, "out")])
    y = s.partner(x)
    condition = s.fixed(s.draw.chance(0.5), "bool", constant=0.4)
    ways = [
        [("Neg", [x.name], ["{}"])],
        [("Add", [x.name, y.name], ["{}"])],
        [("Abs", [y.name], ["{}_h"]), ("Mul", ["{}_h", x.name], ["{}"])],
        [("Identity", [y.name], ["{}"])],
    ]
    branches = {}
    for key in ("then_branch", "else_branch"):
        named = [
            (op, [i.format(key) for i in ins], [o.format(key) for o in outs]) for op, ins, outs in s.draw.pick(ways)
        ]
        branches[key] = _body(key, named, [], [(key, x.type)])
    return s.node(condition, types=[x.type], captured=[x, y], **branches)


def _operand(s, **form):
    """Where halves go through many steps: numbers of which no digit is lost on the way."""
    value = s.data([name for name in NUMBERS if name in s.types(2)], mild=True, **form)
    if value.type not in ("float16", "bfloat16"):
        return value
    return s.new(s.draw.numpy.integers(-1, 2, value.array.shape), value.type, constant=0.3)


def _beside(s, value, shape):
    if value.type not in ("float16", "bfloat16"):
        return s.like(value, shape, mild=True)
    return s.new(s.draw.numpy.integers(-1, 2, shape), value.type, constant=0.3)


@proposes("Loop", family="reduce", steady=False)
def loop(s):
    x = _operand(s)
    outer = _beside(s, x, x.array.shape)
    body = _body(
        "step",
        [("Identity", ["go"], ["go_on"]), ("Sub", ["state", outer.name], ["next"]), ("Neg", ["next"], ["row"])],
        [("i", "int64", []), ("go", "bool", []), ("state", x.type)],
        [("go_on", "bool"), ("next", x.type), ("row", x.type)],
    )
    count = s.fixed(s.draw.number(0, 4), tame=True)
    go = s.maybe(0.5, lambda: s.fixed(s.draw.chance(0.8), "bool"))
    return s.node(count, go, x, like=2, wanted=2, captured=[outer], body=body)


@proposes("Scan", family="reduce", steady=False)
def scan(s):
    rows = _operand(s, low=1)
    turns = rows.array.size > 0  # else the CPU EP does not survive it
    axis = s.draw.axis(rows.array.ndim) if turns else 0
    shape = list(rows.array.shape)
    del shape[axis]
    state = _beside(s, rows, shape)
    body = _body(
        "step",
        [("Sub", ["state", "row"], ["next"]), ("Abs", ["next"], ["out"])],
        [("state", rows.type), ("row", rows.type)],
        [("next", rows.type), ("out", rows.type)],
    )
    directions = {f"scan_{end}_directions": s.maybe(0.5, lambda: [s.draw.pick([0, 1])]) for end in ("input", "output")}
    turned = {"scan_input_axes": [axis], "scan_output_axes": s.maybe(0.5, lambda: [s.draw.axis(len(shape) + 1)])}
    if not turns or (axis == 0 and s.draw.chance(0.5)):
        turned = {}
    return s.node(state, rows, wanted=2, body=body, num_scan_inputs=1, **directions, **turned)
