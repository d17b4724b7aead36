import dataclasses

import numpy as np
import pytest
from harness import Case, check, integers
from refusal import declined, fails

# Two single tokens, three pairs, one triple.
POOL = {
    "ngram_counts": [0, 2, 8],
    "ngram_indexes": [3, 0, 1, 2, 5, 4],
    "pool_int64s": [2, 5, 1, 2, 5, 5, 3, 1, 4, 2, 1],
    "min_gram_length": 1,
    "max_gram_length": 3,
    "max_skip_count": 0,
    "mode": "TF",
}
GRAMS = [[2], [5], [1, 2], [5, 5], [3, 1], [4, 2, 1]]
WEIGHTS = {"weights": [0.5, 2.0, -1.0, 3.0, 0.25, 7.0]}


def vectorizer(x, name="", **attrs):
    return Case("TfIdfVectorizer", [x], {**POOL, **attrs}, name=name, family="exact")


def weighed(x, name="", **attrs):
    """Counted here: the CPU EP of onnxruntime 1.24 takes the weight of another n-gram."""
    case = vectorizer(x, name, **attrs)

    def reference(x):
        columns = case.attrs["ngram_indexes"]
        y = np.zeros((*x.shape[:-1], max(columns) + 1), np.float32)
        weights = np.zeros(y.shape[-1], np.float32)
        for gram, column, weight in zip(GRAMS, columns, case.attrs["weights"]):
            if len(gram) <= x.shape[-1]:
                there = np.lib.stride_tricks.sliding_window_view(x, len(gram), -1) == gram
                y[..., column] += there.all(-1).sum(-1)
            weights[column] = weight
        counts = np.minimum(y, 1) if case.attrs["mode"] == "IDF" else y
        return [np.multiply(counts, weights, where=y > 0, out=np.zeros_like(y))]

    return dataclasses.replace(case, reference=reference)


def tokens(*shape, kind="int64"):
    return integers(kind, *shape, low=0, high=6)


CASES = [
    *[vectorizer(tokens(*shape, kind=kind)) for kind in ("int32", "int64") for shape in [(50,), (7, 33), (1, 1)]],
    *[
        vectorizer(
            tokens(5, 40), f"skip{skips}-{low}to{high}", max_skip_count=skips, min_gram_length=low, max_gram_length=high
        )
        for skips in (1, 5, 100)
        for low, high in [(1, 3), (2, 2), (2, 3), (1, 1)]
    ],
    *[vectorizer(tokens(5, 40), mode, mode=mode) for mode in ("IDF", "TFIDF")],
    *[weighed(tokens(5, 40), mode, mode=mode, **WEIGHTS) for mode in ("IDF", "TFIDF")],
    vectorizer(tokens(300, 500), "large", max_skip_count=2),
    weighed(tokens(20, 4), "no-numbers", mode="TFIDF", weights=[np.nan, np.inf, -np.inf, -1.0, np.nan, np.inf]),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_tf_idf(case):
    check(case)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_gram_length": 4},
        {"mode": "tf"},
        {"max_skip_count": -1},
        {"ngram_counts": [0, 2, 9]},
        {"ngram_counts": [0, 200, 2]},
        {"ngram_indexes": [-1, 0, 1, 2, 3, 4]},
        {"ngram_indexes": [0, 1, 2]},
        {"weights": [1.0], "mode": "IDF"},
    ],
    ids=str,
)
def test_attributes_that_make_no_sense(wrong):
    declined("TfIdfVectorizer", [np.int64([1, 2])], {**POOL, **wrong})


def test_columns_beyond_what_weights_have_room_for():
    vast = {**POOL, "ngram_indexes": [0, 1, 2, 3, 4, 2**31 - 2], "mode": "TFIDF"}
    declined("TfIdfVectorizer", [np.int64([1, 2])], {**vast, **WEIGHTS})


def test_grams_of_one_column():
    shared = {**POOL, "ngram_indexes": [3, 0, 1, 0, 3, 1], "mode": "TFIDF"}
    check(vectorizer(tokens(5, 40), **shared))
    check(weighed(tokens(5, 40), **shared, weights=[0.5, 2.0, -1.0, 2.0, 0.5, -1.0]))
    x = [np.int64([2, 5, 1, 2])]
    for mode in ("IDF", "TFIDF"):
        declined("TfIdfVectorizer", x, {**shared, "mode": mode, **WEIGHTS})
    check(vectorizer(x[0], **{**shared, "mode": "TF"}, **WEIGHTS))


def test_more_than_two_dimensions():
    fails("TfIdfVectorizer", [np.zeros((1, 1, 1), np.int64)], POOL, "one or two dimensions", ranks=False)
