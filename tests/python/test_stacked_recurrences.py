"""Layers of LSTM, GRU and RNN on top of one another: one step, and few sequences are one launch."""

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_fused_attention import numbers
from test_fusion import kernels_of, on_cpu
from test_vision_blocks import plan_of

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OPS = list(GATES)
# Sums of some dozens of products in another order, through as many steps.
TOLERANCE = {"float32": 2e-5, "float16": 5e-3}


def stack(make_model, op, layers=2, hidden=24, dtype="float32", layout=0, states=False, squeezed=True, **attributes):
    """Each layer's states come and go, too, with `states`; the second one has no bias."""
    kind = TensorProto.FLOAT if dtype == "float32" else TensorProto.FLOAT16
    nodes, constants, gates = [], [], GATES[op]

    def constant(name, array):
        constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    shape = lambda *dims: (dims, kind)
    state = ["b", 1, hidden] if layout else [1, "b", hidden]
    inputs = {"x": shape(*(["b", "t", 8] if layout else ["t", "b", 8]))}
    outputs, x = {}, "x"
    if op == "GRU":
        attributes["linear_before_reset"] = 1
    values = lambda *dims: constant(f"c{len(constants)}", numbers(dims, len(constants), -0.4, 0.4).astype(dtype))
    for layer in range(layers):
        names = [x, values(1, gates * hidden, 8 if layer == 0 else hidden), values(1, gates * hidden, hidden)]
        names.append("" if layer == 1 else values(1, 2 * gates * hidden))
        made = [f"y{layer}"]
        if states:
            inputs[f"h{layer}"] = shape(*state)
            names += ["", f"h{layer}"]
            made.append(f"y{layer}.h")
            if op == "LSTM":
                names += ["", values(1, 3 * hidden)]
                made.append(f"y{layer}.c")
            outputs |= {name: shape(*state) for name in made[1:]}
        nodes.append(
            helper.make_node(op, names, made, f"layer{layer}", hidden_size=hidden, layout=layout, **attributes)
        )
        if layer == layers - 1:
            outputs[made[0]] = shape(*(["b", "t", 1, hidden] if layout else ["t", 1, "b", hidden]))
        elif squeezed:
            x = f"x{layer + 1}"
            nodes.append(
                helper.make_node("Squeeze", [made[0], constant(x + "axes", np.array([2 if layout else 1]))], [x])
            )
        else:
            x = f"x{layer + 1}"
            nodes.append(helper.make_node("Transpose", made[:1], [x + "t"], perm=[0, 2, 1, 3]))
            to = constant(x + "shape", np.array([0, 0, hidden]))
            nodes.append(helper.make_node("Reshape", [x + "t", to], [x]))
    return make_model(nodes, inputs, outputs, constants, opset=14)


def feeds_of(session, steps, batch, seed):
    sizes = {"t": steps, "b": batch}
    return {
        one.name: numbers([sizes.get(d, d) for d in one.shape], seed).astype(
            np.float32 if one.type == "tensor(float)" else np.float16
        )
        for one in session.get_inputs()
    }


def check(model, tmp_path, op, layers, sizes, dtype="float32"):
    plan = plan_of(model, tmp_path)
    assert f"layers = {layers}" in plan and plan.count(f"{op}(") == 1, plan
    for auto_graph in (0, 1):
        session = es.make_session(model, regions=1, auto_graph=auto_graph, use_tf32=0)
        es.assert_all_on_encore(session)
        for seed in range(3):
            for steps, batch in sizes:
                feeds = feeds_of(session, steps, batch, seed)
                for got, wanted in zip(session.run(None, feeds), on_cpu(model, feeds), strict=True):
                    np.testing.assert_allclose(got, wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    return session


# One sequence, some, more than one launch serves, and fewer steps than it is worth.
SIZES = [(6, 1), (5, 3), (6, 20), (4, 40), (2, 2)]


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("layers", [2, 3, 4])
@pytest.mark.parametrize("op", OPS)
def test_layers(encore, make_model, tmp_path, op, layers, states):
    model = stack(make_model, op, layers, states=states)
    session = check(model, tmp_path, op, layers, SIZES)
    if es.on_virtual_gpu():
        kernels = kernels_of(session, feeds_of(session, 6, 3, 0))
        assert sum("Persistent" in kernel for kernel in kernels) == 1, kernels


def test_more_layers_than_a_step_takes(encore, make_model, tmp_path):
    model = stack(make_model, "LSTM", 6)
    plan = plan_of(model, tmp_path)
    assert "layers = 4" in plan and "layers = 2" in plan, plan
    session = es.make_session(model, regions=1, use_tf32=0)
    feeds = feeds_of(session, 6, 2, 0)
    np.testing.assert_allclose(session.run(None, feeds)[0], on_cpu(model, feeds)[0], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("squeezed", [False, True])
@pytest.mark.parametrize("op", OPS)
def test_backwards(encore, make_model, tmp_path, op, squeezed):
    check(stack(make_model, op, squeezed=squeezed, direction="reverse"), tmp_path, op, 2, SIZES[:3])


@pytest.mark.parametrize("op", OPS)
def test_halves(encore, make_model, tmp_path, op):
    model = stack(make_model, op, dtype="float16", states=True)
    plan = plan_of(model, tmp_path)
    assert "layers = 2" in plan, plan
    session = es.make_session(model, regions=1)
    wide = stack(make_model, op, states=True)
    for steps, batch in SIZES[:4]:
        feeds = feeds_of(session, steps, batch, 1)
        wanted = on_cpu(wide, {name: value.astype(np.float32) for name, value in feeds.items()})
        for got, value in zip(session.run(None, feeds), wanted, strict=True):
            np.testing.assert_allclose(got, value, atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("op", OPS)
def test_batches_first(encore, make_model, tmp_path, op):
    """Which the CPU EP has not: the same as with steps first."""
    model = stack(make_model, op, layout=1, states=True)
    plan = plan_of(model, tmp_path)
    assert "layers = 2" in plan, plan
    session, usual = (es.make_session(m, regions=1, use_tf32=0) for m in (model, stack(make_model, op, states=True)))
    for steps, batch in SIZES:
        feeds = feeds_of(session, steps, batch, 2)
        turned = {name: np.ascontiguousarray(value.swapaxes(0, 1)) for name, value in feeds.items()}
        for got, wanted in zip(session.run(None, feeds), usual.run(None, turned), strict=True):
            axes = (2, 0, 1, 3) if wanted.ndim == 4 else (1, 0, 2)
            np.testing.assert_allclose(got, wanted.transpose(axes), atol=2e-5, rtol=2e-5)


def test_what_does_not_fit_in_a_block_goes_layer_by_layer(encore, make_model, tmp_path):
    check(stack(make_model, "LSTM", hidden=1400), tmp_path, "LSTM", 2, [(4, 1)])


@pytest.mark.parametrize("sizes", [(0, 2), (6, 0)], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_nothing(encore, make_model, op, sizes):
    """Of no steps the CPU EP leaves what was in memory."""
    session = es.make_session(stack(make_model, op, states=True), regions=1)
    for got, one in zip(session.run(None, feeds_of(session, *sizes, 0)), session.get_outputs(), strict=True):
        assert got.shape == tuple({"t": sizes[0], "b": sizes[1]}.get(d, d) for d in one.shape)
        assert not got.any()


@es.needs_graphs
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("op", OPS)
def test_captured_and_replayed(encore, make_model, op, batch):
    model = stack(make_model, op)
    session, eager = (es.make_session(model, regions=1, **how) for how in ({"enable_cuda_graph": 1}, {"auto_graph": 0}))
    bound = es.Bound(session, feeds_of(session, 7, batch, 0), {"y1": ((7, 1, batch, 24), np.float32)})
    for seed in range(5):
        feeds = feeds_of(session, 7, batch, seed)
        np.testing.assert_array_equal(bound.run(feeds)["y1"], eager.run(None, feeds)[0])
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert report["replays"] > 2
