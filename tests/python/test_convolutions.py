"""The options that decide how convolutions run; the operator's own cases are in tests/ops/test_conv.py."""

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from onnx import helper, numpy_helper

ABSENT = "convolutions run as matrix products, which is slower"


def rng(seed=0):
    return np.random.default_rng(seed)


def weights(name, *shape, dtype=np.float32, seed=0):
    scale = np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 1
    return numpy_helper.from_array((rng(seed).standard_normal(shape) / scale).astype(dtype), name)


@pytest.fixture
def make_network(make_model):
    """Two convolutions with what stands between them in networks."""

    def make(dtype=np.float32, size=24):
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        nodes = [
            helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c1"], ["r1"], "relu"),
            helper.make_node("MaxPool", ["r1"], ["p1"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("Conv", ["p1", "w2", "b2"], ["c2"], "conv2"),
            helper.make_node("GlobalAveragePool", ["c2"], ["y"], "mean"),
        ]
        constants = [
            weights("w1", 16, 8, 3, 3, dtype=dtype),
            weights("b1", 16, dtype=dtype, seed=1),
            weights("w2", 32, 16, 3, 3, dtype=dtype, seed=2),
            weights("b2", 32, dtype=dtype, seed=3),
        ]
        ends = {"x": ([2, 8, size, size], kind)}, {"y": ([2, 32, 1, 1], kind)}
        return make_model(nodes, *ends, constants)

    return make


def images(size=24, dtype=np.float32, seed=7):
    return rng(seed).standard_normal((2, 8, size, size)).astype(dtype)


def on_cpu(model, **feeds):
    return es.on_cpu(model).run(None, feeds)[0]


@pytest.mark.parametrize("layout", [{}, {"prefer_nhwc": 1}], ids=str)
def test_without_cudnn_results_are_right_and_the_log_says_so_once(encore, make_network, capfd, layout):
    model = make_network()
    session = es.make_session(model, enable_cudnn=0, **layout)
    capfd.readouterr()
    for seed in range(3):
        x = images(seed=seed)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], on_cpu(model, x=x), rtol=3e-5, atol=3e-5)
    said = capfd.readouterr().err
    assert said.count(ABSENT) == 1, said
    assert "cuDNN is switched off" in said


def test_each_session_says_it_for_itself(encore, make_network, capfd):
    model = make_network()
    for _ in range(2):
        es.make_session(model, enable_cudnn=0).run(None, {"x": images()})
    assert capfd.readouterr().err.count(ABSENT) == 2


def test_models_without_convolutions_do_not_ask_for_cudnn(encore, make_model, capfd):
    model = make_model([helper.make_node("Relu", ["x"], ["y"], "relu")], {"x": [4]}, {"y": [4]})
    es.make_session(model, enable_cudnn=0).run(None, {"x": np.ones(4, np.float32)})
    assert ABSENT not in capfd.readouterr().err


@pytest.mark.parametrize("key", ["prefer_nhwc", "prefer_nhwc_layout"])
def test_the_layout_is_changed_where_encore_has_kernels(encore, make_network, key):
    model = make_network()
    assert not es.nodes_on(es.make_session(model), "com.ms.internal.nhwc")[es.EP_NAME]
    session = es.make_session(model, **{key: 1})
    es.assert_all_on_encore(session)
    assert all(es.has_channels_last(session, op) for op in ("Conv", "GlobalAveragePool", "MaxPool"))
    # One on the way in; behind the global pool it is a view at most.
    assert es.nodes_on(session)[es.EP_NAME].count("Transpose") <= 2
    x = images()
    np.testing.assert_allclose(session.run(None, {"x": x})[0], on_cpu(model, x=x), rtol=3e-5, atol=3e-5)


def test_what_changes_layout_is_said_once(encore, make_model, capfd):
    """onnxruntime asks twice which nodes Encore takes."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Imputer", ["c"], ["y"], "where", domain="ai.onnx.ml", imputed_value_floats=[5.0]),
    ]
    ends = {"x": [1, 4, 8, 8]}, {"y": [1, 4, "h", "w"]}
    model = make_model(nodes, *ends, [weights("w", 4, 4, 3, 3)], domains=("ai.onnx.ml",))
    session = es.make_session(model, prefer_nhwc=1, config={"ep.cuda.log_placement": "1"})
    assert capfd.readouterr().err.count("Imputer node 'where' is not on Encore") == 1
    assert es.has_channels_last(session, "Conv")
    x = images(8)[:1, :4]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], on_cpu(model, x=x), rtol=3e-5, atol=3e-5)


def test_nodes_that_share_weights(encore, make_model):
    """One node wants them in a form of its own, the other as they are."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], "conv"),
        helper.make_node("Mul", ["w", "s"], ["z"], "scale"),
        helper.make_node("Conv", ["y", "w"], ["v"], "again"),
    ]
    w = weights("w", 4, 4, 3, 3)
    model = make_model(nodes, {"x": [1, 4, 9, 9], "s": [1]}, {"v": [1, 4, 5, 5], "z": [4, 4, 3, 3]}, [w])
    session = es.make_session(model, prefer_nhwc=1)
    feeds = {"x": images(9)[:1, :4], "s": np.array([2], np.float32)}
    v, z = session.run(None, feeds)
    np.testing.assert_allclose(v, on_cpu(model, **feeds), rtol=3e-5, atol=3e-5)
    np.testing.assert_array_equal(z, 2 * numpy_helper.to_array(w))


def test_without_prepacking(encore, make_network):
    """The session may forbid that constants are kept in another form."""
    model = make_network()
    session = es.make_session(model, prefer_nhwc=1, config={"session.disable_prepacking": "1"})
    x = images()
    np.testing.assert_allclose(session.run(None, {"x": x})[0], on_cpu(model, x=x), rtol=3e-5, atol=3e-5)


def graph_nodes(model, x, y, **options):
    """How many nodes the captured graph has, and what it computes."""
    session = es.make_session(model, enable_cuda_graph=1, **options)
    bound = es.Bound(session, {"x": x}, {"y": y})
    for _ in range(4):
        result = bound.run()["y"]
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert report["state"] == "ready"
    return report["nodes"], result


@pytest.mark.parametrize("layout", [{}, {"prefer_nhwc": 1}], ids=str)
def test_less_workspace_means_more_products(encore, make_model, layout):
    """The columns of this convolution take 55 MB: all at once, or in parts of 32 MiB."""
    model = make_model(
        [helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])],
        {"x": [1, 16, 310, 310]},
        {"y": [1, 8, 310, 310]},
        [weights("w", 8, 16, 3, 3)],
    )
    x, y = rng().standard_normal((1, 16, 310, 310)).astype(np.float32), ([1, 8, 310, 310], np.float32)
    much, wanted = graph_nodes(model, x, y, enable_cudnn=0, **layout)
    little, got = graph_nodes(model, x, y, enable_cudnn=0, cudnn_conv_use_max_workspace=0, **layout)
    assert little > much  # columns and product of a second part
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got, on_cpu(model, x=x), rtol=3e-5, atol=3e-5)


test_less_workspace_means_more_products.__test__ = es.HAS_GRAPHS


@pytest.mark.parametrize("layout", [{}, {"prefer_nhwc": 1}], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_deterministic_sessions_agree_to_the_bit(encore, make_network, layout, dtype):
    model, x = make_network(dtype), images(dtype=dtype)
    results = [es.make_session(model, deterministic=1, **layout).run(None, {"x": x})[0] for _ in range(2)]
    np.testing.assert_array_equal(*results)
    assert np.abs(results[0]).max() > 0


@pytest.mark.parametrize(
    "options",
    [
        {"cudnn_conv_algo_search": "EXHAUSTIVE"},
        {"cudnn_conv_algo_search": "HEURISTIC"},
        {"cudnn_conv_algo_search": "DEFAULT"},
        {"fuse_conv_bias": 0},
        {"fuse_conv_bias": 1},
        {"cudnn_conv_use_max_workspace": 0},
        {"deterministic": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", [{}, {"prefer_nhwc": 1}], ids=str)
def test_options_change_no_result(encore, make_network, options, layout):
    model, x = make_network(), images()
    session = es.make_session(model, **options, **layout)
    for _ in range(2):
        np.testing.assert_allclose(session.run(None, {"x": x})[0], on_cpu(model, x=x), rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("layout", [{}, {"prefer_nhwc": 1}], ids=str)
def test_lines_are_rows_or_columns(encore, make_model, row, layout):
    model = make_model(
        [helper.make_node("Conv", ["x", "w", "b"], ["y"], "conv", pads=[2, 1], strides=[2])],
        {"x": [2, 8, 33]},
        {"y": [2, 16, 16]},
        [weights("w", 16, 8, 5), weights("b", 16)],
    )
    x = rng().standard_normal((2, 8, 33)).astype(np.float32)
    session = es.make_session(model, cudnn_conv1d_pad_to_nc1d=row, **layout)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], on_cpu(model, x=x), rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("taps, stride", [(3, 2), (7, 2), (4, 4)])
def test_pictures_of_few_channels(encore, make_model, channels, taps, stride):
    """Of floats as TF32: by tiles, for which their weights are filled up."""
    before = (taps - 1) // 2
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[before] * 4, strides=[stride] * 2),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["y"]),
    ]
    constants = [
        weights("w1", 16, channels, taps, taps),
        weights("b1", 16, seed=1),
        weights("w2", 8, 16, 3, 3, seed=2),
    ]
    made = (2, 8, *((size + 2 * before - taps) // stride - 1 for size in (40, 33)))
    model = make_model(nodes, {"x": [2, channels, 40, 33]}, {"y": list(made)}, constants)
    for config in {}, {"session.disable_prepacking": 1}:
        session = es.make_session(model, config=config, use_tf32=1, prefer_nhwc=1)
        for seed in range(3):
            x = rng(seed).standard_normal((2, channels, 40, 33)).astype(np.float32)
            np.testing.assert_allclose(session.run(None, {"x": x})[0], on_cpu(model, x=x), rtol=0, atol=4e-3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_what_is_timed_once_does_not_delay_the_graph(encore, make_model, dtype):
    """Products that are cuDNN's rivals are timed in the first run; the second is captured all the same."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    sizes = [(1024, 2048, 1, 2), (512, 512, 3, 2), (256, 512, 1, 2), (96, 256, 5, 1)]  # channels in, out, taps, stride
    for number, (channels, kernels, taps, stride) in enumerate(sizes):
        node = helper.make_node("Conv", ["x", "w"], ["y"], "conv", strides=[stride] * 2, pads=[taps // 2] * 4)
        ends = {"x": ([1, channels, 14, 14], kind)}, {"y": ([1, kernels, 14 // stride, 14 // stride], kind)}
        model = make_model([node], *ends, [weights("w", kernels, channels, taps, taps, dtype=dtype)])
        session = es.make_session(model, auto_graph=1, regions="all", use_tf32=1)
        x = rng(number).standard_normal((1, channels, 14, 14)).astype(dtype)
        for _ in range(3):
            session.run(None, {"x": x})
        (region,) = onnxruntime_ep_encore.region_report(session)
        assert (region["refused"], region["first_runs"], region["captures"]) == (0, 1, 1), region


@pytest.mark.parametrize("curve", ["silu", "gelu"])
def test_automatic_graphs_have_what_cudnn_compiles(make_model, curve):
    """As detectors begin: cuDNN compiles a kernel for the curve, which goes into no context but its own."""
    constants = [weights("w", 16, 3, 3, 3, dtype=np.float16), weights("b", 16, dtype=np.float16, seed=1)]
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], "stem", strides=[2, 2], pads=[1] * 4)]
    if curve == "silu":
        nodes += [helper.make_node("Sigmoid", ["c"], ["s"]), helper.make_node("Mul", ["c", "s"], ["y"])]
    else:
        nodes += [helper.make_node("Gelu", ["c"], ["y"])]
    half = helper.np_dtype_to_tensor_dtype(np.dtype(np.float16))
    model = make_model(nodes, {"x": ([1, 3, 320, 320], half)}, {"y": ([1, 16, 160, 160], half)}, constants, opset=20)
    session, eager = (es.make_session(model, auto_graph=graphs) for graphs in (1, 0))
    for seed in range(4):
        x = rng(seed).standard_normal((1, 3, 320, 320)).astype(np.float16)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], eager.run(None, {"x": x})[0], rtol=2e-2, atol=2e-2)
    (region,) = onnxruntime_ep_encore.region_report(session)
    assert region["replays"] == 2 and not region["refused"], region
