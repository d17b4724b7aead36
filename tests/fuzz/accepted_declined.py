"""The same as accepted_onnx.py, of what is left to the CPU EP, which is less strict, and of trees."""

from accepted import DECLINED, REFUSED, SERVED, Accepted
from symptoms import says

ACCEPTED = [
    Accepted("ReverseSequence", DECLINED, "axes that there are not", says("one must be 0, the other 1")),
    Accepted("GlobalLpPool LpPool", DECLINED, "a power that is none", says("p is ")),
    Accepted("LSTM GRU RNN", DECLINED, "a bound below zero", says("clip is ")),
    Accepted("BatchNormalization", DECLINED, "a mode that is neither", says("it must be 0 or 1")),
    Accepted("Celu", DECLINED, "a slope of zero, by which it divides", says("alpha is 0")),
    Accepted("Resize", DECLINED, "cubic interpolation of integers", says("only of floating-point types")),
    Accepted(
        "Conv ConvInteger DeformConv QLinearConv FusedConv MaxPool AveragePool QLinearAveragePool LpPool MaxUnpool",
        DECLINED,
        "steps and pads that there are not",
        says("strides h", "dilations h", "pads h"),
    ),
    Accepted("MaxPool", DECLINED, "a window that no image has", says("kernel_shape holds")),
    Accepted(
        "TreeEnsemble TreeEnsembleRegressor TreeEnsembleClassifier",
        DECLINED,
        "nodes and leaves that there are not, behind which the CPU EP reads",
        says("is not there"),
    ),
    Accepted(
        "TreeEnsembleRegressor",
        SERVED,
        "base values for other targets, which older CPU EPs overlook",
        lambda f: (
            len(f.node.attrs["base_values"]) != f.node.attrs["n_targets"] and says("tree_ensemble_attribute.h")(f)
        ),
    ),
    Accepted(
        "TreeEnsemble",
        DECLINED,
        "an ensemble of no trees, of which the CPU EP looks at no leaves",
        lambda f: f.node.attrs["tree_roots"] == [],
    ),
    Accepted(
        "TreeEnsemble", SERVED, "two ways lead to one node, but not for the CPU EP", says("transformInputOneTree")
    ),
    Accepted(
        "TreeEnsemble TreeEnsembleRegressor TreeEnsembleClassifier",
        SERVED,
        "a vector is a row, of which the CPU EP counts one feature before it looks at the others",
        lambda f: f.node.inputs[0].array.ndim == 1 and says("tree_ensemble_common.h")(f),
    ),
    Accepted(
        "TreeEnsembleRegressor TreeEnsembleClassifier",
        DECLINED,
        "a leaf that weighs nothing",
        says("a leaf has no weight"),
    ),
    Accepted("SVMRegressor", DECLINED, "fewer support vectors than none", says("support vectors")),
    Accepted("FusedConv", DECLINED, "parameters of no activation", says("activation '' takes 0")),
    Accepted("MaxRoiPool", REFUSED, "rows of regions with more dimensions", says("[count,5] of float is wanted")),
    Accepted("MaxRoiPool", DECLINED, "the CPU EP overlooks dimensions beyond the fourth", says("height and width")),
    Accepted(
        "GroupQueryAttention", DECLINED, "more heads of keys than queries", says("must be a multiple of the latter")
    ),
    Accepted(
        "GroupQueryAttention",
        DECLINED,
        "attributes beyond 32 bits, of which the CPU EP leaves some, and one that is neither 0 nor 1",
        says("more than there are kernels for", "in 32 bits", "sliding_window_cache is"),
    ),
    Accepted("ImageScaler", DECLINED, "an empty list of another type", says("attribute 'bias' has an unexpected type")),
    Accepted("RoiAlign", DECLINED, "windows that there are not", says("output_width is", "output_height is")),
]
