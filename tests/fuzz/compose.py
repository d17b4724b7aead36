"""Composes the case of a number: a node or a chain of them, what they give on the CPU EP, and how Encore is to run
them."""

import dataclasses

import encore_session
import listed
import numpy as np
import onnx
import onnxruntime as ort
from draw import Draw
from encore_session import HAS_GRAPHS
from mutate import mutate
from proposals import PROPOSALS
from reference import Reference, Refused, Unknown, as_made
from sketch import Sketch
from written_model import CONSTANT, FEED, Value

ROWS = listed.read()
NAMES = sorted(key for key in ROWS if key in PROPOSALS)
UNKNOWN = sorted(  # which test_fuzz.py allows none of
    (domain, op) for domain, op in ROWS if ("" if domain == listed.CHANNELS_LAST else domain, op) not in PROPOSALS
)
NEWEST_OPSET = min(encore_session.NEWEST_OPSET, onnx.defs.onnx_opset_version())
# What no graph holds: control flow, and outputs whose sizes depend on data.
NOT_CAPTURED = {"If", "Loop", "Scan", "NonZero", "Compress", "Unique", "NonMaxSuppression", "DynamicTimeWarping"}
LEVELS = [
    ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
]
PROVIDER_OPTIONS = [
    {"do_copy_in_default_stream": 0},
    {"use_ep_level_unified_stream": 1},
    {"use_arena": 0},
    {"arena.use_cuda_mempool": 1},
    {"deterministic": 1},
    {"enable_cudnn": 0},
    {"enable_skip_layer_norm_strict_mode": 1},
    {"cudnn_conv_use_max_workspace": 0},
]


@dataclasses.dataclass
class Case:
    number: int
    opset: int
    nodes: list
    references: list  # of a Reference for each node
    refused: str | None  # the CPU EP's error, if it refuses the last node
    known: bool  # whether every node has a reference
    bound: bool  # values are bound in device memory, rather than copied for each run
    level: object  # of optimisation, of the second session
    graphs: bool  # which captures
    hidden: bool  # and of which only the last values are outputs
    extra: list  # feeds and constants that are outputs too
    options: dict  # of the provider, in both
    draw: Draw  # for further contents

    def feeds(self):
        return self._sources(FEED)

    def constants(self):
        return self._sources(CONSTANT)

    def _sources(self, origin):
        found = {v.name: v for node in self.nodes for v in node.reads() if v.origin == origin}
        return list(found.values())

    def made(self):
        return [value for node in self.nodes for value in node.makes()]

    def is_constant(self, node):
        """Whether what it makes follows from constants alone."""
        makers = {value.name: other for other in self.nodes for value in other.makes()}
        return all(
            value.origin == CONSTANT or (value.name in makers and self.is_constant(makers[value.name]))
            for value in node.reads()
        )

    def capturable(self):
        """Whether nothing in the model keeps it from being captured: what is read in host memory is constant."""
        return not any(node.op in NOT_CAPTURED or self._needs_host(node) for node in self.nodes)

    def _needs_host(self, node):
        places = row_of((node.domain, node.op), self.opset).on_host
        read = [value for i, value in enumerate(node.inputs) if ("in", i) in places and value is not None]
        return ("out", 0) in places or any(value.origin != CONSTANT for value in read)

    def __str__(self):
        def text(value):
            if value is None:
                return "-"
            shape = "x".join(map(str, value.array.shape)) if value.array is not None else "?"
            return f"{value.name}:{value.type}[{shape}]" + {CONSTANT: "c", FEED: ""}.get(value.origin, "")

        def attributes(node):
            return " ".join(f"{k}={'…' if callable(v) else v}" for k, v in node.attrs.items())

        parts = (f"{n.op}({', '.join(map(text, n.inputs))}) {attributes(n)}".strip() for n in self.nodes)
        return f"opset {self.opset}: " + "; ".join(parts)


def compose(number):
    """The same number gives the same case, as long as proposals and docs/operators.md stay."""
    draw = Draw(number)
    key = NAMES[number % len(NAMES)]
    alone = draw.chance(0.55)
    opset = opset_for(draw, draw.pick(ROWS[key]), key)
    sketch = Sketch(draw, opset, alone)
    case = Case(
        number, opset, [], [], None, True, *_ways(draw), extra=[], options=_options(draw, key, opset), draw=draw
    )
    wanted = 1 if alone else draw.number(3, 12)
    place = draw.number(0, wanted - 1)
    tries = 0
    while len(case.nodes) < wanted and tries < 3 * wanted and not case.refused and case.known:
        tries += 1
        chosen = key if len(case.nodes) == place else _other(draw, opset)
        _add_node(case, sketch, chosen, hostile=draw.chance(0.45 if alone else 0.06))
    _choose_extra(case, draw)
    return case


def opset_for(draw, row, key):
    if key[0]:  # whose versions are no opsets
        return draw.number(13, NEWEST_OPSET)
    until = min(row.until, NEWEST_OPSET)
    since = max(row.since, 7)
    if draw.chance(0.3):
        since = max(since, min(13, until))
    if draw.chance(0.03):
        since, until = row.since, min(7, until)
    return draw.number(min(since, until), until)


def _ways(draw):
    bound = draw.chance(0.4)
    level = draw.pick(LEVELS) if draw.chance(0.5) else LEVELS[0]
    return bound, level, HAS_GRAPHS and draw.chance(0.6), draw.chance(0.5)


def _options(draw, key, opset):
    # onnxruntime has no operators with channels last for opsets that it does not call released, and leaves whole models
    # of the first six to the CPU EP.
    if (listed.CHANNELS_LAST, key[1]) in ROWS and draw.chance(0.6) and 7 <= opset <= 26:
        return {"prefer_nhwc": 1}
    return draw.pick(PROVIDER_OPTIONS) if draw.chance(0.15) else {}


def row_of(key, opset):
    return next((row for row in ROWS[key] if row.since <= opset <= row.until or key[0]), None)


def _other(draw, opset):
    return draw.pick([key for key in NAMES if row_of(key, opset)])


def _add_node(case, sketch, key, hostile):
    """Proposes a node, and takes it if the CPU EP does. An error ends a chain, or is tried again without the node."""
    sketch.domain, sketch.op = key
    sketch.row = row_of(key, case.opset)
    if sketch.row is None:
        return
    before = len(sketch.values)
    node = PROPOSALS[key].propose(sketch)
    if hostile:
        mutate(sketch, node)
    if not _take(case, sketch, node):
        del sketch.values[before:]


def _take(case, sketch, node, reference=None):
    """Whether the node is one that the case can have."""
    if any(value is not None and value.origin != FEED for value in node.inputs[:1]):
        node = node.with_every_output()  # onnxruntime folds constants, on the CPU EP
    refused, known = None, True
    try:
        # What onnx itself cannot write down, such as an attribute beyond its type, is no model.
        reference = reference or Reference(node, case.opset)
        for value, made in zip(node.makes(), reference({v.name: v.array for v in node.reads()}), strict=True):
            value.array = as_made(made, value.type)
    except Refused as error:
        refused = str(error)
    except Unknown:
        known = False
    except (ValueError, TypeError, OverflowError):
        return False
    if (refused or not known) and not sketch.alone and not sketch.draw.chance(0.1):
        return False
    case.nodes.append(node)
    case.references.append(reference)
    case.refused, case.known = refused, known
    sketch.values += node.makes() if known and not refused else []
    sketch.nodes.append(node)
    return True


def case_of(sketch, node, reference=None):
    """The case of a node that somebody else proposes, and may have a reference for."""
    draw = sketch.draw
    case = Case(0, sketch.opset, [], [], None, True, *_ways(draw), extra=[], options={}, draw=draw)
    _take(case, sketch, node, reference)
    return case


def _choose_extra(case, draw):
    """Feeds and constants that the second session hands out as outputs."""
    for value in case.feeds() + case.constants():
        if draw.chance(0.08) and np.asarray(value.array).size and isinstance(value, Value):
            case.extra.append(value)
