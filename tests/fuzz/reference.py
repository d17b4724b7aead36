"""What a node's results should be: the CPU EP of the same onnxruntime, one node at a time."""

import numpy as np
import onnx
import onnxruntime as ort
from element_types import carrier, rounded, wide
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel
from proposals import PROPOSALS
from written_model import CONSTANT, write

# Where the CPU EP has no kernel for a type, onnx's own evaluator is asked, in operators that it computes as written.
BY_EVALUATOR = "propose_elementwise", "propose_shape"
# It has no kernel for these at all, and in floats, which a reference is computed in, there are none of them.
OF_HALVES_ALONE = "PagedAttention", "SparsePagedAttention"


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

    by_cpu = True

    def __init__(self, node, opset, numbers_fed=False):
        self.node = node
        self.wide = not PROPOSALS[node.domain, node.op].own_types
        self.opset, self.numbers_fed = opset, numbers_fed
        self.feeds = [v for v in node.reads() if v.origin != CONSTANT or numbers_fed and not v.fixed]
        self.model, self.outputs = write([node.with_every_output()], node.makes(), opset, self.wide, numbers_fed)
        self.run = None
        self.last = None
        self.others = None

    def __call__(self, arrays):
        """Of arrays by the names of values, a list of one for each output: in float where the type is a half."""
        feeds = {value.name: arrays[value.name] for value in self.feeds}
        key = [(array.shape, array.tobytes()) for array in feeds.values()]
        if self.last is None or self.last[0] != key:
            made = self._compute(feeds)
            if any(array is None for array in made):
                raise Unknown("the CPU EP leaves an output out")
            if any(array.dtype != kind for array, kind in zip(made, self._kinds(), strict=True)):
                raise Unknown("a hostile node gives another type than a sound one")
            self.last = key, made
        return self.last[1]

    def _kinds(self):
        return [carrier(wide(value.type) if self.wide else value.type) for value in self.node.makes()]

    def _compute(self, feeds):
        if self.node.op == "Inverse" and not all(_are_square(value) for value in self.node.inputs):
            raise Refused("the CPU EP would write beyond what is not square")
        if self.node.op == "Attention" and self.node.domain and not _has_bias(self.node.inputs):
            raise Refused("the CPU EP's process ends where com.microsoft's Attention has no bias")
        if self.node.op == "DynamicSlice" and None in [*self.node.inputs, None, None][:3]:
            raise ValueError("the CPU EP's process ends where DynamicSlice has no starts or ends")
        if self.node.op in OF_HALVES_ALONE:
            heads, kv_heads = (self.node.attrs.get(name, 1) for name in ("num_heads", "kv_num_heads"))
            if (heads + 2 * kv_heads) % 2**64 == 0:
                raise ValueError("onnxruntime's process ends where it finds no heads, counted in 64 bits")
            raise Unknown("the CPU EP has no kernel")
        if self.node.op == "SparseAttention":
            raise Unknown("the CPU EP wants the past and the present in the same memory, and trusts layouts")
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
        except ValueError as error:  # of NumPy's, which has no array of a shape that is beyond all memory
            raise Unknown(message(error)) from error
        except Exception as error:
            narrow = any(wide(value.type) != value.type for value in self.node.reads())
            if self.wide and narrow and "Type 'tensor(float)' of input parameter" in str(error):
                raise Unknown("the operator has no floats") from error
            if "No corresponding Numpy type" in str(error):  # for what there is
                raise Unknown(message(error)) from error
            raise Refused(message(error)) from error

    def _evaluate(self, given):
        if PROPOSALS[self.node.domain, self.node.op].propose.__module__ not in BY_EVALUATOR:
            raise Unknown("the CPU EP has no kernel")
        from onnx.reference import ReferenceEvaluator

        try:
            with np.errstate(all="ignore"):
                evaluator = ReferenceEvaluator(onnx.load_from_string(self.model))
                made = [np.asarray(made) for made in evaluator.run(self.outputs, given)]
        except Exception as error:
            raise Unknown(message(error)) from error
        return made

    def of_others(self, arrays):
        """The results if also the constants to compute with were other numbers."""
        if self.others is None:
            self.others = Reference(self.node, self.opset, numbers_fed=True)
        return self.others(arrays)

    def by_onnx(self, arrays):
        """The results of onnx's own evaluator, or None."""
        from onnx.reference import ReferenceEvaluator

        given = {value.name: arrays[value.name].astype(carrier(wide(value.type))) for value in self.feeds}
        try:
            with np.errstate(all="ignore"):
                return list(map(np.asarray, ReferenceEvaluator(onnx.load_from_string(self.model)).run(None, given)))
        except Exception:
            return None


def _has_bias(inputs):
    return len(inputs) > 2 and inputs[2] is not None


def _are_square(value):
    return value is not None and value.array.ndim >= 2 and value.array.shape[-1] == value.array.shape[-2]


class Computed:
    """What a test computes itself of the node's inputs, halves in float, where the CPU EP has no kernel or is wrong."""

    by_cpu = False

    def __init__(self, node, compute):
        self.node, self.compute = node, compute

    def __call__(self, arrays):
        given = [value if value is None else arrays[value.name] for value in self.node.inputs]
        as_float = lambda array: array.astype(np.float32) if array.dtype == np.float16 else array
        try:
            with np.errstate(all="ignore"):
                return self.compute(*[array if array is None else as_float(array) for array in given])
        except (IndexError, ValueError) as error:
            raise Refused(message(error)) from error

    def of_others(self, arrays):
        return self(arrays)


def as_made(array, name):
    """A reference's result as the node itself would hand it on."""
    return rounded(array, name)
