"""TreeEnsembleRegressor, TreeEnsembleClassifier and TreeEnsemble."""

import numpy as np
import pytest
from encore_session import ORT_VERSION, only_if
from harness import Case, _Reference, check, floats, integers, seeded
from onnx import numpy_helper
from refusal import declined, fails

ML = "ai.onnx.ml"
BRANCHES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
FEATURES = 6
# Kernels are told lists of strings since 1.25.
told_strings = only_if(ORT_VERSION >= (1, 25))


def trees(what, count, targets, depth=4, branches=BRANCHES[:1], every=False, missing=False, seed=0, negative=True):
    """Random trees. `every`: a leaf has a weight for each target."""
    draw = seeded(what, count, targets, depth, seed)
    lists = {
        key: []
        for key in "treeids nodeids featureids values modes truenodeids falsenodeids missing_value_tracks_true".split()
    }
    weights = {key: [] for key in "treeids nodeids ids weights".split()}

    def add(tree, node, level):
        """The node, whose id is `node`, and those below; the next free id."""
        leaf = level == 0 or (level < depth and draw.random() < 0.2)
        place = len(lists["nodeids"])
        row = dict(
            treeids=tree,
            nodeids=node,
            featureids=0,
            values=0.0,
            modes="LEAF",
            truenodeids=0,
            falsenodeids=0,
            missing_value_tracks_true=0,
        )
        for key, value in row.items():
            lists[key].append(value)
        if leaf:
            for target in range(targets) if every else [int(draw.integers(targets))]:
                weights["treeids"].append(tree)
                weights["nodeids"].append(node)
                weights["ids"].append(target)
                weights["weights"].append(float(np.float32(draw.uniform(-1 if negative else 0, 1))))
            return node + 1
        lists["modes"][place] = branches[int(draw.integers(len(branches)))]
        lists["featureids"][place] = int(draw.integers(FEATURES))
        lists["values"][place] = float(draw.integers(-4, 5)) / 2
        lists["missing_value_tracks_true"][place] = int(missing and draw.integers(2))
        lists["truenodeids"][place] = node + 1
        behind = add(tree, node + 1, level - 1)
        lists["falsenodeids"][place] = behind
        return add(tree, behind, level - 1)

    for tree in range(count):
        add(tree, 0, depth)
    made = {f"nodes_{key}": value for key, value in lists.items()}
    if not missing:
        del made["nodes_missing_value_tracks_true"]
    return {**made, **{f"{what}_{key}": value for key, value in weights.items()}}


def rows(dtype, *shape):
    """Numbers that meet thresholds."""
    if dtype.startswith("int"):
        return integers(dtype, *shape, low=-3, high=3)
    return (np.rint(floats(*shape, low=-3, high=3) * 2) / 2).astype(dtype)


def case(op, x, attrs, **rest):
    return Case(op, [x], attrs, domain=ML, **{"family": "reduce", "domain_opset": 3, **rest})


AGGREGATES = ["SUM", "AVERAGE", "MIN", "MAX"]
TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]


@told_strings
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("targets,every", [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("base", [False, True])
def test_regressor(dtype, targets, every, aggregate, base):
    attrs = {**trees("target", 7, targets, every=every), "n_targets": targets, "aggregate_function": aggregate}
    if base:
        attrs["base_values"] = [0.5, -1.0, 2.0][:targets]
    for shape in ((20, FEATURES), (1, FEATURES), (0, FEATURES)):
        check(
            case(
                "TreeEnsembleRegressor",
                rows(dtype, *shape),
                attrs,
                name=f"{dtype}-{targets}-{every}-{aggregate}-{base}",
            )
        )


@told_strings
@pytest.mark.parametrize("branch", [*BRANCHES, "all"])
@pytest.mark.parametrize("missing", [False, True])
def test_questions(branch, missing):
    branches = BRANCHES if branch == "all" else [branch]
    attrs = {**trees("target", 9, 1, branches=branches, missing=missing), "n_targets": 1}
    x = rows("float32", 60, FEATURES)
    x[::3, ::2] = np.nan
    x[1, :3] = np.inf, -np.inf, -0.0
    check(case("TreeEnsembleRegressor", x, attrs, name=f"{branch}-{missing}"))
    check(case("TreeEnsembleRegressor", rows("float64", 9, FEATURES), attrs, name=f"{branch}-{missing}"))


@told_strings
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 4])
def test_regressor_transforms(transform, targets):
    attrs = {
        **trees("target", 1 if transform == "PROBIT" else 5, targets, every=True, negative=False),
        "n_targets": targets,
        "post_transform": transform,
    }
    check(
        case(
            "TreeEnsembleRegressor",
            rows("float32", 30, FEATURES),
            attrs,
            name=f"{transform}-{targets}",
            family="probit" if transform == "PROBIT" else "reduce",
        )
    )


@told_strings
def test_large_ensemble():
    attrs = {**trees("target", 150, 2, depth=7), "n_targets": 2}
    check(case("TreeEnsembleRegressor", rows("float32", 300, FEATURES), attrs, misaligned=True))
    check(case("TreeEnsembleRegressor", rows("float32", 1, FEATURES), attrs))


@told_strings
def test_numbers_as_tensors():
    attrs = {**trees("target", 5, 2), "n_targets": 2}
    for key in ("nodes_values", "target_weights"):
        attrs[f"{key}_as_tensor"] = numpy_helper.from_array(np.array(attrs.pop(key)) + 1e-12, key)
    attrs["base_values_as_tensor"] = numpy_helper.from_array(np.array([0.25, 1e-9]), "base")
    check(case("TreeEnsembleRegressor", rows("float64", 20, FEATURES), attrs))


@told_strings
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("classes,every", [(2, True), (3, False), (3, True), (5, False)])
@pytest.mark.parametrize("base", [False, True])
def test_classifier(dtype, classes, every, base):
    attrs = {**trees("class", 8, classes, every=every), "classlabels_int64s": [4 * i - 3 for i in range(classes)]}
    if base:
        attrs["base_values"] = [0.5, -1.0, 2.0, 0.125, 1.0][:classes]
    for shape in ((20, FEATURES), (1, FEATURES)):
        x = rows(dtype, *shape)
        check(case("TreeEnsembleClassifier", x, attrs, outputs=2, name=f"{dtype}-{classes}-{every}-{base}"))


# Before, the logistic of a single score was left out.
OF_ONE_SCORE = [t for t in TRANSFORMS[:4] if t != "LOGISTIC" or ORT_VERSION >= (1, 32)]


@told_strings
@pytest.mark.parametrize("transform", OF_ONE_SCORE)
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("base", [0, 1, 2])
@pytest.mark.parametrize("only", [0, 1])
def test_classifier_of_two(transform, negative, base, only):
    """Whose weights are all of one class."""
    attrs = trees("class", 3, 1, negative=negative)
    attrs["class_ids"] = [only] * len(attrs["class_ids"])
    attrs |= {"classlabels_int64s": [-4, 9], "post_transform": transform}
    if base:
        attrs["base_values"] = [0.25, -0.5][:base]
    name = f"{transform}-{negative}-{base}-{only}"
    check(case("TreeEnsembleClassifier", rows("float32", 40, FEATURES), attrs, outputs=2, name=name))


@told_strings
@pytest.mark.parametrize("transform", TRANSFORMS[:4])
def test_classifier_transforms(transform):
    attrs = {**trees("class", 6, 4, every=True), "classlabels_int64s": [1, 2, 3, 4], "post_transform": transform}
    check(case("TreeEnsembleClassifier", rows("float32", 40, FEATURES), attrs, outputs=2, name=transform))


GOOD = {**trees("target", 2, 2, depth=2, every=True), "n_targets": 2}


def changed(key, place, value):
    entries = list(GOOD[key])
    entries[place] = value
    return {key: entries}


INNER = GOOD["nodes_modes"].index("BRANCH_LEQ")


@told_strings
@pytest.mark.parametrize(
    "change",
    [
        changed("nodes_truenodeids", INNER, 99),
        changed("nodes_falsenodeids", INNER, -1),
        changed("nodes_truenodeids", INNER, 2**40),
        changed("nodes_truenodeids", INNER, 0),  # itself
        changed("nodes_featureids", INNER, -1),
        changed("nodes_featureids", INNER, 2**40),
        changed("nodes_nodeids", 1, 0),  # twice
        changed("nodes_modes", INNER, "BRANCH_ELSE"),
        changed("target_ids", 0, 2),
        changed("target_ids", 0, -1),
        changed("target_nodeids", 0, 77),
        {"target_weights": GOOD["target_weights"][:-1]},
        {"target_treeids": GOOD["target_treeids"][:-1]},
        {"nodes_values": GOOD["nodes_values"][:-1]},
        {"nodes_featureids": GOOD["nodes_featureids"][:-1]},
        {"nodes_missing_value_tracks_true": [0] * 99},
        {"n_targets": 0},
        {"n_targets": 2**40},
        {"aggregate_function": "ELSE"},
        {"post_transform": "ELSE"},
        {"target_nodeids": [], "target_ids": [], "target_treeids": [], "target_weights": []},
    ],
    ids=lambda change: next(iter(change)),
)
def test_hostile_trees(change):
    from onnx import AttributeProto, helper

    attrs = {
        k: helper.make_attribute(k, v, attr_type=AttributeProto.FLOATS if "weights" in k else AttributeProto.INTS)
        if v == []
        else v
        for k, v in {**GOOD, **change}.items()
    }
    attrs = {k: v for k, v in attrs.items() if not isinstance(v, AttributeProto)}
    declined("TreeEnsembleRegressor", [floats(2, FEATURES)], attrs, domain=ML, domain_opset=3)


@told_strings
def test_a_circle_of_nodes():
    """Which the CPU EP would walk forever."""
    attrs = {
        "nodes_treeids": [0] * 4,
        "nodes_nodeids": [0, 1, 2, 3],
        "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "BRANCH_LEQ", "LEAF"],
        "nodes_featureids": [0] * 4,
        "nodes_values": [0.0] * 4,
        "nodes_truenodeids": [1, 2, 1, 0],
        "nodes_falsenodeids": [3, 3, 3, 0],
        "target_treeids": [0],
        "target_nodeids": [3],
        "target_ids": [0],
        "target_weights": [1.0],
        "n_targets": 1,
    }
    declined("TreeEnsembleRegressor", [floats(2, 1)], attrs, domain=ML, domain_opset=3)


@told_strings
def test_rows_with_too_few_features():
    fails("TreeEnsembleRegressor", [floats(2, 1)], GOOD, "rows have 1 features", domain=ML)


# ---- TreeEnsemble


def tensor(values, dtype):
    return numpy_helper.from_array(np.array(values, dtype), "it")


def ensemble(dtype, count, targets, depth=4, branches=range(6), missing=False, positive=False, **more):
    """The same trees in the newer form; a member is asked for where a branch is 6."""
    draw = seeded("ensemble", dtype, count, targets, depth, str(branches))
    lists = "featureids splits modes truenodeids trueleafs falsenodeids falseleafs missing_value_tracks_true"
    nodes = {key: [] for key in lists.split()}
    leaves, roots, members = [], [], []

    def add(level):
        """Its id, and whether it is a leaf."""
        if level == 0 or (level < depth and draw.random() < 0.2):
            leaves.append((int(draw.integers(targets)), draw.uniform(0.02 if positive else -1, 1)))
            return len(leaves) - 1, 1
        place = len(nodes["modes"])
        branch = int(draw.choice(list(branches)))
        row = dict(
            featureids=int(draw.integers(FEATURES)),
            splits=draw.integers(-4, 5) / 2,
            modes=branch,
            truenodeids=0,
            trueleafs=0,
            falsenodeids=0,
            falseleafs=0,
            missing_value_tracks_true=int(missing and draw.integers(2)),
        )
        for key, value in row.items():
            nodes[key].append(value)
        if branch == 6:
            wanted[place] = [*map(float, draw.integers(-3, 4, int(draw.integers(1, 5)))), np.nan]
        for side in ("true", "false"):
            nodes[f"{side}nodeids"][place], nodes[f"{side}leafs"][place] = add(level - 1)
        return place, 0

    wanted = {}
    for _ in range(count):
        root, is_leaf = add(depth)
        assert not is_leaf
        roots.append(root)
    members = [value for place in sorted(wanted) for value in wanted[place]]
    attrs = {f"nodes_{key}": value for key, value in nodes.items()}
    attrs |= {"nodes_splits": tensor(nodes["splits"], dtype), "nodes_modes": tensor(nodes["modes"], "uint8")}
    attrs |= {"leaf_targetids": [t for t, _ in leaves], "leaf_weights": tensor([w for _, w in leaves], dtype)}
    attrs |= {"tree_roots": roots, "n_targets": targets}
    if members:
        attrs["membership_values"] = tensor(members, dtype)
    if not missing:
        del attrs["nodes_missing_value_tracks_true"]
    return {**attrs, **more}


NEWER = only_if(ORT_VERSION >= (1, 25))


def newer(x, attrs, **rest):
    return case("TreeEnsemble", x, attrs, domain_opset=5, **rest)


@NEWER
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("aggregate", range(4))
def test_ensemble(dtype, targets, aggregate):
    attrs = ensemble(dtype, 6, targets, aggregate_function=aggregate)
    for count in (20, 1, 0):
        check(newer(rows(dtype, count, FEATURES), attrs, name=f"{dtype}-{targets}-{aggregate}"))


@NEWER
@pytest.mark.parametrize("branches", [[6], [0, 6], range(7)], ids=str)
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_members(branches, missing, dtype):
    attrs = ensemble(dtype, 5, 2, branches=branches, missing=missing)
    x = np.round(rows(dtype, 50, FEATURES))  # of a half the CPU EP takes the whole part
    x[::3, ::2] = np.nan
    check(newer(x, attrs, name=f"{dtype}-{missing}"))


@NEWER
@pytest.mark.parametrize("transform", [0, 1, 2, 4])
def test_ensemble_transforms(transform):
    """As ONNX numbers them; the CPU EP has the first two the other way round."""
    x = np.round(rows("float32", 30, FEATURES))
    attrs = ensemble("float32", 1, 3, positive=True)
    plain = _Reference(newer(x, attrs))

    def reference(x):
        (scores,) = plain({"x0": x})
        if transform == 1:
            powers = np.exp(scores - scores.max(1, keepdims=True))
            return [powers / powers.sum(1, keepdims=True)]
        if transform == 2:
            return [1 / (1 + np.exp(-scores))]
        if transform == 4:
            with np.errstate(all="ignore"):
                log = np.log((2 - 2 * scores) * 2 * scores)
                v = 2 / (np.pi * 0.147) + log / 2
                return [np.sqrt(2) * np.sign(2 * scores - 1) * np.sqrt(np.sqrt(v * v - log / 0.147) - v)]
        return [scores]

    family = "probit" if transform == 4 else "reduce"
    check(newer(x, {**attrs, "post_transform": transform}, name=str(transform), reference=reference, family=family))


LITTLE = ensemble("float32", 2, 2, depth=2)


@NEWER
@pytest.mark.parametrize(
    "change",
    [
        {"tree_roots": [99]},
        {"tree_roots": [-1]},
        {"nodes_truenodeids": [99] * len(LITTLE["nodes_truenodeids"])},
        {
            "nodes_truenodeids": [0] * len(LITTLE["nodes_truenodeids"]),
            "nodes_trueleafs": [0] * len(LITTLE["nodes_trueleafs"]),
        },
        {"nodes_featureids": [-1] * len(LITTLE["nodes_featureids"])},
        {"leaf_targetids": [2] * len(LITTLE["leaf_targetids"])},
        {"leaf_targetids": [0]},
        {"nodes_modes": tensor([7] * len(LITTLE["nodes_featureids"]), "uint8")},
        {"nodes_splits": tensor([1], "float32")},
        {"aggregate_function": 4},
        {"post_transform": 5},
        {"n_targets": 0},
    ],
    ids=lambda change: next(iter(change)),
)
def test_hostile_ensembles(change):
    declined("TreeEnsemble", [floats(2, FEATURES)], {**LITTLE, **change}, domain=ML, domain_opset=5)
