"""What a node's results should be: the CPU EP of the same onnxruntime, one node at a time."""

import numpy as np
import onnx
import onnxruntime as ort
from element_types import carrier, rounded, wide
from onnx_model import CONSTANT, write
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel
from proposals import PROPOSALS

# Where the CPU EP has no kernel for a type, onnx's own evaluator is asked, in operators that it computes as written.
BY_EVALUATOR = {"elementwise", "exact"}


class Refused(Exception):
    """The CPU EP's error."""


class Unknown(Exception):
    """There is no reference."""


def quiet_options(level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL):
    """Of a session in the calling thread alone, which is made a hundred times a second."""
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return options


def message(error):
    return " ".join(str(error).split())


class Reference:
    """One node. Halves are computed in float, unless the operator is about types themselves."""

    def __init__(self, node, opset):
        self.node = node
        self.wide = not PROPOSALS[node.domain, node.op].own_types
        self.feeds = [value for value in node.reads() if value.origin != CONSTANT]
        self.model, self.outputs = write([node], node.makes(), opset, self.wide)
        self.run = None
        self.last = None

    def __call__(self, arrays):
        """Of arrays by the names of values, a list of one for each output: in float where the type is a half."""
        feeds = {value.name: arrays[value.name] for value in self.feeds}
        key = [(array.shape, array.tobytes()) for array in feeds.values()]
        if self.last is None or self.last[0] != key:
            self.last = key, self._compute(feeds)
        return self.last[1]

    def _compute(self, feeds):
        given = {}
        for value in self.feeds:
            array = feeds[value.name]
            narrow = carrier(value.type) == np.float32 and value.type != "float"
            if self.wide:
                array = array.astype(carrier(wide(value.type)))
            given[f"{value.name}_fed" if narrow and not self.wide else value.name] = array
        try:
            if self.run is None:
                session = ort.InferenceSession(self.model, quiet_options(), providers=["CPUExecutionProvider"])
                self.run = lambda feeds: session.run(self.outputs, feeds)
            return self.run(given)
        except NoKernel:
            return self._evaluate(given)
        except UnicodeDecodeError as error:
            raise Refused("an error in another encoding") from error
        except Exception as error:
            raise Refused(message(error)) from error

    def _evaluate(self, given):
        if PROPOSALS[self.node.domain, self.node.op].family not in BY_EVALUATOR:
            raise Unknown("the CPU EP has no kernel")
        from onnx.reference import ReferenceEvaluator

        try:
            with np.errstate(all="ignore"):
                evaluator = ReferenceEvaluator(onnx.load_from_string(self.model))
                made = [np.asarray(made) for made in evaluator.run(self.outputs, given)]
        except Exception as error:
            raise Unknown(message(error)) from error
        kinds = [carrier(wide(value.type) if self.wide else value.type) for value in self.node.makes()]
        if any(array.dtype != kind for array, kind in zip(made, kinds)):
            raise Unknown("onnx's evaluator gives another type")
        return made

    def of_magnitudes(self, arrays):
        """The results if everything were positive: how large the terms of a sum are."""
        return self({name: np.abs(array) if array.dtype.kind == "f" else array for name, array in arrays.items()})


def as_made(array, name):
    """A reference's result as the node itself would hand it on."""
    return rounded(array, name)
