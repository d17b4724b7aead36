"""Einsum, Hardmax and the losses."""

import numpy as np
from element_types import FLOATS
from proposals import MICROSOFT, proposes

LETTERS = "abcdefgijklxyzABC"


@proposes("Einsum", family="matmul", sums=True, mild=True)
def einsum(s):
    """Terms of a few labels, each of a size of its own; sometimes with an ellipsis or a diagonal."""
    labels = s.draw.shuffled(LETTERS)[: s.draw.number(1, 5)]
    sizes = {label: s.draw.pick([1, 2, 3, 4, 5, 7, 8, 16]) for label in labels}
    dots = s.draw.picks([1, 2, 3], s.draw.number(0, 2)) if s.draw.chance(0.3) else None
    kind = s.draw.pick(s.types())
    terms, inputs = [], []
    for _ in range(s.draw.pick([1, 2, 2, 2, 3])):
        term = s.draw.shuffled(labels)[: s.draw.number(0 if dots is not None else 1, 4)]
        if term and s.draw.chance(0.1):
            term.insert(s.draw.number(0, len(term)), s.draw.pick(term))
        shape = [[sizes[label]] for label in term]
        if dots is not None:
            at = s.draw.number(0, len(term))
            term.insert(at, "...")
            shape.insert(at, [1 if s.draw.chance(0.2) else size for size in dots])
        terms.append("".join(term))
        inputs.append(s.data([kind], shape=sum(shape, []), mild=True))
    equation = ",".join(terms)
    if s.draw.chance(0.8):
        read = [label for label in labels if label in equation]
        output = s.draw.shuffled(read)[: s.draw.number(0, len(read))]
        if dots is not None:
            output.insert(s.draw.number(0, len(output)), "...")
        equation += "->" + "".join(output)
    return s.node(*inputs, equation=equation)


@proposes("Hardmax", family="exact", steady=False)
def hardmax(s):
    x = s.data(low=1)
    return s.node(x, axis=s.maybe(0.7, lambda: s.draw.axis(x.array.ndim)))


@proposes("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", family="reduce", sums=True)
def loss(s):
    x = s.data([name for name in s.types() if name in FLOATS], low=2, high=5, mild=True)
    batch, classes, *rest = x.array.shape
    ignored = s.maybe(0.4, lambda: s.draw.number(-2, max(0, classes - 1)))
    labels = s.draw.numpy.integers(0, max(classes, 1), (batch, *rest))
    if ignored is not None:
        labels = np.where(s.draw.numpy.random(labels.shape) < 0.3, ignored, labels)
    weights = s.maybe(0.5, lambda: s.new(s.draw.numpy.uniform(0.1, 2, classes), x.type, constant=0.5))
    labels = s.new(labels, s.draw.pick(["int32", "int64"]), fixed=True)
    reduction = s.maybe(0.7, lambda: s.draw.pick(["none", "sum", "mean"]))
    two = s.op == "SoftmaxCrossEntropyLoss" and s.draw.chance(0.4)
    return s.node(
        x, labels, weights, types=[None] * (1 + two), wanted=1 + two, ignore_index=ignored, reduction=reduction
    )


@proposes("RouterGateUpProj", domain=MICROSOFT, family="matmul", sums=True, mild=True)
def router_gate_up(s):
    x = s.data(low=1, mild=True)
    router, inter = s.draw.number(1, 9), s.draw.number(0, 20)
    w = s.like(x, [x.array.shape[-1], router + 2 * inter], mild=True)
    limit = s.maybe(0.4, lambda: abs(s.draw.real()))
    return s.node(x, w, wanted=2, router_size=router, limit=limit)
