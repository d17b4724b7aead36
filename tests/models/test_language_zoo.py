import language_zoo as zoo
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

pytestmark = pytest.mark.newest

SMALL = ["gptoss", "llama", "qwen"]
MATRICES = {
    "llama": "model.layers.0.mlp.down_proj.MatMul.weight",
    "qwen": "lm_head.MatMul.weight",
    "gptoss": "model.layers.1.moe.experts.gate_up_proj.weight",
}


def values(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_names_are_the_models_that_the_tests_and_the_benchmark_speak_of():
    small = [f"{name}_{kind}" for name in SMALL for kind in ("f16", "f32", "int4", "paged")]
    codes = ["llama_paged_int8", "llama_paged_int4", "llama_cache_int8", "llama_cache_int4", "llama_cache_fp8"]
    assert zoo.names() == sorted([*small, *codes, "llama_1b_f16", "llama_1b_int4"])


@pytest.mark.parametrize("name", SMALL)
def test_weights_follow_from_the_seed(name):
    assert zoo.load(name, "f16", 1) == zoo.load(name, "f16", 1)
    assert zoo.load(name, "f16", 1) != zoo.load(name, "f16", 2)


@pytest.mark.parametrize("name", SMALL)
def test_graphs_of_a_model_have_the_same_weights(name):
    single, half = values(zoo.load(name, "f32")), values(zoo.load(name, "f16"))
    assert set(single) == set(half)
    for key, value in half.items():
        np.testing.assert_allclose(value, single[key], rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("name", SMALL)
def test_graphs_with_pages_have_them_too(name):
    half, paged = values(zoo.load(name, "f16")), values(zoo.load(name, "paged"))
    for layer in range(2):
        parts = [f"model.layers.{layer}.attn.{part}.MatMul.weight" for part in zoo.PROJECTIONS]
        if parts[0] in paged:
            whole = parts[0].replace("q_proj", "qkv_proj")
            paged[whole] = np.concatenate([paged.pop(part) for part in parts], axis=1)
    assert set(paged) == set(half)
    assert all((paged[key] == value).all() for key, value in half.items())


def test_scales_of_codes_follow_from_what_they_can_hold():
    for kind, most in {
        "cache_int8": 128,
        "paged_int8": 128,
        "cache_int4": 8,
        "paged_int4": 8,
        "cache_fp8": 448,
    }.items():
        scales = [value for key, value in values(zoo.load("llama", kind)).items() if key.endswith("_scale")]
        assert len(scales) == 4
        np.testing.assert_allclose([scale.mean() * most for scale in scales], zoo.LOUDEST, rtol=0.3)


@pytest.mark.parametrize("name, matrix", MATRICES.items())
def test_four_bits_hold_what_is_rounded_for_them(name, matrix):
    exact, rounded = (values(zoo.load(name, "f32", rounded=wanted))[matrix] for wanted in (False, True))
    parts = values(zoo.load(name, "int4"))
    stem = matrix.removesuffix(".weight")
    packed, scales = (
        (parts[f"{stem}.qweight"], parts[f"{stem}.scales"])
        if f"{stem}.qweight" in parts
        else (parts[f"{matrix}_Q4"], parts[f"{matrix}_scales"])
    )
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(*scales.shape, zoo.BLOCK)
    rows = ((codes.astype(np.float32) - 8) * scales[..., None].astype(np.float32)).reshape(*scales.shape[:-1], -1)
    np.testing.assert_array_equal(rows if rows.ndim == 3 else rows.T, rounded)
    assert 0.01 < np.linalg.norm(rounded - exact) / np.linalg.norm(exact) < 0.15


def test_a_model_is_saved_with_its_weights_beside_it(tmp_path):
    file = zoo.save("llama", "int4", tmp_path, seed=3)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    loaded, wanted = values(onnx.load(file)), values(zoo.load("llama", "int4", 3))
    assert all((loaded[name] == value).all() for name, value in wanted.items())


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'llama_f8'.*llama_f16"):
        zoo.load("llama", "f8")
