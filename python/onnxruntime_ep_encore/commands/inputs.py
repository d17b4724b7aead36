"""Inputs for a model whose shapes are told on the command line."""

import itertools
import re

import numpy as np

from ..values import DTYPES
from .mistake import Mistake


def pairs(given, what):
    """NAME=VALUE, as often as it was given."""
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise Mistake(f"--{what} {each}: it has to be NAME=VALUE")
        if name in found:
            raise Mistake(f"--{what} tells {name} twice")
        found[name] = value
    return found


def each_shape(given):
    """The shapes told, once for each length of a dimension that has several: batch=1,8."""
    lists = [[f"{name}={one}" for one in value.split(",")] for name, value in pairs(given, "shape").items()]
    return [list(choice) for choice in itertools.product(*lists)]


def make_feeds(session, shapes, contents):
    """The model's inputs, of the shapes and contents told; and what was assumed of the others, in sentences."""
    inputs = session.get_inputs()
    shapes, contents = pairs(shapes, "shape"), pairs(contents, "input")
    _know(contents, [each.name for each in inputs], "input", "input")
    feeds, assumed = {}, set()
    for each in inputs:
        if each.type not in DTYPES:
            raise Mistake(f"input {each.name} is a {each.type}, of which encore makes no contents")
        told = contents.get(each.name, "")
        feeds[each.name] = _from_file(each, told) if told.endswith(".npy") else _filled(each, told, shapes, assumed)
    dimensions = {dim for each in inputs for dim in each.shape if isinstance(dim, str)}
    _know(shapes, [*feeds, *sorted(dimensions)], "shape", "input or dimension")
    return feeds, sorted(assumed)


def _know(told, known, option, what):
    for name in told:
        if name not in known:
            raise Mistake(
                f"--{option} {name}: the model has no {what} of that name; it has {', '.join(known) or 'none'}"
            )


def _from_file(given, file):
    try:
        array = np.load(file)
    except (OSError, ValueError) as error:
        raise Mistake(f"--input {given.name}: {error}") from error
    wanted = DTYPES[given.type]
    if array.dtype != wanted:
        raise Mistake(f"--input {given.name}: {file} holds {array.dtype}, and the model wants {wanted}")
    if not _fits(array.shape, given.shape):
        raise Mistake(f"--input {given.name}: {file} is {list(array.shape)}, and the model wants {given.shape}")
    return array


def _filled(given, told, shapes, assumed):
    shape = _shape(given, shapes, assumed)
    dtype = DTYPES[given.type]
    if told:
        try:
            return np.full(shape, float(told) if dtype.kind == "f" else int(told), dtype)
        except (OverflowError, ValueError) as error:
            raise Mistake(f"--input {given.name}: {told!r} is neither a .npy file nor a {dtype}") from error
    if dtype.kind == "f":
        return np.random.default_rng(0).uniform(-1, 1, shape).astype(dtype)
    assumed.add(f"{given.name} is all {'true' if dtype.kind == 'b' else '1'}")
    return np.ones(shape, dtype)


def _shape(given, shapes, assumed):
    if given.name in shapes:
        shape = _lengths(given.name, shapes[given.name])
        if not _fits(shape, given.shape):
            raise Mistake(f"--shape {given.name}={shapes[given.name]}: the model wants {given.shape}")
        return shape
    shape = []
    for axis, dim in enumerate(given.shape):
        if isinstance(dim, int):
            shape.append(dim)
        elif dim in shapes:
            shape += _lengths(dim, shapes[dim], most=1)
        else:
            assumed.add(f"dimension {dim or f'{axis} of {given.name}'} is 1")
            shape.append(1)
    return shape


def _lengths(name, text, most=None):
    if not re.fullmatch(r"\d+(x\d+)*", text) or (most and "x" in text):
        raise Mistake(f"--shape {name}={text}: it has to be {'a number' if most else 'numbers, as 1x3x224x224'}")
    return [int(length) for length in text.split("x")]


def _fits(shape, wanted):
    """Nothing is known of a shape without dimensions: it may be a scalar's, or of any rank."""
    return (
        not wanted or len(shape) == len(wanted) and all(not isinstance(w, int) or w == s for s, w in zip(shape, wanted))
    )
