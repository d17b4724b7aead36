"""Makes a sound node hostile: attributes, shapes, indices and roles that were never meant."""

import numpy as np
from draw import HOSTILE, SMALL
from element_types import DRAWN, INTEGERS, NUMPY, WITHOUT_ARRAYS, carrier, rounded
from written_model import Value


def mutate(sketch, node):
    """Changes one thing, or a few."""
    ways = [_attribute, _attribute, _fixed_input, _fixed_input, _other_shape, _other_type, _absent, _two_roles, _index]
    for _ in range(1 + sketch.draw.chance(0.25)):
        for way in sketch.draw.shuffled(ways):
            if way(sketch, node):
                break
    node.settle_types()


def _attribute(s, node):
    keys = [key for key, value in node.attrs.items() if isinstance(value, (int, float, str, list))]
    if not keys:
        return False
    key = s.draw.pick(keys)
    value = node.attrs[key]
    if s.draw.chance(0.15):
        del node.attrs[key]
    elif isinstance(value, list):
        node.attrs[key] = _list(s, value, s.draw.pick)
    elif isinstance(value, str):
        node.attrs[key] = s.draw.pick(["", "nonsense", value.upper(), value.lower()])
    elif isinstance(value, float):
        node.attrs[key] = s.draw.pick([0.0, -1.0, 1e-38, 3e38, -3e38, float("inf"), float("nan")])
    elif key != "to":
        node.attrs[key] = s.draw.pick(HOSTILE)
    else:
        # Neither a number's type nor bool's; of a string a Cast behind the node would make a number again.
        cast_behind = any(value.type in WITHOUT_ARRAYS for value in node.makes())
        node.attrs[key] = s.draw.pick([0, 14, 99, -1, *[8] * (not cast_behind)])
    return True


def _list(s, values, pick):
    """Another entry, one more, one less, or none."""
    values = list(values)
    way = s.draw.random.random()
    numbers = [0.0, -1.0, 1e30, float("nan")] if values and isinstance(values[0], float) else HOSTILE
    if way < 0.6 and values:
        values[s.draw.number(0, len(values) - 1)] = pick(numbers)
    elif way < 0.75:
        values.insert(s.draw.number(0, len(values)), pick(numbers))
    elif way < 0.9 and values:
        values.pop(s.draw.number(0, len(values) - 1))
    else:
        values = []
    return values


def _input(s, node, fits):
    places = [i for i, value in enumerate(node.inputs) if value is not None and value.array is not None and fits(value)]
    return s.draw.pick(places) if places else None


def _replace(s, node, i, array, name=None):
    """By another value: the old one may be an operand of other nodes."""
    old = node.inputs[i]
    made = s.new(array, name or old.type, constant=0.5, fixed=old.fixed, tame=old.tame)
    node.inputs[i] = made
    return True


def _fixed_input(s, node):
    i = _input(s, node, lambda value: value.fixed)
    if i is None:
        return False
    value = node.inputs[i]
    array, kind = value.array, value.type
    way = s.draw.random.random()
    if way < 0.08:
        return _replace(s, node, i, array.reshape([1, *array.shape] if s.draw.chance(0.5) else array.reshape(-1).shape))
    if way < 0.16 and kind in ("int64", "int32"):
        other = "int32" if kind == "int64" else "int64"
        return _replace(s, node, i, np.clip(array, -(2**31), 2**31 - 1), other)
    if kind == "bool":
        return _replace(s, node, i, s.draw.contents("bool", s.draw.shape(0, 2)))
    if kind in INTEGERS:
        info = np.iinfo(NUMPY[kind])
        numbers = [n for n in (SMALL if value.tame else HOSTILE) if info.min <= n <= info.max]
    else:
        numbers = [0.0, -1.0, -0.5, 1.0, *([] if value.tame else [1e-30, 1e30, np.inf, -np.inf, np.nan])]
    if array.ndim == 0:
        return _replace(s, node, i, np.array(s.draw.pick(numbers)))
    made = _list(s, array.reshape(-1).tolist(), lambda _: s.draw.pick(numbers))
    return _replace(s, node, i, np.array(made, carrier(kind)))


def _other_shape(s, node):
    i = _input(s, node, lambda value: not value.fixed)
    if i is None:
        return False
    shape, kind = list(node.inputs[i].array.shape), node.inputs[i].type
    way = s.draw.random.random()
    if way < 0.2:
        shape = s.draw.shape()
    elif way < 0.35:
        shape.insert(s.draw.number(0, len(shape)), s.draw.pick([0, 1, 2]))
    elif not shape:
        shape = [s.draw.pick([0, 1, 2])]
    elif way < 0.5:
        shape.pop(s.draw.number(0, len(shape) - 1))
    else:
        k = s.draw.number(0, len(shape) - 1)
        shape[k] = max(0, s.draw.pick([0, 1, shape[k] + 1, shape[k] - 1]))
    if kind in INTEGERS:  # in the range that they had: indices stay indices
        some = node.inputs[i].array.reshape(-1)
        array = s.draw.numpy.choice(some, shape) if some.size else np.zeros(shape)
    else:
        array = s.draw.contents(kind, shape, mild=True)
    return _replace(s, node, i, array)


def _other_type(s, node):
    i = _input(s, node, lambda value: not value.fixed)
    if i is None:
        return False
    kind = s.draw.pick(s.row.types(i) or DRAWN)
    with np.errstate(all="ignore"):
        array = np.asarray(node.inputs[i].array, np.float64)
    whole = np.nan_to_num(array, nan=0, posinf=9, neginf=9).clip(0, 100) if kind in INTEGERS else array
    return _replace(s, node, i, rounded(whole, kind), kind)


def _absent(s, node):
    if not node.inputs:
        return False
    i = s.draw.number(0, len(node.inputs) - 1)
    if s.op == "Loop" and i == 0:  # without a count the body goes on forever
        return False
    if s.row.is_variadic():  # of which the CPU EP does not survive that one in the middle is absent
        node.inputs.pop(i)
    else:
        node.inputs[i] = None
    while node.inputs and node.inputs[-1] is None:
        node.inputs.pop()
    return True


def _two_roles(s, node):
    if len(node.inputs) < 2:
        return False
    i, j = s.draw.random.sample(range(len(node.inputs)), 2)
    node.inputs[i] = node.inputs[j]
    return isinstance(node.inputs[j], Value)


def _index(s, node):
    i = _input(s, node, lambda value: not value.fixed and value.type in ("int32", "int64") and value.array.size)
    if i is None:
        return False
    array = node.inputs[i].array.copy()
    info = np.iinfo(array.dtype)
    array.reshape(-1)[s.draw.number(0, array.size - 1)] = s.draw.pick([n for n in HOSTILE if info.min <= n <= info.max])
    return _replace(s, node, i, array)
