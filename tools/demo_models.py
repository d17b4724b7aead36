"""The demo's models, on the CPU and on Encore, and how long their runs take."""

import statistics
import time

import numpy as np
import onnxruntime as ort
from environment import Failed

NVIDIA = 0x10DE
EAGER = -1  # the graph id under which a run isn't captured


class OnCpu:
    def __init__(self, file):
        self.session = ort.InferenceSession(str(file), _session_options(), providers=["CPUExecutionProvider"])
        self.input = self.session.get_inputs()[0].name

    def run(self, x):
        return self.session.run(None, {self.input: x})[0]


class OnEncore:
    """A model that keeps its input and output in device memory; each shape of them has its own place and graph."""

    def __init__(self, file, device):
        options = _session_options()
        # TF32 would show in the difference from the CPU.
        options.add_provider_for_devices([device], {"enable_cuda_graph": "1", "use_tf32": "0"})
        self.session = ort.InferenceSession(str(file), options)
        if device.ep_name not in self.session.get_providers():
            raise Failed(f"onnxruntime made the session for {file.name} without Encore; its words are above")
        self.session.disable_fallback()
        self.provider = device.ep_name
        self.places = {}

    def run_eagerly(self, x):
        return self._put(x).run(EAGER)

    def run_as_graph(self, x):
        """The first run of a shape captures its graph, later ones replay it."""
        place = self._put(x)
        return place.run(place.graph_id)

    def widest(self):
        return max(self.places.values(), key=lambda place: np.prod(place.x.shape()))

    def _put(self, x):
        if x.shape not in self.places:
            self.places[x.shape] = Place(self.session, len(self.places), x)
        self.places[x.shape].x.update_inplace(x)
        return self.places[x.shape]


class Place:
    """Device memory for one shape of a model's input and output, bound, and the id of the graph that uses it."""

    def __init__(self, session, graph_id, x):
        self.session, self.graph_id = session, graph_id
        self.x = ort.OrtValue.ortvalue_from_numpy(x, "gpu", 0, NVIDIA)
        self.binding = session.io_binding()
        self.binding.bind_ortvalue_input(session.get_inputs()[0].name, self.x)
        output = session.get_outputs()[0].name
        # The output's shape is known after a run.
        self.binding.bind_output(output)
        session.run_with_iobinding(self.binding, run_options(EAGER))
        y = self.binding.copy_outputs_to_cpu()[0]
        self.y = ort.OrtValue.ortvalue_from_numpy(y, "gpu", 0, NVIDIA)
        self.binding.clear_binding_outputs()
        self.binding.bind_ortvalue_output(output, self.y)

    def run(self, graph_id):
        self.session.run_with_iobinding(self.binding, run_options(graph_id))
        return self.y.numpy()


def run_options(graph_id, wait=True):
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph_id))
    options.add_run_config_entry("disable_synchronize_execution_providers", "0" if wait else "1")
    return options


def nodes_on(session, provider):
    """The operators of a session's nodes that are on the execution provider."""
    parts = session.get_provider_graph_assignment_info()
    return [node.op_type for part in parts if part.ep_name == provider for node in part.get_nodes()]


def milliseconds(run, seconds, between=lambda: None):
    """The median and the 99th percentile of a run's duration. Durations don't count what is done `between` runs."""
    run()
    durations = []
    end = time.perf_counter() + seconds
    while len(durations) < 5 or time.perf_counter() < end:
        between()
        start = time.perf_counter()
        run()
        durations.append(1e3 * (time.perf_counter() - start))
    between()
    return statistics.median(durations), sorted(durations)[int(0.99 * (len(durations) - 1))]


def _session_options():
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options
