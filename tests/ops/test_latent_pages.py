"""PagedAttention with latent rows, which are keys and whose first channels are values (kv_cache_layout)."""

import numpy as np
import pytest
from group_query import MICROSOFT, in_order
from harness import check
from paged import HALVES, paged
from pages_reference import PAGED, batch
from refusal import declined, fails


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "how",
    [
        {"size": 576, "latent": 512, "heads": 16, "rotary": 32, "rotary_offset": 512},
        {"size": 40, "latent": 0, "slots": 5},
        {"size": 72, "latent": 27, "heads": 5, "misaligned": True},
        {"size": 64, "latent": 64, "heads": 40, "places": True},
        {"size": 136, "latent": 128, "is_causal": 0, "spare": 2},
        {"size": 64, "latent": 48, "local_window_size": 5, "softcap": 0.7},
        {"size": 576, "latent": 512, "heads": 3, "cache": "int8", "metadata": [9, 0]},
        {"size": 96, "latent": 64, "heads": 9, "cache": "int4", "rotary": 16, "rotary_offset": 64},
        {"size": 64, "latent": 56, "k_quant_type": "PER_TENSOR", "cache": "int8"},
    ],
    ids=lambda how: "_".join(map(str, how.values())),
)
def test_latent_rows(how, dtype):
    how = {"heads": 4, "scale": 0.11, **how}
    case = paged((7, 1, 20), (0, 33, 12), dtype, kv_heads=1, **how)
    check(case)


@pytest.mark.parametrize("news,pasts", [((1,), (2500,)), ((1,) * 20, tuple(range(0, 100, 5))), ((40,), (3,))], ids=str)
def test_lengths_of_latent_rows(news, pasts):
    check(paged(news, pasts, heads=8, kv_heads=1, size=192, latent=128, scale=0.1))


LATENT = {"num_heads": 4, "kv_num_heads": 1, "kv_cache_layout": "LATENT"}


@pytest.mark.parametrize(
    "inputs,attrs",
    [
        ({}, {"kv_num_heads": 2}),
        ({}, {"v_head_size": -1}),
        ({}, {"v_cache_dtype": "float16"}),
        ({}, {"v_quant_type": "PER_TENSOR"}),
        ({"sinks": (4,)}, {}),
        ({"q_weight": (64,), "k_weight": (64,)}, {}),
        ({"value": (2, 64)}, {}),
        ({"value_cache": (3, 16, 1, 64)}, {}),
        ({"key": None}, {}),
    ],
    ids=str,
)
def test_latent_rows_that_are_not_supported_are_declined(inputs, attrs):
    x = batch((2,), (3,), 4, 1, 64, 16, latent=True)
    x |= {n: None if shape is None else np.zeros(shape, np.float32) for n, shape in inputs.items()}
    inputs = [v.astype(np.float16) if v is not None and v.dtype == np.float32 else v for v in in_order(PAGED, x)]
    declined("PagedAttention", inputs, LATENT | attrs, outputs=2, domain=MICROSOFT)


@pytest.mark.parametrize(
    "size,attrs,words",
    [
        (64, {"v_head_size": 72}, "v_head_size is 72"),
        (64, {"v_head_size": 32}, "scale is wanted"),
        (584, {}, "up to 576"),
    ],
)
def test_latent_rows_that_do_not_fit(size, attrs, words):
    x = batch((2,), (3,), 4, 1, size, 16, latent=True)
    inputs = [v.astype(np.float16) if v is not None and v.dtype == np.float32 else v for v in in_order(PAGED, x)]
    fails("PagedAttention", inputs, LATENT | attrs, words, outputs=2, domain=MICROSOFT)


def test_no_latent_rows():
    check(paged((0, 0), (3, 0), name="no_tokens", kv_heads=1, latent=0))
