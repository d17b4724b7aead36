"""ai.onnx.ml: features, linear models, support vector machines and trees, whose labels are numbers."""

import numpy as np
from element_types import NUMPY
from onnx import numpy_helper
from proposals import ML, proposes

TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]  # a probit has a value of probabilities only


def _rows(s, types=None, whole=False):
    """Features that trees may meet exactly. `whole`: of others the CPU EP looks for the whole part among members."""
    shape = [s.draw.number(1, 20), s.draw.number(1, 9)]
    kind = s.draw.pick(types or s.types())
    values = s.draw.numpy.uniform(-3, 3, shape)
    return s.new(np.rint(values) if whole else np.rint(values * 2) / 2, kind, constant=0.1)


def _numbers(s, count, low=-1.0):
    return [float(np.float32(value)) for value in s.draw.numpy.uniform(low, 1, count)]


@proposes("ArrayFeatureExtractor", domain=ML, family="exact", own_types=True)
def extract(s):
    x = s.data(low=1)
    width = max(1, x.array.shape[-1])
    return s.node(x, s.fixed([s.draw.number(0, width - 1) for _ in range(s.draw.number(1, 5))]))


@proposes("Binarizer", domain=ML, family="exact", own_types=True, steady=False)
def binarizer(s):
    return s.node(s.data(mild=True), threshold=s.draw.real())


@proposes("Scaler", domain=ML, own_types=True, mild=True)
def scaler(s):
    x = s.data(low=1)
    features = x.array.shape[0 if x.array.ndim == 1 else 1]
    count = features if features and s.draw.chance(0.6) else 1
    return s.node(x, types=["float"], offset=_numbers(s, count), scale=_numbers(s, count))


@proposes("Normalizer", domain=ML, family="reduce", own_types=True, mild=True, steady=False)
def normalizer(s):
    x = s.new(s.draw.contents(kind := s.draw.pick(s.types()), s.draw.shape(1, 2), mild=True), kind)
    return s.node(x, types=["float"], norm=s.draw.pick([None, "MAX", "L1", "L2"]))


@proposes("LinearRegressor", domain=ML, family="matmul", own_types=True, mild=True)
def linear_regressor(s):
    x, targets = _rows(s), s.draw.number(1, 5)
    attrs = {"targets": targets, "coefficients": _numbers(s, targets * x.array.shape[1])}
    attrs["intercepts"] = s.maybe(0.6, lambda: _numbers(s, targets))
    return s.node(x, types=["float"], post_transform=s.draw.pick(TRANSFORMS), **attrs)


@proposes("LinearClassifier", domain=ML, family="matmul", own_types=True, mild=True, steady=False)
def linear_classifier(s):
    x, classes = _rows(s), s.draw.number(1, 5)
    labels = [5 * i - 7 for i in range(max(2, classes))]
    attrs = {"coefficients": _numbers(s, classes * x.array.shape[1]), "intercepts": _numbers(s, classes)}
    attrs |= {"classlabels_ints": labels, "post_transform": s.draw.pick(TRANSFORMS)}
    return s.node(x, types=["int64", "float"], wanted=2, **attrs)


def _kernel(s):
    kind = s.draw.pick(["LINEAR", "POLY", "RBF", "SIGMOID"])
    return {"kernel_type": kind, "kernel_params": [0.25, 0.5, float(s.draw.pick([2, 3]))]}


@proposes("SVMRegressor", domain=ML, family="matmul", own_types=True, mild=True, sums=True, steady=False)
def svm_regressor(s):
    x, supports = _rows(s), s.draw.number(0, 9)
    features = x.array.shape[1]
    attrs = {
        **_kernel(s),
        "n_supports": supports,
        "coefficients": _numbers(s, supports or features),
        "rho": _numbers(s, 1),
    }
    attrs["support_vectors"] = _numbers(s, supports * features) if supports else None
    return s.node(x, types=["float"], one_class=s.maybe(0.3, lambda: 1), **attrs)


# Of probabilities, what an iteration ends at.
@proposes(
    "SVMClassifier",
    domain=ML,
    family="matmul",
    own_types=True,
    mild=True,
    steady=False,
    tolerance={"float": (2e-3, 2e-3)},
)
def svm_classifier(s):
    x, classes = _rows(s), s.draw.number(2, 4)
    each = [s.draw.number(1, 4) for _ in range(classes)]
    count, pairs = sum(each), classes * (classes - 1) // 2
    attrs = {**_kernel(s), "vectors_per_class": each, "coefficients": _numbers(s, (classes - 1) * count)}
    attrs |= {"support_vectors": _numbers(s, count * x.array.shape[1]), "rho": _numbers(s, pairs)}
    if s.draw.chance(0.4):
        attrs |= {"prob_a": [-1 - value for value in _numbers(s, pairs, 0)], "prob_b": _numbers(s, pairs)}
    attrs |= {"classlabels_ints": [2 * i - 3 for i in range(classes)], "post_transform": s.draw.pick(TRANSFORMS)}
    return s.node(x, types=["int64", "float"], wanted=2, **attrs)


MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def _grow(s, features, depth, modes, inner, leaf):
    """A random tree: inner(feature, threshold, mode, missing, add) and leaf() keep what they are told."""

    def add(level):
        if level == 0 or (level < depth and s.draw.chance(0.25)):
            return leaf()
        told = s.draw.number(0, features - 1), s.draw.number(-4, 4) / 2, s.draw.pick(modes), s.draw.number(0, 1)
        return inner(*told, lambda: add(level - 1))

    return add(depth)


def _lists(s, what, targets, features):
    keys = "treeids nodeids featureids values modes truenodeids falsenodeids missing_value_tracks_true"
    nodes = {key: [] for key in keys.split()}
    weights = {key: [] for key in "treeids nodeids ids weights".split()}
    modes = s.draw.pick([MODES[:1], MODES])
    every = s.draw.chance(0.5)

    def put(tree, *told):
        place, node = len(nodes["nodeids"]), nodes["treeids"].count(tree)
        for key, value in zip(nodes, (tree, node, *told)):
            nodes[key].append(value)
        return place, node

    for tree in range(s.draw.number(1, 5)):

        def leaf(tree=tree):
            _, node = put(tree, 0, 0.0, "LEAF", 0, 0, 0)
            for target in range(targets) if every else [s.draw.number(0, targets - 1)]:
                for key, value in zip(weights, (tree, node, target, s.draw.real())):
                    weights[key].append(value)
            return node

        def inner(feature, threshold, mode, missing, add, tree=tree):
            place, node = put(tree, feature, threshold, mode, 0, 0, missing)
            nodes["truenodeids"][place] = add()
            nodes["falsenodeids"][place] = add()
            return node

        _grow(s, features, s.draw.number(0, 4), modes, inner, leaf)
    if s.draw.chance(0.5):
        del nodes["missing_value_tracks_true"]
    made = {f"nodes_{key}": value for key, value in nodes.items()}
    return {**made, **{f"{what}_{key}": value for key, value in weights.items()}}


@proposes("TreeEnsembleRegressor", domain=ML, family="reduce", own_types=True, steady=False)
def regressor(s):
    x, targets = _rows(s), s.draw.number(1, 4)
    attrs = {**_lists(s, "target", targets, x.array.shape[1]), "n_targets": targets}
    attrs["aggregate_function"] = s.draw.pick([None, "SUM", "AVERAGE", "MIN", "MAX"])
    attrs["base_values"] = s.maybe(0.4, lambda: _numbers(s, targets))
    return s.node(x, types=["float"], post_transform=s.draw.pick(TRANSFORMS), **attrs)


@proposes("TreeEnsembleClassifier", domain=ML, family="reduce", own_types=True, steady=False)
def classifier(s):
    x, classes = _rows(s), s.draw.number(2, 4)
    attrs = _lists(s, "class", classes if s.draw.chance(0.7) else 1, x.array.shape[1])
    attrs["base_values"] = s.maybe(0.4, lambda: _numbers(s, classes))
    attrs |= {"classlabels_int64s": [3 * i - 4 for i in range(classes)], "post_transform": s.draw.pick(TRANSFORMS)}
    return s.node(x, types=["int64", "float"], wanted=2, **attrs)


# Transforms are of floats, of doubles too.
@proposes("TreeEnsemble", domain=ML, family="reduce", own_types=True, steady=False, tolerance={"double": (1e-5, 1e-5)})
def ensemble(s):
    x, targets = _rows(s, whole=True), s.draw.number(1, 4)
    keys = "featureids splits modes truenodeids trueleafs falsenodeids falseleafs missing_value_tracks_true"
    nodes, leaves, wanted = {key: [] for key in keys.split()}, [], {}
    modes = s.draw.pick([[0], range(6), [0, 6]])

    def leaf():
        leaves.append((s.draw.number(0, targets - 1), s.draw.real()))
        return len(leaves) - 1, 1

    def inner(feature, threshold, mode, missing, add):
        place = len(nodes["modes"])
        for key, value in zip(nodes, (feature, threshold, mode, 0, 0, 0, 0, missing)):
            nodes[key].append(value)
        if mode == 6:
            wanted[place] = [*(float(s.draw.number(-3, 3)) for _ in range(s.draw.number(1, 3))), np.nan]
        for side in ("true", "false"):
            nodes[f"{side}nodeids"][place], nodes[f"{side}leafs"][place] = add()
        return place, 0

    def tensor(values, name):
        return numpy_helper.from_array(np.asarray(values, NUMPY[name]), "values")

    roots = [_grow(s, x.array.shape[1], s.draw.number(1, 4), modes, inner, leaf)[0] for _ in range(s.draw.number(1, 5))]
    attrs = {f"nodes_{key}": value for key, value in nodes.items()}
    attrs |= {"nodes_splits": tensor(nodes["splits"], x.type), "nodes_modes": tensor(nodes["modes"], "uint8")}
    attrs |= {"leaf_targetids": [t for t, _ in leaves], "leaf_weights": tensor([w for _, w in leaves], x.type)}
    if wanted:
        attrs["membership_values"] = tensor([v for place in sorted(wanted) for v in wanted[place]], x.type)
    attrs["aggregate_function"] = s.draw.pick([None, 0, 1, 2, 3])
    # The CPU EP numbers two transforms the other way round.
    return s.node(x, tree_roots=roots, n_targets=targets, post_transform=s.draw.pick([None, 0, 3]), **attrs)
