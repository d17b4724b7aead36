"""Operators that look values up in a table of their own."""

import numpy as np
from element_types import NUMPY, rounded
from onnx import numpy_helper
from proposals import ML, proposes


@proposes("LabelEncoder", domain=ML, family="exact", own_types=True)
def label_encoder(s):
    x = s.data()
    kind = s.draw.pick(s.row.types(0, "out"))
    count = s.draw.number(0, 9)
    seen = np.unique(np.asarray(x.array, NUMPY[x.type]).reshape(-1))
    keys = np.unique(np.append(seen[:count], s.draw.contents(x.type, [2])).astype(NUMPY[x.type]))

    def tensor(values, name):
        return numpy_helper.from_array(np.asarray(rounded(values, name), NUMPY[name]), "values")

    values = tensor(s.draw.contents(kind, [len(keys)]), kind)
    default = tensor(s.draw.contents(kind, [1]), kind) if s.draw.chance(0.7) else None
    return s.node(x, types=[kind], keys_tensor=tensor(keys, x.type), values_tensor=values, default_tensor=default)


@proposes("TfIdfVectorizer")  # the CPU EP adds a weight as often as Encore multiplies it by
def tf_idf_vectorizer(s):
    x = s.new(
        np.array(s.draw.picks([0, 1, 2, 3], 24)).reshape(s.draw.pick([[24], [4, 6], [1, 24]])), s.draw.pick(s.types())
    )
    singles, pairs = s.draw.number(0, 3), s.draw.number(0, 4)
    grams = s.draw.shuffled([(a, b) for a in range(4) for b in range(4)])[:pairs]
    count = singles + pairs
    if count == 0:
        return s.node(x, types=["float"], mode="TF")
    mode = s.draw.pick(["TF", "IDF", "TFIDF"])
    return s.node(
        x,
        types=["float"],
        mode=mode,
        max_gram_length=2,
        min_gram_length=s.draw.pick([1, 2]),
        max_skip_count=s.draw.number(0, 4),
        ngram_counts=[0, singles],
        ngram_indexes=s.draw.shuffled(list(range(count))),
        pool_int64s=list(range(singles)) + [token for gram in grams for token in gram],
        weights=s.maybe(0.5, lambda: [0.5 * i - 1 for i in range(count)]),
    )
