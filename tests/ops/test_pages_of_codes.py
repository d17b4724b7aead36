"""PagedAttention whose caches hold codes: int8, int4, two in a byte, or float8."""

import ml_dtypes
import numpy as np
import pytest
from encore_session import assert_all_on_encore, make_session
from group_query import MICROSOFT, in_order
from harness import check, session
from onnx import TensorProto
from paged import HALVES, model_of, paged
from pages_reference import PAGED, batch, reference
from refusal import declined, fails
from tolerance import tolerance


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("cache", ["int8", "int4"])
@pytest.mark.parametrize("news,pasts,size", [((1, 1), (70, 5), 128), ((7, 1, 20), (0, 33, 12), 64), ((3,), (9,), 256)])
def test_pages_of_codes(news, pasts, size, cache, dtype):
    check(paged(news, pasts, dtype, size=size, cache=cache))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "how",
    [
        {"size": 8, "slots": 5, "heads": 6},
        {"size": 40, "slots": 5, "packed": True, "rotary": 20},
        {"size": 80, "heads": 16, "packed": True, "misaligned": True, "rotary": 8, "rotary_offset": 16},
        {"size": 64, "rotary": 5, "rotary_interleaved": 1, "rotary_offset": 24},
        {"size": 72, "rotary": 6, "misaligned": True},
        {"local_window_size": 5, "sinks": True},
        {"softcap": 0.7, "scale": 0.3, "is_causal": 0},
        {"places": True, "spare": 3},
        {"size": 128, "heads": 2, "kv_heads": 1, "metadata": [1, 64]},
    ],
    ids=lambda how: "_".join(map(str, how)),
)
def test_options_of_pages_of_int4(how, dtype):
    check(paged((7, 1, 20), (0, 33, 12), dtype, cache="int4", **how))


@pytest.mark.parametrize("cache", ["int8", "int4"])
def test_pages_of_codes_by_other_scales(cache):
    case = paged((7, 1), (0, 33), cache=cache)
    case.attrs |= {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_CHANNEL"}
    at = PAGED.index("k_scale")
    for inputs in (case.inputs, *case.replays):
        inputs[at], inputs[at + 1] = case.inputs[at + 1], case.inputs[at]
    check(case)


@pytest.mark.parametrize(
    "news, pasts, kinds, named, latent",
    [
        ((5, 1), (0, 40), ("CHANNEL", "TENSOR"), False, False),
        ((5, 1), (0, 40), ("TENSOR", "TENSOR"), True, False),
        ((1, 1), (70, 5), ("TENSOR", "TENSOR"), False, False),
        ((1, 1), (70, 5), ("CHANNEL", "CHANNEL"), True, False),
        ((5, 1), (0, 40), ("CHANNEL", "TENSOR"), False, True),
    ],
    ids=str,
)
def test_float8_pages(news, pasts, kinds, named, latent):
    x = batch(news, pasts, 4, 1 if latent else 2, 64, 16, cache="float8", latent=latent)
    attrs = {"num_heads": 4, "kv_num_heads": 2} | {f"{n}_quant_type": f"PER_{kind}" for n, kind in zip("kv", kinds)}
    if named:
        attrs |= {f"{n}_cache_dtype": "float8e4m3fn" for n in "kv"}
    for n, kind in zip("kv", kinds):  # of which there are other numbers in this form of the scales
        shape = (2, 1, 64) if kind == "CHANNEL" else (1,)
        if not latent and x[f"{n}_scale"].value.shape != shape:
            x[f"{n}_scale"] = np.resize(x[f"{n}_scale"].value, shape)
    if latent:
        attrs = {"num_heads": 4, "kv_num_heads": 1, "k_quant_type": "PER_CHANNEL", "kv_cache_layout": "LATENT"}
    caches = [n for n in ("key_cache", "value_cache") if n in x]
    for n in caches:
        x[n] = (400 * x[n]).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    x = {n: getattr(v, "value", v) for n, v in x.items()}
    feeds = {n: v.astype(np.float16) if n in ("query", "key", "value") else v for n, v in x.items()}
    kinds = dict.fromkeys(caches, TensorProto.FLOAT8E4M3FN)
    forms = {n: (v.shape, v.dtype, kinds.get(n)) for n, v in feeds.items()}
    sess = session(model_of("PagedAttention", PAGED, attrs, forms, 1 + len(caches)))
    assert_all_on_encore(sess)
    wanted = reference(PAGED, "float8", **attrs)(*[feeds.get(n) for n in PAGED])
    rtol, atol = tolerance("cached", "float16")
    for got, w in zip(sess.run(None, feeds), wanted):
        np.testing.assert_allclose(got.astype(np.float64), w, rtol=rtol, atol=atol)


CODED = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}


@pytest.mark.parametrize(
    "cache,attrs",
    [
        ("int4", {}),
        ("int4", {"k_cache_dtype": "int4"}),
        ("int4", {"k_cache_dtype": "float4e2m1", "v_cache_dtype": "float4e2m1"}),
        ("int4", {"k_cache_dtype": "int4", "v_cache_dtype": "int4", "v_quant_type": "NONE"}),
        ("int8", {"k_cache_dtype": "int4", "v_cache_dtype": "int4"}),
    ],
    ids=str,
)
def test_codes_that_are_not_supported_are_declined(cache, attrs):
    x = batch((2,), (3,), 4, 2, 64, 16, cache=cache)
    inputs = [v.astype(np.float16) if getattr(v, "dtype", None) == np.float32 else v for v in in_order(PAGED, x)]
    attrs = {"num_heads": 4, "kv_num_heads": 2, **CODED, **attrs}
    declined("PagedAttention", inputs, attrs, outputs=3, domain=MICROSOFT)


@pytest.mark.parametrize(
    "cache, attrs, why",
    [
        ("int8", {"k_quant_type": "NONE", "v_quant_type": "NONE"}, "k_quant_type must be NONE unless"),
        ("", CODED, "k_quant_type must be NONE unless"),
        ("int8", {**CODED, "v_cache_dtype": "float16"}, "v_cache_dtype is 'float16' in a cache of int8"),
        ("int8", {**CODED, "k_cache_dtype": "uint4"}, "k_cache_dtype is 'uint4' in a cache of int8"),
    ],
    ids=str,
)
def test_what_is_declined_is_logged_with_the_reason(cache, attrs, why, capfd):
    """No other provider has the operator: what onnxruntime says of the node then tells nobody why."""
    x = batch((2,), (3,), 4, 2, 64, 16, cache=cache)
    feeds = {n: getattr(v, "value", v) for n, v in x.items()}
    if attrs["k_quant_type"] == "NONE":
        feeds = {n: v for n, v in feeds.items() if not n.endswith("scale")}
    elif not cache:
        feeds |= {n: np.ones(1, np.float32) for n in ("k_scale", "v_scale")}
    forms = {
        n: (v.shape, np.dtype(np.float16) if v.dtype == np.float32 and "scale" not in n else v.dtype, None)
        for n, v in feeds.items()
    }
    with pytest.raises(Exception, match="PagedAttention"):
        model = model_of("PagedAttention", PAGED, {"num_heads": 4, "kv_num_heads": 2, **attrs}, forms, 3)
        make_session(model)
    said = capfd.readouterr().err
    assert "'it' is not on Encore: " in said and why in said, said


def test_a_byte_of_two_values_is_not_divided_by_rotation():
    case = paged((2,), (3,), cache="int4", rotary=9)
    inputs = [v.astype(np.float16) if getattr(v, "dtype", None) == np.float32 else v for v in case.inputs]
    fails("PagedAttention", inputs, case.attrs, "an even number", outputs=3, domain=MICROSOFT)
