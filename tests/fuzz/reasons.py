"""Why a difference from the CPU EP is accepted, if it is."""

import dataclasses

import accepted_microsoft
import accepted_onnx
import accepted_values
from accepted import REFUSED, VALUES
from symptoms import (
    drops,
    is_drawn,
    is_turned,
    says,
)

ACCEPTED = [*accepted_values.ACCEPTED, *accepted_onnx.ACCEPTED, *accepted_microsoft.ACCEPTED]

# Of any operator: a node that Encore declines, for a reason that it tells, and that the CPU EP has no kernel for.
ON_NEITHER = "Encore declines the node, and the CPU EP has no kernel of its type"


# Of any model: an output that onnxruntime has made a constant is on the host, and no replay copies from there.
FOLDED = "onnxruntime folded an output to a constant on the host, and a graph copies nothing from there"


def reason_for(finding):
    """Why this difference is accepted, or None."""
    if finding.kind == REFUSED and says("is made on the host")(finding) and says("captured")(finding):
        return FOLDED
    if finding.kind == REFUSED and says("Provider type for", "Failed to find kernel for")(finding):
        return ON_NEITHER
    # Of two sessions that differ nothing is known but that they do: something before the node may have been drawn.
    shown = finding.kind != VALUES or finding.got is not None
    if not shown:
        earlier = [dataclasses.replace(finding, node=node) for node in finding.case.nodes if "Random" in node.op]
        if any(is_drawn(one) for one in earlier):
            return "what is drawn is random"
    for entry in ACCEPTED:
        if not shown and entry.when not in (is_drawn, is_turned, drops):
            continue
        if finding.node.op in entry.operators.split() and finding.kind == entry.kind and entry.when(finding):
            return entry.reason
    return None
