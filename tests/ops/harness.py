"""Runs one operator under stock onnxruntime: on the CPU EP for reference, then on Encore eagerly, captured, and
replayed twice with new contents. With ENCORE_TEST_OPTIONS="regions=all auto_graph=1" automatic graphs do so, and
tensors are elsewhere meanwhile.

    @pytest.mark.parametrize("case", [Case("Relu", [floats(3, 5)], dtype=t) for t in FLOATS], ids=str)
    def test_relu(case): check(case)
"""

import collections
import dataclasses
import hashlib
import os
import sys

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_ep_encore
from encore_session import (
    EAGER,
    HAS_GRAPHS,
    NVIDIA,
    OPTIONS_OF_ALL,
    assert_all_on_encore,
    empty_on_device,
    functors,
    has_channels_last,
    make_session,
    on_cpu,
    on_device,
    run_options,
)
from onnx import TensorProto, helper
from tolerance import tolerance

# With new contents; the environment may do with fewer.
REPLAYS = int(os.environ.get("ENCORE_TEST_REPLAYS", 2))
AUTOMATIC = OPTIONS_OF_ALL.get("regions") == "all"
AUTOMATIC_REPLAYS = 4  # without copies, twice with other places, and back
FLOATS = ["float32", "float16", "bfloat16", "float64"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def seeded(*key):
    """A generator of its own for each key, so that no case's contents depend on which other cases there are."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8]))


_draws = collections.Counter()


def _drawing(*what):
    """The generator for what a test draws, or a module while it is imported; drawn again, it is something else."""
    drawer = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]  # without the phase
    if not drawer:
        frame = sys._getframe(1)
        while frame.f_globals is globals():
            frame = frame.f_back
        drawer = frame.f_globals["__name__"]
    _draws[drawer, what] += 1
    return seeded(drawer, what, _draws[drawer, what])


def floats(*shape, low=-3.0, high=3.0):
    return _drawing(shape, low, high).uniform(low, high, shape).astype(np.float32)


def integers(dtype, *shape, low=None, high=None):
    info = np.iinfo(dtype)
    low = max(info.min, -100) if low is None else low
    high = min(info.max, 100) if high is None else high
    return _drawing(str(dtype), shape, low, high).integers(low, high, shape, endpoint=True).astype(dtype)


def bools(*shape):
    return _drawing("bool", shape).integers(0, 2, shape).astype(bool)


SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 88.0, -88.0, 1e-7, -1e-7], np.float32
)


@dataclasses.dataclass
class Const:
    """An input which is a constant of the model (an initializer): shapes, axes, pads."""

    value: np.ndarray
    fixed: bool = False  # stays float32 whatever the case's type: Resize's scales


@dataclasses.dataclass
class Case:
    op: str
    inputs: list  # arrays, Const, or None for an absent input; float32 arrays take the type `dtype`
    attrs: dict = dataclasses.field(default_factory=dict)
    dtype: str = "float32"
    outputs: int = 1  # how many; a list of booleans tells which are wanted
    family: str = "elementwise"
    domain: str = ""
    domain_opset: int = 1
    opset: int = 21
    name: str = ""  # of the variant, for the test's id
    tolerance: tuple | None = None  # only where the family's does not fit, with the reason beside it
    reference: object = None  # f(*arrays) -> list of arrays, where the CPU EP has no kernel
    misaligned: bool = False  # inputs start one element past an aligned address
    capture: bool = True
    channels_last: bool = False  # onnxruntime is asked to change the layout
    options: dict = dataclasses.field(default_factory=dict)  # of the provider
    off_by: int = 0  # how far integers may be from what is wanted
    replays: tuple = ()  # inputs of the same shapes for replays, where shuffled ones would make no sense

    def __str__(self):
        shapes = "_".join(
            "x".join(map(str, np.shape(getattr(i, "value", i)))) or "scalar" for i in self.inputs if i is not None
        )
        return "-".join(
            filter(
                None,
                [
                    self.op,
                    str(self.opset),
                    self.dtype,
                    self.name,
                    shapes,
                    "misaligned" * self.misaligned,
                    "nhwc" * self.channels_last,
                ],
            )
        )


def session(model, **options):
    """A session that runs the model as it is written, on Encore."""
    return make_session(model, _plain(), **options)


def _plain():
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1  # more would spin beside the other tests
    return options


def _onnx_type(dtype):
    if dtype == "bfloat16":
        return TensorProto.BFLOAT16
    if dtype == "float8e4m3fn":
        return TensorProto.FLOAT8E4M3FN
    if dtype == "float8e5m2":
        return TensorProto.FLOAT8E5M2
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


class _Model:
    """The case as a model in one float type. bfloat16 has no numpy type, so there the model casts at both ends."""

    def __init__(self, case, dtype):
        narrow = dtype == "bfloat16"
        self.feeds, names, nodes, inits, inputs = {}, [], [], [], []
        for i, given in enumerate(case.inputs):
            if given is None:
                names.append("")
                continue
            name = f"x{i}"
            value = given.value if isinstance(given, Const) else np.asarray(given)
            is_float = value.dtype == np.float32 and not getattr(given, "fixed", False)
            if is_float and not narrow:
                value = _as(value, dtype)
            if isinstance(given, Const):
                inits.append(onnx.numpy_helper.from_array(value, name))
            else:
                self.feeds[name] = np.asarray(value, order="C")
                inputs.append(helper.make_tensor_value_info(name, _onnx_type(value.dtype), value.shape))
            if is_float and narrow:
                nodes.append(helper.make_node("Cast", [name], [name + "_n"], to=TensorProto.BFLOAT16))
                name += "_n"
            names.append(name)
        wanted = [True] * case.outputs if isinstance(case.outputs, int) else case.outputs
        outs = [f"y{i}" if w else "" for i, w in enumerate(wanted)]
        attrs = dict(case.attrs)
        nodes.append(helper.make_node(case.op, names, outs, name="it", domain=case.domain, **attrs))
        self.outputs = [n for n in outs if n]
        opsets = [helper.make_opsetid("", case.opset)]
        if case.domain:
            opsets.append(helper.make_opsetid(case.domain, case.domain_opset))
        self.model = self._finish(case, nodes, inputs, inits, opsets, narrow)

    def _finish(self, case, nodes, inputs, inits, opsets, narrow):
        def build(nodes, outputs):
            graph = helper.make_graph(
                nodes, "case", inputs, [helper.make_empty_tensor_value_info(n) for n in outputs], inits
            )
            return helper.make_model(graph, opset_imports=opsets, ir_version=10)

        if not narrow:
            return build(nodes, self.outputs)
        # Which outputs are bfloat16 only type inference knows.
        inferred = onnx.shape_inference.infer_shapes(build(nodes, self.outputs))
        types = {
            v.name: v.type.tensor_type.elem_type for v in list(inferred.graph.output) + list(inferred.graph.value_info)
        }
        renamed = []
        for name in self.outputs:
            if types.get(name, 0) in (TensorProto.BFLOAT16, 0):
                nodes = nodes + [helper.make_node("Cast", [name], [name + "_w"], to=TensorProto.FLOAT)]
                renamed.append(name + "_w")
            else:
                renamed.append(name)
        self.outputs = renamed
        return build(nodes, renamed)


def _as(array, dtype):
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def _round(array, dtype):
    """What the type makes of float32 contents."""
    half = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}.get(dtype)
    return _as(array, half).astype(np.float32) if half else array


class _Reference:
    """Outputs of the CPU EP for any contents. Half types are computed in float32 from inputs rounded to the type."""

    def __init__(self, case):
        self.case, self.run = case, None
        self.wide = {"float16": "float32", "bfloat16": "float32"}.get(case.dtype, case.dtype)

    def __call__(self, feeds):
        inputs = [self._rounded(given, feeds.get(f"x{i}")) for i, given in enumerate(self.case.inputs)]
        if self.case.reference is not None:
            return [np.asarray(y) for y in self.case.reference(*[getattr(i, "value", i) for i in inputs])]
        if not self.run:  # which serves all contents, since constants stay
            self._build(inputs)
        return self.run(
            {
                f"x{i}": np.asarray(_as(value, self.wide) if value.dtype == np.float32 else value, order="C")
                for i, value in enumerate(inputs)
                if value is not None and not isinstance(value, Const)
            }
        )

    def _rounded(self, given, fed):
        if given is None or getattr(given, "fixed", False):
            return given
        value = given.value if isinstance(given, Const) else fed
        if value.dtype in (np.float32, np.float16) and np.asarray(getattr(given, "value", given)).dtype == np.float32:
            value = _round(value.astype(np.float32), self.case.dtype)
        return Const(value) if isinstance(given, Const) else value

    def _build(self, inputs):
        made = _Model(dataclasses.replace(self.case, inputs=inputs), self.wide)
        plain = _plain()
        plain.log_severity_level = 4  # it logs as an error that it has no kernel
        try:
            reference = on_cpu(made.model, plain)
        except ort.capi.onnxruntime_pybind11_state.NotImplemented:
            from onnx.reference import ReferenceEvaluator

            reference = ReferenceEvaluator(made.model)
        self.run = lambda feeds: reference.run(made.outputs, feeds)


def compare(case, got, wanted, when):
    for i, (g, w) in enumerate(zip(got, wanted, strict=True)):
        w = np.asarray(w)
        assert g.shape == w.shape, f"{when}: output {i} has shape {g.shape}, not {w.shape}"
        if w.dtype.kind != "f":
            if case.off_by and w.dtype.kind in "iu":
                np.testing.assert_allclose(g, w, rtol=0, atol=case.off_by, err_msg=f"{when}: output {i}")
            elif not np.array_equal(g, w):
                np.testing.assert_array_equal(g, w, err_msg=f"{when}: output {i}")
            continue
        w = _round(w.astype(np.float32), case.dtype) if case.dtype in ("float16", "bfloat16") else w
        g, w = g.astype(np.float64), w.astype(np.float64)
        rtol, atol = case.tolerance or tolerance(case.family, case.dtype)
        if not _are_close(g, w, rtol, atol):
            np.testing.assert_allclose(g, w, rtol=rtol, atol=atol, err_msg=f"{when}: output {i}")


def _are_close(got, wanted, rtol, atol):
    """Whether all are, which is soon asked of finite ones; numpy's functions say more, and take ten times as long."""
    with np.errstate(over="ignore", invalid="ignore"):
        close = np.abs(got - wanted) <= atol + rtol * np.abs(wanted)
    return bool((close & np.isfinite(wanted)).all())


def _fresh(case, feeds, turn):
    """The same values elsewhere: still in range for indices, still with the NaNs. Or what the case has for it."""
    if case.replays:
        inputs = case.replays[turn % len(case.replays)]
        return {n: inputs[int(n[1:])].astype(v.dtype) for n, v in feeds.items()}
    rng = seeded(str(case), "replayed" + " again" * turn)
    return {n: _permuted(rng, v.reshape(-1)).reshape(v.shape) for n, v in feeds.items()}


def _permuted(rng, values, run=31):
    """Of many, short runs change places, which takes a tenth of the time."""
    if values.size < 1 << 16:
        return rng.permutation(values)
    rest = values.size % run
    return np.concatenate([values[:rest], rng.permutation(values[rest:].reshape(-1, run)).reshape(-1)])


def _bind_misaligned(binding, name, array, keep):
    """Binds a copy that starts one element past an aligned address."""
    padded = np.concatenate([np.zeros(1, array.dtype), array.reshape(-1)])
    value = on_device(padded)
    keep.append(value)
    bind_at(binding, name, array, value.data_ptr() + array.dtype.itemsize)


def bind_at(binding, name, array, address):
    """Binds memory of the device as an input like the array."""
    device = ort.capi.onnxruntime_pybind11_state.OrtDevice(1, 0, NVIDIA, 0)
    binding._iobinding.bind_input(name, device, array.dtype, list(array.shape), address)


class _Bound:
    """What a case reads and writes, in device memory."""

    def __init__(self, sess, case, model, wanted):
        self.binding, self._inputs, self._outputs, self._padded = sess.io_binding(), {}, {}, []
        for name, value in model.feeds.items():
            if case.misaligned and value.size:
                _bind_misaligned(self.binding, name, value, self._padded)
            else:
                self._inputs[name] = on_device(value)
                self.binding.bind_ortvalue_input(name, self._inputs[name])
        types = {o.name: _NUMPY[o.type] for o in sess.get_outputs()}
        for name, w in zip(model.outputs, wanted):
            self._outputs[name] = empty_on_device(w.shape, types[name])
            self.binding.bind_ortvalue_output(name, self._outputs[name])
        self._ones = {name: np.ones(w.shape, types[name]) for name, w in zip(model.outputs, wanted)}

    def write(self, feeds):
        for name, value in feeds.items():
            self._inputs[name].update_inplace(value)

    def blank(self):
        for name, value in self._outputs.items():
            if self._ones[name].size:
                value.update_inplace(self._ones[name])

    def results(self):
        return [value.numpy() for value in self._outputs.values()]


def check(case):
    model = _Model(case, case.dtype)
    reference = _Reference(case)
    wanted = reference(model.feeds)
    graphs = HAS_GRAPHS and case.capture
    asked = graphs and not AUTOMATIC
    options = {"enable_cuda_graph": 1, "min_num_runs_before_cuda_graph_capture": 1} if asked else {}
    if case.channels_last:
        options["prefer_nhwc"] = 1
    sess = session(model.model, **options, **case.options)
    assert_all_on_encore(sess, layout_asked="prefer_nhwc" in {**options, **case.options})
    if case.channels_last:
        assert has_channels_last(sess, case.op), "the layout was not changed"

    bound = _Bound(sess, case, model, wanted)
    sess.run_with_iobinding(bound.binding, run_options(EAGER))
    compare(case, bound.results(), wanted, "eager")
    if not graphs:
        return
    places = [bound, _Bound(sess, case, model, wanted)] if AUTOMATIC else [bound]
    for replay in range(1 + max(AUTOMATIC_REPLAYS if AUTOMATIC else REPLAYS, len(case.replays))):
        bound = places[replay // 2 % len(places)]
        if replay and not case.misaligned:
            feeds = _fresh(case, model.feeds, replay - 1)
            bound.write(feeds)
            wanted = reference(feeds)
        bound.blank()
        sess.run_with_iobinding(bound.binding)
        compare(case, bound.results(), wanted, f"replay {replay}" if replay else "captured")
    if AUTOMATIC:
        _check_regions(sess, case)


def _check_regions(sess, case):
    """All is replayed, but what large tensors do elsewhere for once; misaligned ones want other scratch than copies."""
    regions = onnxruntime_ep_encore.region_report(sess)
    parts = {node["part"] for node in onnxruntime_ep_encore.placement_report(sess)} - {None}
    assert {region["region"] for region in regions} == parts
    for region in regions:
        assert region["replays"] and (case.misaligned or region["eager"] == region["moved"]), region


def kernels_of(case):
    model = _Model(case, case.dtype)
    return functors(session(model.model, **case.options), model.feeds)


_NUMPY = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(bool)": bool,
    **{f"tensor({t})": np.dtype(t) for t in INTEGERS},
}
