import numpy as np
import onnx
import onnxruntime as ort
import pytest
import zoo
from encore_session import on_cpu

pytestmark = pytest.mark.newest

HALVES = [name for name in zoo.names() if name.endswith("_f16")]
STEMS = [name.removesuffix("_f32") for name in zoo.names() if name.endswith("_f32")]


# Level ALL would add NchwcTransformer, which crashes on the float16 ViT of dynamic batch (onnxruntime 1.24.4, 1.31.1).
def session(model, level=ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED):
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    return on_cpu(model, options)


def run(model, feeds, **options):
    return session(model, **options).run(None, feeds)


def test_names_are_the_models_the_benchmarks_speak_of():
    stems = ("bert_base", "mobilenet_v3", "resnet50", "vit_b16")
    assert zoo.names() == [f"{stem}_{kind}" for stem in stems for kind in ("f32", "f16")] + ["chain_f32"]


@pytest.mark.parametrize("stem", STEMS)
def test_outputs_depend_on_the_inputs_and_little_on_the_type(stem):
    outputs = {}
    for kind in ("f32", "f16") if f"{stem}_f16" in HALVES else ("f32",):
        name = f"{stem}_{kind}"
        model = zoo.load(name)
        onnx.checker.check_model(model)
        (output,) = run(model, zoo.inputs(name, batch=2))
        assert output.dtype == (np.float16 if kind == "f16" else np.float32)
        assert np.isfinite(output).all()
        first, second = outputs[kind] = output.astype(np.float32)
        assert first.std() > 0.05
        assert np.abs(first - second).max() > 0.05
    exact = outputs["f32"]
    assert all(np.linalg.norm(rounded - exact) < 0.02 * np.linalg.norm(exact) for rounded in outputs.values())


@pytest.mark.parametrize("name", HALVES)
def test_every_activation_is_well_inside_float16(name):
    model = zoo.load(name, batch=1)
    typed = onnx.shape_inference.infer_shapes(model).graph.value_info
    del model.graph.output[:]
    model.graph.output.extend(v for v in typed if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16)
    masked = float(np.finfo(np.float16).min)
    outputs = run(model, zoo.inputs(name), level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    assert len(outputs) > 50
    for value, output in zip(model.graph.output, outputs, strict=True):
        # A mask and the scores under it are meant to be huge.
        sizes = np.abs(output[output > masked / 2].astype(np.float32))
        assert np.isfinite(output).all(), value.name
        assert sizes.size == 0 or sizes.max() < 500, value.name
        assert not output.any() or np.abs(output).max() > 1e-3, value.name


@pytest.mark.parametrize("name", [name for name in zoo.names() if not name.startswith(("bert", "vit"))])  # 86M weights
def test_weights_follow_from_the_seed(name):
    model = zoo.load(name)
    assert model == zoo.load(name)
    assert model != zoo.load(name, seed=1)


@pytest.mark.parametrize("name", ["mobilenet_v3_f32", "chain_f32"])
def test_batch_can_be_static(name):
    feeds = zoo.inputs(name, batch=3)
    static = zoo.load(name, batch=3)
    (value,) = static.graph.input
    assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == list(feeds[value.name].shape)
    np.testing.assert_allclose(run(static, feeds)[0], run(zoo.load(name), feeds)[0], rtol=1e-4, atol=1e-4)


def test_inputs_follow_from_the_seed():
    a, b, c = (zoo.inputs("bert_base_f32", batch=4, seed=seed) for seed in (0, 0, 1))
    assert all((a[key] == b[key]).all() for key in a)
    assert all((a[key] != c[key]).any() for key in a)
    assert set(np.unique(a["attention_mask"])) == {0, 1}


def test_path_writes_a_model_once(tmp_path):
    file = zoo.path("mobilenet_v3_f16", seed=7, batch=2, directory=tmp_path)
    assert onnx.load(file) == zoo.load("mobilenet_v3_f16", seed=7, batch=2)
    written = file.stat().st_mtime_ns
    assert zoo.path("mobilenet_v3_f16", seed=7, batch=2, directory=tmp_path) == file
    assert file.stat().st_mtime_ns == written
    assert list(tmp_path.iterdir()) == [file]


def test_path_uses_the_directory_in_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ENCORE_MODEL_CACHE", str(tmp_path))
    assert zoo.path("chain_f32").parent == tmp_path


def test_variants_of_a_model_lie_in_files_of_their_own(tmp_path):
    variants = [{}, {"seed": 1}, {"batch": 1}, {"batch": 2}]
    assert len({zoo.path("chain_f32", directory=tmp_path, **variant) for variant in variants}) == len(variants)


def test_a_chain_has_as_many_rounds_as_asked():
    assert zoo.chain() == zoo.load("chain_f32")
    model = zoo.chain(3, batch=8)
    assert [node.op_type for node in model.graph.node] == ["Mul", "Add", "Tanh"] * 3
    assert run(model, zoo.inputs("chain_f32", batch=8))[0].shape == (8, 256)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'resnet51_f32'.*resnet50_f32"):
        zoo.load("resnet51_f32")
