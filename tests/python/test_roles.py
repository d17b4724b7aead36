"""Values that are read in two roles: as data, on the device, and as a shape or a condition, on the host."""

import encore_session as es
import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

pytestmark = pytest.mark.core

FLOAT, INT = np.float32, np.int64

# Where v comes from: an input, an initializer, a node.
ORIGINS = {
    "an input": ("int64[2] v", "", ""),
    "an initializer": ("", "int64[2] v = {2, 2}", ""),
    "made on the device": ("float[2] f", "", "v = Cast <to = 7> (f)"),
    "made on the host": ("float[2, 2] f", "", "v = Shape(f)"),
}
WIDE = FLOAT([[5, 5], [7, 7]])  # x, expanded to v
MUCH = np.arange(600, dtype=INT).reshape(300, 2)  # too much for a shape
FEEDS = {"v": INT([2, 2]), "f": FLOAT([2, 2]), "x": FLOAT([[5], [7]]), "w": MUCH}


def run(text, feeds=FEEDS, **options):
    """A session, and its results on numpy's inputs."""
    model = parser.parse_model('<ir_version: 10, opset_import: ["" : 21]> ' + text)
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = es.make_session(model, settings, **options)
    return session, session.run(None, {i.name: shaped(feeds[i.name], i.shape) for i in session.get_inputs()})


def shaped(value, shape):
    return np.resize(value, [2, 2]) if list(shape) == [2, 2] else value


def model_of(origin, inputs, outputs, nodes):
    own_input, initializer, before = ORIGINS[origin]
    inputs = ", ".join(each for each in (own_input, inputs) if each)
    return f"roles ({inputs}) => ({outputs}) <{initializer}> {{ {before} {nodes} }}"


def on_cpu(session):
    return sorted(es.nodes_on(session).get("CPUExecutionProvider", []))


@pytest.mark.parametrize("origin", ORIGINS)
def test_one_node_reads_a_value_in_both_roles(origin):
    session, (y,) = run(model_of(origin, "", "int64[m, n] y", "y = Expand(v, v)"))
    np.testing.assert_array_equal(y, [[2, 2], [2, 2]])
    assert es.HAS_REGIONS or "Expand" in on_cpu(session)  # inside of one node, it is on both sides


def test_the_reason_is_said(capfd):
    run("roles (int64[1] zero) => (int64 y) { y = Squeeze(zero, zero) }", {"zero": INT([0])}, log_placement=1)
    said = capfd.readouterr().err
    assert "'zero' is its input 0, read on the device, and its input 1, read on the host" in said


@pytest.mark.parametrize("first", ["data", "shape"])
@pytest.mark.parametrize("origin", ORIGINS)
def test_two_nodes_read_a_value_in_one_role_each(origin, first):
    nodes = ["y = Expand(x, v)", "z = Add(w, v)"]
    nodes = " ".join(nodes if first == "shape" else nodes[::-1])
    session, (y, z) = run(model_of(origin, "float[2, 1] x, int64[300, 2] w", "float[m, n] y, int64[k, l] z", nodes))
    np.testing.assert_array_equal(y, WIDE)
    np.testing.assert_array_equal(z, MUCH + 2)
    assert on_cpu(session) == []


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_shape_that_is_an_output_too(origin):
    if origin == "an input":
        text = "roles (int64[2] u, float[2, 1] x) => (float[m, n] y, int64[2] v) { v = Neg(u) y = Expand(x, v) }"
        session, (y, v) = run(text, {**FEEDS, "u": INT([-2, -2])})
    else:
        session, (y, v) = run(model_of(origin, "float[2, 1] x", "float[m, n] y, int64[2] v", "y = Expand(x, v)"))
    np.testing.assert_array_equal(y, WIDE)
    np.testing.assert_array_equal(v, [2, 2])


BODIES = {
    "a condition that a branch reads": (
        """(bool c, float[n] x) => (float[n] y, bool[1] b) <int64[1] zero = {0}> {
             y, b = If <then_branch = t () => (float[n] p, bool[1] q) { p = Neg(x) q = Unsqueeze(c, zero) },
                        else_branch = e () => (float[n] r, bool[1] s) { r = Abs(x) n = Not(c) s = Unsqueeze(n, zero) }>
                    (c) }""",
        [({"c": np.array(True), "x": FLOAT([1, -2])}, [[-1, 2], [True]]),
         ({"c": np.array(False), "x": FLOAT([1, -2])}, [[1, 2], [True]])],
    ),
    "a constant that is data outside, and a shape inside": (
        """(bool c, float[1] x) => (float[n] y, int64[1] z) <int64[1] k = {3}> {
             z = Neg(k)
             y = If <then_branch = t () => (float[n] p) { p = Expand(x, k) },
                     else_branch = e () => (float[n] r) { r = Tile(x, k) }> (c) }""",
        [
            ({"c": np.array(True), "x": FLOAT([5])}, [[5, 5, 5], [-3]]),
            ({"c": np.array(False), "x": FLOAT([5])}, [[5, 5, 5], [-3]]),
        ],
    ),
    "a constant that is a shape outside, and data inside": (
        """(bool c, int64[1] x) => (int64[n] y, int64[m] z) <int64[1] k = {3}> {
             z = Expand(x, k)
             y = If <then_branch = t () => (int64[n] p) { p = Add(z, k) },
                     else_branch = e () => (int64[n] r) { r = Mul(z, k) }> (c) }""",
        [({"c": np.array(True), "x": INT([5])}, [[8, 8, 8], [5, 5, 5]])],
    ),
    "a trip count that the body adds up": (
        """(int64 m, int64 zero) => (int64 y) <bool go = {1}> {
             y = Loop <body = b (int64 i, bool c, int64 s) => (bool d, int64 t) {
                 d = Identity(c) t = Add(s, m) }> (m, go, zero) }""",
        [({"m": np.array(3), "zero": np.array(0)}, [9])],
    ),
}  # fmt: skip


# Read by Loop itself on the host, and handed to its body on the device.
CARRIED = {
    "a trip count that is carried": (
        """(int64 m) => (int64 y) <bool go = {1}, int64 two = {2}> {
             y = Loop <body = b (int64 i, bool c, int64 s) => (bool d, int64 t) {
                 d = Identity(c) t = Mul(s, two) }> (m, go, m) }""",
        [({"m": np.array(3)}, [24]), ({"m": np.array(0)}, [0])],
    ),
    "a condition that is carried": (
        """(bool go, int64 m) => (bool y) {
             y = Loop <body = b (int64 i, bool c, bool s) => (bool d, bool t) {
                 d = Identity(c) t = Not(s) }> (m, go, go) }""",
        [({"go": np.array(True), "m": np.array(3)}, [False]), ({"go": np.array(False), "m": np.array(3)}, [False])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_bodies_read_a_value_in_another_role(name):
    text, runs = BODIES[name]
    for feeds, wanted in runs:
        session, got = run("roles " + text, feeds)
        assert not {"If", "Loop"} & set(on_cpu(session))
        for one, expected in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one, expected)


@pytest.mark.parametrize("name", CARRIED)
def test_loop_reads_a_value_in_both_roles(name):
    text, runs = CARRIED[name]
    for feeds, wanted in runs:
        session, got = run("roles " + text, feeds)
        assert "Loop" in on_cpu(session)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("graphs", [0, 1] if es.HAS_GRAPHS else [0])
def test_bound_in_the_other_place(graphs, level):
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
           roles (int64[2] v, float[2, 1] x) => (float[m, n] y) { e = Expand(x, v) y = Neg(e) }"""
    )
    settings = ort.SessionOptions()
    settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    session = es.make_session(model, settings, enable_cuda_graph=graphs)
    binding = session.io_binding()
    binding.bind_ortvalue_input("v", es.on_device(FEEDS["v"]))
    binding.bind_cpu_input("x", FEEDS["x"])
    binding.bind_output("y")
    session.run_with_iobinding(binding, es.run_options(es.EAGER))
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], -WIDE)
