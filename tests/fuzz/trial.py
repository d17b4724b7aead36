"""Tries a case on Encore: once with all values laid open, each node checked with what it read, and once more in
another way that must give the same."""

import contextlib
import dataclasses
import os
import re
import tempfile

import encore_session
import numpy as np
import onnxruntime as ort
from accepted import DECLINED, REFUSED, SERVED, SHAPE, SIZED_BY_VALUES
from compare import Difference, differences, run_differs
from compose import row_of
from element_types import DRAWN, WITHOUT_ARRAYS, carrier
from element_types import wide as wide_type
from encore_session import EAGER, EP_NAME, Bound
from reasons import reason_for
from reference import message, quiet_options
from written_model import FEED, write

NO_LEVEL = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
OTHER_SHAPE = "but the computed output shape for this run"  # onnxruntime's error where it has made room for another


@dataclasses.dataclass
class Finding:
    case: object
    node: object
    kind: str  # refused, served, declined, values, shape
    when: str
    text: str
    arrays: dict = dataclasses.field(default_factory=dict)  # all values by name, if the node's own are wrong
    difference: Difference | None = None  # then

    got = property(lambda self: self.difference.got)
    wanted = property(lambda self: self.difference.wanted)
    output = property(lambda self: self.difference.output)

    def __str__(self):
        return f"{self.kind}: {self.node.name} {self.when}: {self.text} | {self.case}"


@dataclasses.dataclass
class Outcome:
    finding: Finding | None = None
    accepted: list = dataclasses.field(default_factory=list)  # reasons
    disputed: list = dataclasses.field(default_factory=list)  # nodes of accepted differences
    nodes: int = 0
    nodes_on_encore: int = 0
    ran: set = dataclasses.field(default_factory=set)  # (domain, operator) of each node that Encore ran to its end


def fed(case, contents, wide=False):
    """What a model's feeds are, of arrays by the names of values."""
    arrays = {}
    for value in case.feeds():
        array = contents[value.name]
        if wide:
            arrays[value.name] = array.astype(carrier(wide_type(value.type)))
        else:
            arrays[f"{value.name}_fed" if value.type in WITHOUT_ARRAYS else value.name] = array
    return arrays


class _Session:
    """Of a case, with some of its values as outputs."""

    def __init__(self, case, outputs, level=NO_LEVEL, **options):
        self.case, self.outputs = case, outputs
        self.model, self.names = write(case.nodes, outputs, case.opset)
        self.bound = None
        options = {"auto_graph": 0, **case.options, **options}
        self.session = encore_session.make_session(self.model, quiet_options(level), **options)

        parts = self.session.get_provider_graph_assignment_info()
        placed = [(part.ep_name, node) for part in parts for node in part.get_nodes()]
        self.placed = {node.name: ep for ep, node in placed}
        self.on_encore = {(node.domain, node.op_type) for ep, node in placed if ep == EP_NAME}

    def run(self, contents):
        made = self.session.run(self.names, fed(self.case, contents))
        return {value.name: array for value, array in zip(self.outputs, made, strict=True)}

    def infers_wrong_shapes(self):
        """Whether the shapes that onnxruntime infers, of which it makes an If's outputs, are not the reference's."""
        inferred = {output.name: output.shape for output in self.session.get_outputs()}
        return any(
            isinstance(told, int) and told != made
            for name, value in zip(self.names, self.outputs)
            for told, made in zip(inferred[name], value.array.shape)
        )

    def bind(self, contents, like):
        """With all in device memory; outputs have the forms of the arrays in `like`."""
        forms = {n: (like[v.name].shape, like[v.name].dtype) for n, v in zip(self.names, self.outputs)}
        self.bound = Bound(self.session, fed(self.case, contents), forms)

    def run_bound(self, contents, graph_id=None):
        made = self.bound.run(fed(self.case, contents), graph_id)
        return {value.name: made[name] for name, value in zip(self.names, self.outputs)}


def try_case(case, phase=lambda name: None):
    """The Outcome; phase(name) is told who is at work, should the process end."""
    outcome = Outcome()
    if not case.nodes:
        return outcome
    finding = _find(case, outcome, phase)
    if not _is_accepted(finding, outcome):
        outcome.finding = finding
    return outcome


def _is_accepted(finding, outcome):
    reason = finding and reason_for(finding)
    if reason:
        outcome.accepted.append(reason)
    return bool(reason)


def _find(case, outcome, phase):
    contents = {value.name: value.array for value in case.feeds() + case.constants()}
    phase("Encore")
    first = None
    try:
        first = _Session(case, case.made())
        outcome.nodes_on_encore = sum(name == EP_NAME for name in first.placed.values())
        outcome.nodes = len(first.placed)
        if case.bound and case.known and not case.refused:
            values = _run_bound(first, case, contents)
        else:
            values = first.run(contents)
    except AssertionError:
        raise
    except Exception as error:
        phase("reference")
        if finding := _find_unclaimed(case, error):
            return finding
        if case.refused or not case.known or _is_onnxruntimes(error) or _cpu_refuses(case, case.made(), NO_LEVEL):
            return _after_an_error(case, contents, first, phase)
        if first and OTHER_SHAPE in str(error) and first.infers_wrong_shapes():
            return _after_an_error(case, contents, first, phase)
        culprit = _culprit(case, error)
        return _before(case, culprit, contents) or Finding(case, culprit, REFUSED, "eager", message(error))
    if case.refused:
        phase("reference")
        if not _cpu_refuses(case, case.made(), NO_LEVEL):
            return None
        return Finding(case, case.nodes[-1], SERVED, "eager", f"the CPU EP says: {case.refused[:500]}")
    outcome.ran = first.on_encore
    if finding := _find_lost_claim(case, first, outcome):
        return finding
    if not case.known:
        return None
    phase("reference")
    if finding := _check_nodes(case, first, {**contents, **values}, "eager", outcome):
        return finding
    return _second(case, contents, values, first, outcome, phase)


def _run_bound(session, case, contents):
    """A wrong shape doesn't fit what is bound: a plain run tells more of it than onnxruntime's error. And some shapes
    that onnxruntime infers are wrong."""
    session.bind(contents, {value.name: value.array for value in case.made()})
    try:
        return session.run_bound(contents)
    except Exception as error:
        if OTHER_SHAPE not in str(error) and not _is_onnxruntimes(error):
            raise
    return session.run(contents)


def _cpu_refuses(case, outputs, level):
    """The CPU EP's error for the model as a whole, which onnxruntime may judge differently from single nodes."""
    if not all(reference.by_cpu for reference in case.references):
        return case.refused
    for wide in (False, True):
        model, names = write(case.nodes, outputs, case.opset, wide)
        try:
            session = ort.InferenceSession(model, quiet_options(level), providers=["CPUExecutionProvider"])
            session.run(names, fed(case, {value.name: value.array for value in case.feeds()}, wide))
        except Exception as error:
            if "NOT_IMPLEMENTED" not in str(error):
                return message(error)
    return None


def _before(case, node, contents):
    """What is wrong with the nodes before one that fails, of which that may come; an accepted one too, and sizes that
    depend on values."""
    count = case.nodes.index(node)
    before = dataclasses.replace(case, nodes=case.nodes[:count], references=case.references[:count])
    try:
        arrays = {**contents, **_Session(before, before.made()).run(contents)} if count else {}
    except Exception as error:  # of a node that comes earlier, but ran later
        return _before(case, _culprit(before, error), contents)
    findings = (f for reference in before.references for f in _findings(case, reference, arrays, "eager"))
    return next(findings, None) or _find_other_sizes(before, arrays)


def _find_other_sizes(case, arrays):
    """A node that makes as many as its values say, which are other ones in their last digits."""
    for node in case.nodes:
        for value in node.makes():
            if arrays[value.name].shape != value.array.shape:
                text = f"{SIZED_BY_VALUES} {value.name}, of {list(arrays[value.name].shape)}"
                return Finding(case, node, SHAPE, "eager", text)
    return None


def _findings(case, reference, arrays, when):
    for found in differences(reference, arrays):
        yield Finding(case, reference.node, found.kind, when, found.text, arrays, found)


def _find_lost_claim(case, session, outcome):
    """A node that the CPU EP ran although Encore's tables have it, for a reason that is not known to be one."""
    lost = [n for n in case.nodes if session.placed.get(n.name, EP_NAME) != EP_NAME and _is_in_tables(case, n)]
    said = why_declined(case) if lost else {}
    for node in lost:
        finding = Finding(case, node, DECLINED, "eager", said.get(node.name, "Encore does not say why"))
        if not _is_accepted(finding, outcome):
            return finding
    return None


def _find_unclaimed(case, error):
    """A node that nobody has a kernel for, although Encore's tables have it, and nothing is said against it."""
    node = _culprit(case, error)
    lacking = "Could not find an implementation for", "Failed to find kernel for"
    if not any(words in str(error) for words in lacking) or not _is_in_tables(case, node):
        return None
    if node.name in why_declined(case):
        return None
    return Finding(case, node, DECLINED, "eager", "Encore does not say why, and the CPU EP has no kernel")


def _is_in_tables(case, node):
    row = row_of((node.domain, node.op), case.opset)
    return row and all(v is None or v.type in (row.types(i) or DRAWN) for i, v in enumerate(node.inputs))


def why_declined(case):
    """Encore's reasons, by the names of nodes."""
    options = quiet_options()
    options.log_severity_level = 2  # warnings, which go to the process' standard error
    model, _ = write(case.nodes, case.made(), case.opset)
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        with contextlib.suppress(Exception):
            encore_session.make_session(model, options, **case.options, log_placement=1)
        os.dup2(kept, 2)
        os.close(kept)
        file.seek(0)
        said = file.read().decode(errors="replace")
    return dict(re.findall(r"node '([^']*)' is not on Encore: ([^\x1b\n]*)", said))


def _is_onnxruntimes(error):
    """What it says of bound outputs where the model's inferred shapes are not those that every EP computes, of
    arrays that its Python does not have, or of layouts that it cannot turn itself."""
    said = (
        "Please fix either the inputs/outputs or the model",
        "No corresponding Numpy type",
        "core/optimizer/transpose_optimization/",
        "of operator (QuantizeLinear) in node (QuantizeLinear_token",
    )
    return any(words in str(error) for words in said)


def _culprit(case, error):
    """The node that an error names; onnxruntime adds to the names of nodes whose layout it changes."""
    named = (node for node in reversed(case.nodes) if re.search(f"'{node.name}('|_token)", str(error)))
    return next(named, case.nodes[-1])


def _check_nodes(case, session, arrays, when, outcome):
    for reference in case.references:
        node = reference.node
        # onnxruntime has ways of its own with halves on the CPU.
        if session.placed.get(node.name) != EP_NAME and any(wide_type(v.type) != v.type for v in node.reads()):
            continue
        # A hostile node before this one has made another type, of which it was told.
        if any(arrays[v.name].dtype != carrier(v.type) for v in node.reads()):
            continue
        for finding in _findings(case, reference, arrays, when):
            if not _is_accepted(finding, outcome):
                return finding
            outcome.disputed.append(node)
    return None


def _after_an_error(case, contents, first, phase):
    """A capture that fails where the eager run has: no more may come of it than an error."""
    if not (first and case.graphs and case.capturable()):
        return None
    phase("Encore")
    try:
        session = _Session(case, case.made(), enable_cuda_graph=1, min_num_runs_before_cuda_graph_capture=1)
        binding = session.session.io_binding()
        for name, array in fed(case, contents).items():
            binding.bind_ortvalue_input(name, encore_session.on_device(array))
        device = encore_session.capi.OrtDevice(1, 0, encore_session.NVIDIA, 0)
        for name in session.names:
            binding._iobinding.bind_output(name, device)
        session.session.run_with_iobinding(binding)
    except Exception:
        return None
    if not case.refused:
        return None
    return Finding(case, case.nodes[-1], SERVED, "captured", f"the CPU EP says: {case.refused[:500]}")


def _new_contents(case, contents):
    """The same values elsewhere: still in range for indices, still with the NaNs."""
    fresh = dict(contents)
    for value in case.feeds():
        if not value.fixed:
            array = contents[value.name]
            fresh[value.name] = case.draw.numpy.permutation(array.reshape(-1)).reshape(array.shape)
    return fresh


def _second(case, contents, values, first, outcome, phase):
    """Another session, with what onnxruntime makes of the model at its level, run plainly or captured, asked or not."""
    level_changed = case.level != NO_LEVEL
    graphs = case.graphs and case.capturable() and outcome.nodes_on_encore == outcome.nodes
    keeps_sizes = case.capturable() or not case.bound  # of bound outputs
    unasked = not graphs and len(case.nodes) > 1 and keeps_sizes and case.draw.chance(0.5)
    if not (graphs or unasked or level_changed or case.extra or case.hidden):
        return None
    if level_changed and any(map(case.is_constant, outcome.disputed)):
        return None  # onnxruntime has the CPU EP fold it
    outputs = (case.nodes[-1].makes() if case.hidden else case.made()) + case.extra
    options = {"auto_graph": 1} if unasked else {}
    if graphs:
        options = {"enable_cuda_graph": 1, "min_num_runs_before_cuda_graph_capture": 1}
    ways = [("in another session", EAGER if graphs else None)]
    if graphs or unasked:
        by = " unasked" if unasked else ""
        ways += [(f"captured{by}", None), (f"replayed{by}", None), (f"replayed{by} again", None)]
    second = None
    when = "when another session is made"
    try:
        phase("Encore")
        second = _Session(case, outputs, case.level, **options)
        for when, graph_id in ways:
            if when.startswith("replayed"):
                contents = _new_contents(case, contents)
                phase("Encore")
                try:
                    values = first.run(contents)
                except Exception:  # the new contents are an error, which is another case's to look at
                    return None
                phase("reference")
                when_eager = "eager, with new contents"
                if finding := _check_nodes(case, first, {**contents, **values}, when_eager, outcome):
                    return finding
            phase("Encore")
            everything = {**contents, **values}
            if graphs or case.bound:
                if not second.bound:
                    second.bind(contents, everything)
                got = second.run_bound(contents, graph_id)
            else:
                got = second.run(contents)
            for value in outputs:
                if value.origin == FEED and second.bound:
                    continue  # onnxruntime puts the feed itself among the outputs, and nothing into the bound one
                wrong = run_differs(case, value.type, got[value.name], everything[value.name], level_changed)
                if wrong:
                    node = next((n for n in case.nodes if value in n.makes()), case.nodes[-1])
                    text = f"{value.name} beside the first session's: {wrong[1]}"
                    return Finding(case, node, wrong[0], _told(when, case), text)
    except AssertionError:
        raise
    except Exception as error:
        phase("reference")
        if _is_onnxruntimes(error) or _cpu_refuses(case, outputs, case.level):
            return None
        return Finding(case, _culprit(case, error), REFUSED, _told(when, case), message(error))
    return None


def _told(when, case):
    extra = f", {', '.join(f'{v.origin} {v.name}' for v in case.extra)} handed out" if case.extra else ""
    level = f", {case.level.name}" if case.level != NO_LEVEL else ""
    options = "".join(f", {key}={value}" for key, value in case.options.items())
    return when + level + extra + options


def describe(case):
    """For a person who repeats it."""
    lines = [str(case)]
    for value in case.feeds() + case.constants():
        with np.printoptions(threshold=40, edgeitems=6, linewidth=1000):
            flat = value.array.reshape(-1)
            lines.append(f"{value.origin} {value.name} {value.type} {list(value.array.shape)} {value.dims}: {flat}")
    assert all(value.array.dtype == carrier(value.type) for value in case.feeds())
    return "\n".join(lines)
