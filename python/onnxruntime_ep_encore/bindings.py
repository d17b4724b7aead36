"""Sessions whose bound runs have a graph's id, and those that know which buffers are bound, and refuse others, or none,
where a captured graph would use the old ones."""

import threading
from functools import cache

_GRAPH_ID = "gpu_graph_id"
_giving = threading.Lock()


@cache
def session_class(ort):
    """An InferenceSession whose bound runs all have an id."""

    class Session(ort.InferenceSession):
        def run_with_iobinding(self, iobinding, run_options=None):
            _graph_id(run_options)
            super().run_with_iobinding(iobinding, run_options)

    return Session


@cache
def watching_session_class(ort, graph_report):
    """An InferenceSession that refuses what `graph_report(session)` tells would replay with other buffers."""

    class Binding(ort.IOBinding):
        def __init__(self, session):
            super().__init__(session)
            self._inputs = session._input_names
            self._bound = {}
            self._known = {}  # of graphs whose buffers are these, the epoch, by thread and graph id

        def _note(self, name, what):
            self._bound[name] = what
            self._known.clear()

        def bind_cpu_input(self, name, arr_on_cpu):
            super().bind_cpu_input(name, arr_on_cpu)
            self._note(name, object())  # a copy on the device that nobody else has

        def bind_input(self, name, device_type, device_id, element_type, shape, buffer_ptr):
            super().bind_input(name, device_type, device_id, element_type, shape, buffer_ptr)
            self._note(name, buffer_ptr)

        def bind_ortvalue_input(self, name, ortvalue):
            super().bind_ortvalue_input(name, ortvalue)
            self._note(name, _address(ortvalue))

        def bind_output(self, name, device_type="cpu", device_id=0, element_type=None, shape=None, buffer_ptr=None):
            super().bind_output(name, device_type, device_id, element_type, shape, buffer_ptr)
            self._note(name, buffer_ptr or (object() if device_type != "cpu" else "cpu"))

        def bind_ortvalue_output(self, name, ortvalue):
            super().bind_ortvalue_output(name, ortvalue)
            self._note(name, _address(ortvalue))

        def clear_binding_inputs(self):
            super().clear_binding_inputs()
            self._forget(self._bound.keys() & self._inputs)

        def clear_binding_outputs(self):
            super().clear_binding_outputs()
            self._forget(self._bound.keys() - self._inputs)

        def _forget(self, names):
            for name in names:
                del self._bound[name]
            self._known.clear()

    class Session(ort.InferenceSession):
        """An onnxruntime.InferenceSession, but for the check of what is bound."""

        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self._input_names = {each.name for each in self.get_inputs()}
            self._captured = {}  # what is bound, by thread and graph id
            self._epoch = 0  # counts the changes of that

        def io_binding(self):
            return Binding(self)

        def run(self, output_names, input_feed, run_options=None):
            self._check_unbound(run_options)
            return super().run(output_names, input_feed, run_options)

        def run_with_ort_values(self, output_names, input_dict_ort_values, run_options=None):
            self._check_unbound(run_options)
            return super().run_with_ort_values(output_names, input_dict_ort_values, run_options)

        def run_with_iobinding(self, iobinding, run_options=None):
            known, graph_id = getattr(iobinding, "_known", None), _graph_id(run_options)
            if known is not None:
                graph = threading.get_ident(), graph_id
                if known.get(graph) != self._epoch:
                    self._check(iobinding, *graph)
            super().run_with_iobinding(iobinding, run_options)

        def release_captured_graph(self, graph_annotation_id):
            self._epoch += 1
            super().release_captured_graph(graph_annotation_id)

        def _check(self, binding, thread, graph_id):
            if graph_id >= 0:
                before = self._captured.get((thread, graph_id))
                if before is not None and before != binding._bound and self._is_ready(graph_id):
                    raise ValueError(_refusal(before, binding._bound, graph_id))
                if before is None or before != binding._bound:
                    self._captured[thread, graph_id] = dict(binding._bound)
                    self._epoch += 1
            binding._known[thread, graph_id] = self._epoch

        def _check_unbound(self, run_options):
            graph_id = _graph_id(run_options)
            if (threading.get_ident(), graph_id) in self._captured and self._is_ready(graph_id):
                raise ValueError(
                    f"graph {graph_id} is captured, and a replay would read none of these inputs and give no results: "
                    "use run_with_iobinding, run without a graph (gpu_graph_id=-1), or release the graph first "
                    f"(session.release_captured_graph({graph_id}))"
                )

        def _is_ready(self, graph_id):
            return any(report["id"] == graph_id and report["state"] == "ready" for report in graph_report(self))

    return Session


def _address(ortvalue):
    try:
        return ortvalue.data_ptr()
    except Exception:  # noqa: BLE001  a sequence, or no tensor at all
        return object()


def _graph_id(run_options):
    """Options without an id are given 0, which that stands for: to ask for an entry that there is not takes tens of
    microseconds, and from 1.30 on onnxruntime asks in every run that is bound."""
    if run_options is None:
        return 0
    try:
        return int(run_options.get_run_config_entry(_GRAPH_ID))
    except RuntimeError:  # there is none
        _give_id(run_options)
    except ValueError:
        pass
    return 0


def _give_id(run_options):
    with _giving:  # or another thread's run may be reading what is written once more
        try:
            run_options.get_run_config_entry(_GRAPH_ID)
        except RuntimeError:
            run_options.add_run_config_entry(_GRAPH_ID, "0")


def _refusal(before, now, graph_id):
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    named = ", ".join(f"'{name}'" for name in changed)
    return (
        f"graph {graph_id} was captured with another buffer for {named}, which is still in use, and a replay would use "
        "that: write into the buffer that was bound then (update_inplace), give this one a gpu_graph_id of its own, or "
        f"release the graph first (session.release_captured_graph({graph_id}))"
    )
