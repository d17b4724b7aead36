"""Why a difference from the CPU EP is accepted, if it is."""

import dataclasses
import re

import accepted_attention
import accepted_declined
import accepted_microsoft
import accepted_onnx
import accepted_values
import numpy as np
from accepted import DECLINED, REFUSED, SHAPE, SIZED_BY_VALUES, VALUES
from compose import row_of
from symptoms import says

ACCEPTED = [
    *accepted_values.ACCEPTED,
    *accepted_onnx.ACCEPTED,
    *accepted_declined.ACCEPTED,
    *accepted_attention.ACCEPTED,
    *accepted_microsoft.ACCEPTED,
]


def _is_of_no_type(finding):
    told = re.match(r"(in|out)put (\d+) has type (\w+);", finding.text)
    row = row_of((finding.node.domain, finding.node.op), finding.case.opset)
    return told and told[3] not in row.types(int(told[2]), told[1])


OF_ANY = [
    # An output that onnxruntime has made a constant is on the host.
    (
        REFUSED,
        "onnxruntime folded an output to a constant on the host, and a graph copies nothing from there",
        lambda f: says("is made on the host")(f) and says("captured")(f),
    ),
    (
        REFUSED,
        "Encore declines the node, and the CPU EP has no kernel of its type",
        says("Provider type for", "Failed to find kernel for"),
    ),
    (
        DECLINED,
        "onnxruntime puts a value in one place, which two inputs want in two",
        says("puts a value in one place"),
    ),
    (SHAPE, "a size depends on values, of which the last digits differ", says(SIZED_BY_VALUES)),
    (DECLINED, "a word that the attribute doesn't have", lambda f: re.search(" is '(nonsense|[A-Z_]*)'", f.text)),
    (DECLINED, "what computes with shapes stays on the CPU", says("shape arithmetic")),
    (DECLINED, "a type that docs/operators.md doesn't list, which a hostile node has", _is_of_no_type),
]


def reason_for(finding):
    """Why this difference is accepted, or None."""
    for kind, reason, when in OF_ANY:
        if finding.kind == kind and when(finding):
            return reason
    if finding.kind == VALUES and finding.difference is None:
        return _chance(finding)
    entries = [e for e in ACCEPTED if e.kind == finding.kind and finding.node.op in e.operators.split()]
    if finding.kind == VALUES:
        return _of_elements(entries, finding)
    return next((entry.reason for entry in entries if entry.when(finding)), None)


def _chance(finding):
    """Of two sessions that differ nothing is known but that they do: something before the node may have been drawn."""
    nodes = finding.case.nodes
    for node in nodes[: nodes.index(finding.node) + 1]:
        for entry in ACCEPTED:
            if (
                entry.drawn
                and node.op in entry.operators.split()
                and entry.when(dataclasses.replace(finding, node=node))
            ):
                return entry.reason
    return None


def _of_elements(entries, finding):
    """Each element that is wrong has to be excused; a NaN from nowhere is by nobody."""
    left, reasons = finding.difference.wrong, []
    if finding.difference.stray.any():
        return None
    for entry in entries:
        excused = _elements(entry, finding)
        if (left & excused).any():
            reasons.append(entry.reason)
            left = left & ~excused
        if not left.any():
            return "; ".join(reasons)
    return None


def _elements(entry, finding):
    excused, shape = entry.when(finding), finding.got.shape
    assert entry.drawn or np.ndim(excused) or not (shape and excused), f"{entry.reason}: which elements?"
    return np.broadcast_to(excused, shape)
