"""ai.onnx.ml: what picks, scales and normalizes features, linear models, support vector machines and trees."""

import numpy as np
import pytest
from encore_session import ORT_VERSION, make_session, only_if
from harness import SPECIAL, Case, check, floats, integers
from onnx import TensorProto, helper
from refusal import declined, fails

ML = "ai.onnx.ml"
NUMBERS = ["float32", "float64", "int32", "int64"]


def case(op, inputs, attrs=None, **rest):
    rest = {"domain_opset": 3, "family": "reduce", **rest}
    return Case(op, inputs, attrs or {}, domain=ML, **rest)


def numbers(dtype, *shape):
    if dtype.startswith("int"):
        return integers(dtype, *shape, low=-9, high=9)
    return floats(*shape).astype(dtype)


# ---- features


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("shape", [(4, 7), (7,), (2, 3, 7), (0, 7), (300, 7)], ids=str)
def test_array_feature_extractor(dtype, shape):
    wanted = np.array([[6, 0, 3, 3]])
    check(case("ArrayFeatureExtractor", [numbers(dtype, *shape), wanted], name=dtype, family="exact"))


def test_features_that_are_not_there():
    inputs = [floats(2, 3), np.array([0, 3])]
    fails("ArrayFeatureExtractor", inputs, {}, "index", domain=ML)


@pytest.mark.parametrize("shape", [(3, 5), (), (0, 4), (50_001,)], ids=str)
@pytest.mark.parametrize("attrs", [{}, {"threshold": 0.7}, {"threshold": -1.5}], ids=str)
def test_binarizer(shape, attrs):
    check(
        case(
            "Binarizer", [floats(*shape)], attrs, family="exact", name=str(attrs.get("threshold", "")), misaligned=True
        )
    )


def test_binarizer_of_extremes():
    check(case("Binarizer", [SPECIAL[1:]], {"threshold": 1.0}, family="exact"))


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("shape", [(4, 5), (5,), (2, 5, 3), (0, 5), (2000, 5)], ids=str)
@pytest.mark.parametrize("count", [1, 5])
def test_scaler(dtype, shape, count):
    attrs = {"offset": [0.5, -2.0, 3.0, 0.25, 1e-3][:count], "scale": [2.0, 0.1, -1.0, 7.0, 1e3][:count]}
    check(case("Scaler", [numbers(dtype, *shape)], attrs, name=f"{dtype}-{count}", family="elementwise"))


def test_scaler_of_extremes():
    check(case("Scaler", [SPECIAL], {"offset": [1.0], "scale": [2.0]}, family="elementwise", misaligned=True))


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
@pytest.mark.parametrize("shape", [(4, 5), (33,), (0, 5), (3, 1), (70, 1000)], ids=str)
def test_normalizer(dtype, norm, shape):
    check(case("Normalizer", [numbers(dtype, *shape)], {"norm": norm}, name=f"{dtype}-{norm}"))


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer_of_zeros_and_extremes(norm):
    rows = np.array([[0, -0.0, 0], [-1, -2, -3], [1e30, 1, 2], [np.inf, 1, -1]], np.float32)
    check(case("Normalizer", [rows], {"norm": norm}, name=norm))


@pytest.mark.parametrize(
    "op,attrs",
    [
        ("Scaler", {"offset": [1.0, 2.0], "scale": [1.0]}),
        ("Scaler", {}),
        ("Normalizer", {"norm": "L3"}),
        ("LinearRegressor", {"coefficients": [1.0, 2.0, 3.0], "targets": 2}),
        ("LinearClassifier", {"coefficients": [1.0, 2.0], "intercepts": [0.0], "post_transform": "ELSE"}),
        ("LinearClassifier", {"coefficients": [1.0, 2.0], "intercepts": [0.0, 1.0], "classlabels_ints": [1]}),
    ],
    ids=str,
)
def test_attributes_that_do_not_fit(op, attrs):
    declined(op, [floats(2, 1)], attrs, domain=ML)


# ---- linear models

TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]


def linear(op, features, targets, transform="NONE", **more):
    # Of probabilities a probit has a value.
    scale = 0.4 / features if transform == "PROBIT" else 1
    coefficients = floats(targets * features, low=-1, high=1) * scale
    attrs = {"coefficients": coefficients.tolist(), "post_transform": transform, **more}
    if op == "LinearRegressor":
        attrs["targets"] = targets
    return attrs


def inputs_of(dtype, shape, transform):
    return [floats(*shape, low=-1, high=1) if transform == "PROBIT" else numbers(dtype, *shape)]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 3, 7])
@pytest.mark.parametrize("shape", [(5, 6), (6,), (0, 6), (300, 6)], ids=str)
def test_linear_regressor(transform, targets, shape):
    intercepts = {"intercepts": [0.5] * targets} if transform == "PROBIT" or targets == 3 else {}
    attrs = linear("LinearRegressor", 6, targets, transform, **intercepts)
    x = inputs_of("float32", shape, transform)
    check(
        case(
            "LinearRegressor",
            x,
            attrs,
            domain_opset=1,
            family="probit" if transform == "PROBIT" else "matmul",
            name=f"{transform}-{targets}",
        )
    )


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [2, 3, 7])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_linear_classifier(transform, targets, dtype):
    labels = {"classlabels_ints": [10 * i - 5 for i in range(targets)], "intercepts": [0.5] * targets}
    attrs = linear("LinearClassifier", 6, targets, transform, **labels)
    for shape in ((5, 6), (6,), (64, 6)):
        x = inputs_of(dtype, shape, transform)
        name = f"{transform}-{targets}-{dtype}"
        more = {"domain_opset": 1, "family": "probit" if transform == "PROBIT" else "matmul", "outputs": 2}
        check(case("LinearClassifier", x, attrs, name=name, **more))


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@only_if(ORT_VERSION >= (1, 32))  # before, the logistic of a single score was left out
def test_linear_classifier_of_one_score(transform):
    labels = [7, -7]
    attrs = linear("LinearClassifier", 4, 1, transform, intercepts=[0.25], classlabels_ints=labels)
    check(case("LinearClassifier", [floats(9, 4)], attrs, domain_opset=1, family="matmul", outputs=2, name=str(labels)))


def test_string_labels_stay_on_the_cpu():
    attrs = {"coefficients": [1.0, 2.0], "intercepts": [0.0, 1.0], "classlabels_strings": ["a", "b"]}
    declined("LinearClassifier", [floats(2, 1)], attrs, domain=ML, outputs=2)


# ---- support vector machines

KERNELS = {
    "LINEAR": [0.0, 0.0, 0.0],
    "POLY": [0.3, 0.5, 3.0],
    "POLY-2": [0.3, 0.5, 2.0],
    "POLY-1.5": [0.05, 3.0, 1.5],
    "RBF": [0.2, 0.0, 0.0],
    "SIGMOID": [0.1, 0.2, 0.0],
}


def kernel(name):
    return {"kernel_type": name.split("-")[0], "kernel_params": KERNELS[name]}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("supports", [0, 1, 37])
def test_svm_regressor(name, supports):
    features = 5
    attrs = {
        **kernel(name),
        "n_supports": supports,
        "coefficients": floats(supports or features, low=-1, high=1).tolist(),
        "support_vectors": floats(supports * features, low=-1, high=1).tolist() if supports else [0.0],
        "rho": [0.3],
    }
    for shape in ((6, features), (features,), (0, features), (100, features)):
        x = floats(*shape, low=-1, high=1)
        for one_class in (0, 1):
            made = case("SVMRegressor", [x], {**attrs, "one_class": one_class}, name=name, family="matmul")
            check(made)


def svm_classes(name, each, transform="NONE", probabilities=False, **more):
    classes, count, features = len(each), sum(each), 4
    pairs = classes * (classes - 1) // 2
    attrs = {
        **kernel(name),
        "vectors_per_class": each,
        "coefficients": floats((classes - 1) * count, low=-1, high=1).tolist(),
        "support_vectors": floats(count * features, low=-1, high=1).tolist(),
        "rho": floats(pairs, low=-0.3, high=0.3).tolist(),
        "classlabels_ints": [3 * i + 1 for i in range(classes)],
        "post_transform": transform,
        **more,
    }
    if probabilities:
        attrs["prob_a"] = floats(pairs, low=-2, high=-1).tolist()
        attrs["prob_b"] = floats(pairs, low=-0.3, high=0.3).tolist()
    return attrs


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("each", [[3, 4], [2, 5, 1], [4, 1, 6, 2, 3]], ids=str)
@pytest.mark.parametrize("probabilities", [False, True])
def test_svm_classifier(name, each, probabilities):
    attrs = svm_classes(name, each, probabilities=probabilities)
    for dtype, shape in (("float32", (30, 4)), ("float64", (4,)), ("int64", (7, 4)), ("int32", (5, 4))):
        x = (
            integers(dtype, *shape, low=-1, high=1)
            if dtype.startswith("int")
            else floats(*shape, low=-1, high=1).astype(dtype)
        )
        tolerance = (1e-3, 1e-3) if probabilities else None  # which iterations end at
        check(
            case(
                "SVMClassifier",
                [x],
                attrs,
                outputs=2,
                family="matmul",
                name=f"{name}-{probabilities}",
                tolerance=tolerance,
            )
        )


SCORES = [([3, 4], False), ([3, 4], True), ([2, 5, 1], False), ([2, 5, 1], True)]


@pytest.mark.parametrize(
    "transform,each,probabilities",
    [
        (t, *scores)
        for t in TRANSFORMS
        for scores in SCORES
        if t != "PROBIT" or scores[1]  # which wants probabilities
        # Before, the logistic of a single score was left out.
        if t != "LOGISTIC" or ORT_VERSION >= (1, 32)
    ],
)
def test_svm_transforms(transform, each, probabilities):
    attrs = svm_classes("RBF", each, transform, probabilities)
    more = {"outputs": 2, "family": "matmul", "tolerance": (1e-3, 1e-3)}
    check(case("SVMClassifier", [floats(12, 4)], attrs, name=transform, **more))


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("positive", [False, True])
def test_svm_without_support_vectors(classes, transform, positive):
    coefficients = np.abs(floats(classes * 4)) if positive else floats(classes * 4)
    attrs = {
        **kernel("LINEAR"),
        "coefficients": coefficients.tolist(),
        "rho": [0.2],
        "classlabels_ints": [5, 6, 7][:classes],
        "post_transform": transform,
    }
    check(
        case(
            "SVMClassifier", [floats(9, 4)], attrs, outputs=2, family="matmul", name=f"{classes}-{transform}-{positive}"
        )
    )


@pytest.mark.parametrize(
    "change",
    [
        {"rho": [0.1]},
        {"coefficients": [1.0, 2.0]},
        {"vectors_per_class": [3, 4]},
        {"vectors_per_class": [3, -4, 2]},
        {"vectors_per_class": [2**62, 2**62, 2**62]},
        {"support_vectors": [1.0] * 13},
        {"kernel_type": "ELSE"},
        {"prob_a": [1.0], "prob_b": [1.0]},
        {"prob_a": [1.0, 1.0, 1.0]},
    ],
    ids=str,
)
def test_svm_attributes_that_do_not_fit(change):
    declined("SVMClassifier", [floats(2, 4)], {**svm_classes("RBF", [2, 1, 1]), **change}, domain=ML, outputs=2)


def test_an_svm_of_too_few_kernel_params_is_declined():
    """The CPU EP, where it may take the node, reads three parameters however many there are."""
    attrs = {**svm_classes("RBF", [2, 1, 1]), "kernel_params": [1.0]}
    inputs = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])
    results = [helper.make_empty_tensor_value_info(n) for n in "yz"]
    graph = helper.make_graph(
        [helper.make_node("SVMClassifier", ["x"], ["y", "z"], domain=ML, **attrs)], "case", [inputs], results
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(ML, 1)], ir_version=10
    )
    with pytest.raises(Exception, match="fallback"):
        make_session(model, config={"session.disable_cpu_ep_fallback": 1})
