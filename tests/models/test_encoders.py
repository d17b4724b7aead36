"""Encoders of text as exporters write them: batches and sequences of any length, padded to a few."""

from pathlib import Path

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
import zoo

FILES = sorted((Path(__file__).parent / "encoders").glob("*.onnx"))
SHAPES = [(1, 3), (2, 8), (3, 5), (4, 16), (3, 11), (2, 1), (3, 5), (3, 5)]


def feeds(batch, length, seed):
    random = np.random.default_rng(seed)
    mask = np.arange(length) < random.integers(1, length + 1, (batch, 1))
    mask[0] &= seed % 3 != 2  # one sentence is empty
    return {"input_ids": random.integers(3, 200, (batch, length)), "attention_mask": mask.astype(np.int64)}


@pytest.mark.core
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_batches_and_sequences_are_padded(file):
    es.registered()
    model = zoo.filled(file)
    padded = es.make_session(model, regions=1, auto_graph=1, pad="batch:2,4;sequence:8,16")
    plain = es.make_session(model)
    for seed, shape in enumerate(SHAPES):
        one = feeds(*shape, seed)
        (got,), (wanted,) = padded.run(None, one), plain.run(None, one)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    (region,) = onnxruntime_ep_encore.region_report(padded)
    assert region["keys"] == 3 and region["replays"] > 0, region


def test_there_are_encoders():
    assert len(FILES) >= 8
