"""What one meets first: encore.session(), which never goes to the CPU unseen. The pages' examples: test_pages.py."""

import encore_session
import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from encore_session import EP_NAME, in_new_process
from onnx import helper, numpy_helper

pytestmark = pytest.mark.core

X = np.float32([[-1, 2, -3]])
LAST_DEVICE = len(onnxruntime_ep_encore.devices(encore_session.registered())) - 1


@pytest.fixture
def relu(make_model):
    nodes = [helper.make_node("Relu", ["x"], ["y"], "relu")]
    return make_model(nodes, {"x": [1, 3]}, {"y": [1, 3]}).SerializeToString()


# ---- a session


def test_a_session_is_onnxruntimes_own(encore, relu, tmp_path):
    (tmp_path / "model.onnx").write_bytes(relu)
    for model in (relu, tmp_path / "model.onnx", str(tmp_path / "model.onnx")):
        session = onnxruntime_ep_encore.session(model)
        assert isinstance(session, ort.InferenceSession)
        assert session.get_providers() == [EP_NAME, "CPUExecutionProvider"]
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], np.maximum(X, 0))


def test_it_registers_the_library_itself(relu):
    code = f"import onnxruntime_ep_encore as e; print(e.session({relu!r}).get_providers()[0])"
    assert in_new_process(code).stdout.split() == [onnxruntime_ep_encore.get_ep_name()]


def test_options_as_python_has_them(encore, relu):
    session = onnxruntime_ep_encore.session(
        relu, gpu_mem_limit=64 << 20, use_arena=False, **{"arena.max_mem": "67108864"}
    )
    session.run(None, {"x": X})
    arena = onnxruntime_ep_encore.memory_report(session)["arena"]
    assert arena["limit_bytes"] == 64 << 20
    assert arena["driver_allocations"] == arena["allocations"] > 0


def test_options_of_the_session_are_kept(encore, relu):
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = onnxruntime_ep_encore.session(relu, session_options=options)
    encore_session.assert_all_on_encore(session)
    with pytest.raises(ValueError, match="the session options have a provider already.*make new ones"):
        onnxruntime_ep_encore.session(relu, session_options=options)


def test_an_option_that_is_none_is_not_given(encore, relu, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnxruntime_ep_encore.session(
        relu, tuning_cache=None, dump_regions=None, gpu_mem_limit=None, enable_cuda_graph=None, pad=None
    )
    assert list(tmp_path.iterdir()) == []


def test_an_option_has_one_value(encore, relu):
    """onnxruntime takes the keyword's, and says nothing."""
    for entry in ("ep.cuda.use_tf32", f"ep.{EP_NAME.lower()}.use_tf32"):
        options = ort.SessionOptions()
        options.add_session_config_entry(entry, "0")
        with pytest.raises(ValueError, match=f"use_tf32 is '1', but the session options' entry '{entry}' is '0'"):
            onnxruntime_ep_encore.session(relu, session_options=options, use_tf32=True)
        onnxruntime_ep_encore.session(relu, session_options=options, use_tf32=False)


def test_a_dimension_is_padded_to_one_length(encore, make_model):
    nodes = [helper.make_node("Neg", ["x"], ["z"]), helper.make_node("Exp", ["z"], ["y"])]
    model = make_model(nodes, {"x": ["n", 3]}, {"y": ["n", 3]})
    session = onnxruntime_ep_encore.session(model.SerializeToString(), pad={"n": 4})
    np.testing.assert_allclose(session.run(None, {"x": X})[0], np.exp(-X), rtol=1e-6)
    assert [report["padded"] for report in onnxruntime_ep_encore.region_report(session)] == [1]


def test_the_device_is_chosen_by_number(encore, relu):
    session = onnxruntime_ep_encore.session(relu, device_id=LAST_DEVICE)
    assert session.get_input_memory_infos()[0].device_id == LAST_DEVICE
    for wrong in (LAST_DEVICE + 1, -1, "0"):
        with pytest.raises(ValueError, match=f"device_id is {wrong!r}, but Encore offers 0"):
            onnxruntime_ep_encore.session(relu, device_id=wrong)


def test_a_refused_option_raises_with_the_reason(encore, relu, capfd):
    with pytest.raises(
        RuntimeError, match=r"^Encore refused the session: .*enable_cuda_grph'; did you mean '.*_graph'\?$"
    ):
        onnxruntime_ep_encore.session(relu, enable_cuda_grph=True)
    with pytest.raises(RuntimeError, match="gpu_mem_limit' is '4GB'; it must be a number of bytes"):
        onnxruntime_ep_encore.session(relu, gpu_mem_limit="4GB")
    assert "Falling back" not in capfd.readouterr().out


@pytest.mark.parametrize(
    "before",
    [
        "Error creating execution provider:",
        "/core/ep_plugin_provider_interfaces.cc:393 virtual std::unique_ptr<onnxruntime::IExecutionProvider> "
        "onnxruntime::PluginExecutionProviderFactory::CreateProvider(const OrtSessionOptions&, const OrtLogger&)",
    ],
    ids=["up to 1.31", "from 1.32 on"],
)
def test_a_refusal_is_read_from_the_words_of_each_onnxruntime(encore, relu, before):
    class Refused:
        def __init__(self, *_, **__):
            raise encore_session.capi.InvalidArgument(f"{before} [ONNXRuntimeError] : 2 : INVALID_ARGUMENT : too cold")

    class Refusing:
        InferenceSession = Refused

        def __getattr__(self, name):
            return getattr(ort, name)

    with pytest.raises(RuntimeError, match="^Encore refused the session: too cold$"):
        onnxruntime_ep_encore.session(relu, ort=Refusing())


def test_options_are_keywords(encore, relu):
    with pytest.raises(TypeError, match="positional"):
        onnxruntime_ep_encore.session(relu, {"enable_cuda_graph": True})


@pytest.mark.parametrize(
    "key, instead",
    [
        ("sess_options", "session_options takes them"),
        ("providers", "Encore is the provider, and the CPU has what it leaves"),
        ("provider_options", r"session\(model, enable_cuda_graph=True\)"),
        ("options", r"session\(model, enable_cuda_graph=True\)"),
        ("enable_fallback", "it is never enabled"),
    ],
)
def test_a_keyword_of_onnxruntimes_is_answered_by_the_right_one(encore, relu, key, instead):
    with pytest.raises(TypeError, match=rf"session\(\) has no keyword '{key}': .*{instead}"):
        onnxruntime_ep_encore.session(relu, **{key: None})


@pytest.mark.parametrize(
    "key, said",
    [
        ("enable_cuda_grph", "; did you mean 'enable_cuda_graph'?"),
        ("max_mem", "; did you mean 'gpu_mem_limit'?"),
        ("initial_chunk_size_bytes", "; did you mean **{'arena.initial_chunk_size_bytes': …}?"),
        ("config", "; docs/options.md has all that there are"),
        ("regions ", "; did you mean 'regions'?"),
        ("enable-cuda-graph", "; did you mean 'enable_cuda_graph'?"),
    ],
)
def test_a_correction_is_a_keyword_that_there_is(encore, relu, key, said):
    with pytest.raises(RuntimeError) as caught:
        onnxruntime_ep_encore.session(relu, **{key: 1})
    assert str(caught.value) == f"Encore refused the session: unknown provider option '{key}'{said}"


def test_a_model_without_a_path_is_refused(encore):
    with pytest.raises(ValueError, match="the model's path is empty: give a path, or the model's bytes"):
        onnxruntime_ep_encore.session("")


def test_the_prefix_that_was_wrong_is_told(encore, relu):
    options = ort.SessionOptions()
    options.add_session_config_entry("ep.encore.use_tf32", "0")
    with pytest.raises(RuntimeError, match="unknown provider option 'ep.encore.use_tf32'; did you mean 'use_tf32'"):
        onnxruntime_ep_encore.session(relu, session_options=options)


def test_the_optimized_model_can_be_saved(encore, make_model, tmp_path):
    nodes = [
        helper.make_node("Add", ["x", "r"], ["sum"], "residual"),
        helper.make_node("LayerNormalization", ["sum", "one"], ["y"], "norm"),
    ]
    one = numpy_helper.from_array(np.ones(8, np.float32), "one")
    model = make_model(nodes, {"x": [2, 8], "r": [2, 8]}, {"y": [2, 8]}, [one]).SerializeToString()
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    with pytest.warns(
        UserWarning, match=r"nothing is fused \(fuse_nodes=False\), because optimized_model_filepath is set"
    ):
        session = onnxruntime_ep_encore.session(model, session_options=options)
    assert onnx.load(tmp_path / "optimized.onnx").graph.node
    x = np.float32([range(8)] * 2)
    fused = onnxruntime_ep_encore.session(model)
    np.testing.assert_allclose(*(each.run(None, {"x": x, "r": x})[0] for each in (session, fused)), rtol=1e-5)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "no.onnx")
    for key, value, told in ("fuse_nodes", True, "'1'"), ("pad", {"n": 4}, "'n:4'"):
        with pytest.raises(
            ValueError, match=f"{key}={told} fuses nodes, and onnxruntime can't save such a model: leave"
        ):
            onnxruntime_ep_encore.session(model, session_options=options, **{key: value})


def test_a_session_for_a_context_model_fuses_nothing(encore, make_model, tmp_path, capfd):
    """onnxruntime asks for what was compiled then, to keep it, and Encore has nothing to keep."""
    nodes = [
        helper.make_node("Add", ["x", "r"], ["sum"], "residual"),
        helper.make_node("LayerNormalization", ["sum", "one"], ["y"], "norm"),
    ]
    one = numpy_helper.from_array(np.ones(8, np.float32), "one")
    model = make_model(nodes, {"x": [2, 8], "r": [2, 8]}, {"y": [2, 8]}, [one]).SerializeToString()
    context = {"ep.context_enable": "1", "ep.context_file_path": str(tmp_path / "context.onnx")}
    session = encore_session.make_session(model, config=context)
    x = np.float32([range(8)] * 2)
    assert session.run(None, {"x": x, "r": x})[0].shape == (2, 8)
    said = [line for line in capfd.readouterr().err.splitlines() if "nothing is fused, as with fuse_nodes=0" in line]
    assert len(said) == 1 and "ep.context_enable=1" in said[0]


def test_a_missing_model_is_onnxruntimes_error(encore):
    with pytest.raises(Exception, match="(?i)nowhere.onnx.*(exist|failed)"):
        onnxruntime_ep_encore.session("nowhere.onnx")


def test_no_device_raises_with_the_reason(relu):
    code = f"import onnxruntime_ep_encore as e; e.register(); e.register(); e.session({relu!r})"
    with pytest.raises(
        AssertionError, match="RuntimeError: Encore offers no device here; the log said why.*NVIDIA's driver: "
    ):
        in_new_process(code, ENCORE_VIRTUAL_DEVICES="0", CUDA_VISIBLE_DEVICES="")


def test_a_run_that_fails_is_not_repeated_on_the_cpu(encore, relu, monkeypatch):
    session = onnxruntime_ep_encore.session(relu)

    class Failing:
        def __getattr__(self, name):
            return getattr(inner, name)

        def run(self, *_):
            raise encore_session.capi.EPFail("broken")

    inner = session._sess
    monkeypatch.setattr(session, "_sess", Failing())
    with pytest.raises(encore_session.capi.EPFail, match="broken"):
        session.run(["y"], {"x": X})
