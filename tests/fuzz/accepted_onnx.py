"""Where Encore and the CPU EP may differ in operators of ONNX, each with the reason: of one operator, and as narrow as
can be. Attention's are in accepted_attention.py, what is left to the CPU EP in accepted_declined.py, and what differs
in values in accepted_values.py.

The CPU EP is that of onnxruntime 1.30 and newer; older ones have faults of their own, which are not listed.
"""

import numpy as np
from accepted import DECLINED, REFUSED, SERVED, SHAPE, Accepted
from symptoms import (
    contents,
    has,
    has_nan,
    has_vast_direction,
    in_another_session,
    is_empty,
    of_nothing,
    of_nothing_from_the_end,
    says,
    without_axes,
)
from symptoms_of_images import (
    by_a_policy_from_the_end,
    dilated,
    has_fifth_dimension,
    has_negative_size,
    pads_a_whole_window,
)

POOLS = "MaxPool AveragePool QLinearAveragePool"
SUMS = "ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceSumSquare ReduceProd"
REDUCTIONS = f"{SUMS} ReduceMax ReduceMin ReduceLogSum ReduceLogSumExp"
LOSSES = "SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss"

ACCEPTED = [
    Accepted("Unique", SHAPE, "and of how many there are", has_nan),
    Accepted(
        "Scan",
        SERVED,
        "the CPU EP has to know the ranks of what the body makes before it runs; Encore takes what comes",
        says("Subgraph must have the shape"),
    ),
    Accepted("Scan", REFUSED, "of a direction the CPU EP takes the lowest 32 bits", has_vast_direction),
    Accepted(
        "MatMulInteger",
        SERVED,
        "the CPU EP has one zero point for all rows, of no more than one dimension",
        lambda finding: (
            len(finding.node.inputs) > 2
            and finding.node.inputs[2]
            and (contents(finding, 2).size > 1 or contents(finding, 2).ndim > 1)
        ),
    ),
    Accepted(
        "QuantizeLinear DequantizeLinear",
        SERVED,
        "the CPU EP wants no axis where there is one block of all",
        lambda finding: finding.node.attrs.get("block_size") and finding.node.inputs[1].array.size == 1,
    ),
    Accepted(
        "MatMul",
        SERVED,
        "the CPU EP doesn't broadcast over batches of nothing",
        lambda finding: any(value.array.size == 0 for value in finding.node.inputs),
    ),
    Accepted(
        "GroupNormalization", SERVED, "of nothing the function makes no shapes", says("running Reshape node", "Reshape")
    ),
    Accepted(
        "MeanVarianceNormalization",
        SERVED,
        "the CPU EP has the function, which is wrong about types, and wants axes",
        says("Type parameter (T)", "No valid axes", "Input rank was 0"),
    ),
    Accepted(
        "LRN", SERVED, "the CPU EP has odd sizes, positive numbers and images", says("lrn.h", "lrn.cc", "safeint")
    ),
    Accepted("LRN", SERVED, "the CPU EP makes room for a whole window", says("Failed to allocate memory")),
    Accepted(
        LOSSES, REFUSED, "the CPU EP overlooks labels and weights that do not fit", says("labels of", "weights have")
    ),
    Accepted(LOSSES, SERVED, "the CPU EP refuses losses of nothing", of_nothing),
    Accepted(
        "Einsum",
        SERVED,
        "an equation ends at its first zero",
        lambda f: "\0" in f.node.attrs["equation"] and says("The only subscript labels allowed")(f),
    ),
    Accepted(
        "Einsum",
        SERVED,
        "the CPU EP takes no capitals in an output that is not given",
        lambda f: "->" not in f.node.attrs["equation"] and says("The only subscript labels allowed")(f),
    ),
    Accepted(
        "RandomNormal RandomUniform RandomNormalLike RandomUniformLike "
        "HannWindow HammingWindow BlackmanWindow MelWeightMatrix",
        SHAPE,
        "a hostile node has another type",
        says("type "),
    ),
    Accepted("LSTM GRU RNN", SERVED, "the CPU EP computes no doubles", says("does not support double yet")),
    Accepted("LSTM GRU RNN", SERVED, "R says it too, which is enough", says('GetAttr("hidden_size"')),
    Accepted("LSTM GRU RNN", SERVED, "R says it too, if it is zero", says("Input W must have shape {1,0,")),
    Accepted("LSTM GRU RNN", SERVED, "numbers that the CPU EP narrows", says("narrowing_error")),
    Accepted("AffineGrid", SERVED, "the CPU EP refuses a grid of nothing", says("must be positive")),
    Accepted(
        "AffineGrid", SERVED, "the CPU EP counts the size's first dimension", says("length of size should be 4 or 5")
    ),
    Accepted("AffineGrid", SERVED, "a size in any shape", says("must be a 1-D tensor")),
    Accepted("DFT", SERVED, "an empty signal is one of zeros", says("signal dimension must be greater than zero")),
    Accepted("MelWeightMatrix", REFUSED, "no band lies between edges that are turned", says("the edges are")),
    Accepted("MelWeightMatrix", REFUSED, "a negative length", says("dft_length is -")),
    Accepted("MelWeightMatrix", REFUSED, "a rate that no float tells from the next", says("sample_rate is")),
    Accepted("GridSample", SERVED, "the CPU EP refuses to sample nothing", says("must be non-empty for sampling")),
    Accepted("MelWeightMatrix", SERVED, "bands beyond the spectrum are cut", says("window_functions")),
    Accepted("STFT", SERVED, "without a length the whole signal is a frame", says("OutputMLValue")),
    Accepted("ConvInteger", SERVED, "a zero point in any shape", says("conv_integer.cc")),
    Accepted(
        "TopK",
        REFUSED,
        "the CPU EP takes the low bits of k",
        lambda f: says("k is ")(f) and np.max(f.node.attrs["k"] if f.case.opset < 10 else contents(f, 1)) >= 2**31,
    ),
    Accepted("TopK", SERVED, "k in any shape", says("k tensor should be a 1D tensor of size 1")),
    Accepted("TopK", SERVED, "the CPU EP wants one at least, before opset 10", says("k_temp > 0")),
    Accepted("STFT", REFUSED, "the CPU EP takes windows of any rank", lambda f: f.node.inputs[2].array.ndim != 1),
    Accepted(
        "DFT",
        REFUSED,
        "of a length the CPU EP takes the lowest 32 bits",
        lambda f: has(f, 1) and contents(f, 1).max() >= 2**31,
    ),
    Accepted("DFT", REFUSED, "nothing has no transform", says("the transform's length is 0", "length is -")),
    Accepted(
        "HannWindow HammingWindow BlackmanWindow MelWeightMatrix RandomNormal RandomUniform",
        REFUSED,
        "a hostile node has another type",
        says("Unexpected output data type"),
    ),
    Accepted("Resize", SERVED, "the CPU EP interpolates between fewer dimensions", says("ScalesValidation")),
    Accepted("Resize", REFUSED, "the CPU EP overlooks scales beyond the dimensions", says("scales has")),
    Accepted("Resize", REFUSED, "a negative size, which a policy passes over", has_negative_size),
    Accepted("Resize", REFUSED, "the CPU EP does not crop along a third axis", says("cubic interpolation along")),
    Accepted(
        "LayerNormalization",
        REFUSED,
        "the CPU EP overlooks a bias without elements",
        lambda f: says("cannot be broadcast")(f) and has(f, 2) and contents(f, 2).size == 0,
    ),
    Accepted(
        "Concat QLinearConcat",
        REFUSED,
        "the CPU EP overlooks empty operands whose other dimensions don't fit",
        lambda finding: any(value.array.size == 0 for value in finding.node.inputs),
    ),
    Accepted(
        "QLinearConcat",
        DECLINED,
        "nor does it look at the type of what is empty",
        lambda f: any(value.array.size == 0 for value in f.node.inputs) and says("that of the output's zero point")(f),
    ),
    Accepted(POOLS, SERVED, "the same, which it then refuses", says("padding values must be non-negative")),
    Accepted(
        POOLS,
        SERVED,
        "the same, with dilations",
        lambda f: dilated(f) and says("pool_attributes.h")(f),
    ),
    Accepted(POOLS, SHAPE, "the CPU EP pads to the same size as if there were no dilation", dilated),
    Accepted("Conv ConvInteger", REFUSED, "the CPU EP slides kernels of nothing", says("of the kernel is 0")),
    Accepted(
        "Conv ConvTranspose ConvTransposeWithDynamicPads",
        SERVED,
        "exporters write an empty list for what they don't give",
        says("kernel_shape: {} W"),
    ),
    Accepted(
        "RandomUniformLike RandomNormalLike RandomUniform RandomNormal",
        REFUSED,
        "onnxruntime takes the low bits of a dtype for a type, of which a case knows nothing",
        lambda f: says("Unexpected output data type")(f) and abs(f.node.attrs.get("dtype", 0)) >= 2**31,
    ),
    Accepted(
        "MatMulInteger",
        SERVED,
        "zero points of nothing",
        lambda f: says("matmul_integer.cc")(f) and is_empty(f),
    ),
    Accepted(
        "TfIdfVectorizer",
        SERVED,
        "weights that no count is multiplied by",
        lambda f: f.node.attrs.get("mode") == "TF" and says("weights_.size()")(f),
    ),
    Accepted(
        "TfIdfVectorizer",
        DECLINED,
        "n-grams of one column with weights of their own",
        says("are counted in one column"),
    ),
    Accepted("TfIdfVectorizer", REFUSED, "the CPU EP takes a single number", says("has shape []; one or two")),
    Accepted("Dropout", REFUSED, "the CPU EP reads the first of many", says("training_mode must be one bool")),
    Accepted("Multinomial", SERVED, "the CPU EP draws no rows of none", says("batch_size is < 1")),
    Accepted(
        "Conv ConvInteger QLinearConv FusedConv",
        SERVED,
        "the CPU EP has no dilation with auto_pad",
        says("Dilation not supported for AutoPad"),
    ),
    Accepted(f"{POOLS} GlobalMaxPool GlobalAveragePool", SERVED, "the CPU EP refuses to pool nothing", of_nothing),
    Accepted(
        "MaxPool",
        SERVED,
        "a storage order that is neither of the two, which the CPU EP refuses",
        lambda finding: finding.node.attrs.get("storage_order", 0) not in (0, 1),
    ),
    Accepted(
        "ConvTranspose",
        SERVED,
        "the CPU EP wants less output padding",
        says("must be less than max(stride", "may be too large for stride"),
    ),
    Accepted(POOLS, SERVED, "the CPU EP refuses pads as large as the kernel", pads_a_whole_window),
    Accepted(
        "GlobalMaxPool GlobalAveragePool GlobalLpPool",
        SERVED,
        "the CPU EP pools along three dimensions at most",
        says("Unsupported pooling size"),
    ),
    Accepted(POOLS, REFUSED, "the CPU EP rounds up to one window, which has no room", says("the window spans")),
    Accepted("PRelu", REFUSED, "ONNX broadcasts the slope to the input, not both to each other", says("the slope, of")),
    Accepted(
        "ReduceMax ReduceMin", SERVED, "the CPU EP knows no extreme of no booleans", says("empty set with bool type")
    ),
    Accepted(
        f"{REDUCTIONS} ArgMax ArgMin",
        SHAPE,
        "the CPU EP overlooks axes counted from the end if the input is empty",
        of_nothing_from_the_end,
    ),
    Accepted(
        f"{REDUCTIONS} ArgMax ArgMin",
        REFUSED,
        "and those that there are not",
        lambda finding: of_nothing(finding) and says("is outside [")(finding),
    ),
    Accepted(
        "ArgMax ArgMin", REFUSED, "the same, where nothing can be chosen from", says("there is nothing to choose from")
    ),
    Accepted(
        REDUCTIONS,
        REFUSED,
        "a scalar has no axes, of which the CPU EP overlooks some",
        lambda finding: finding.node.inputs[0].array.ndim == 0 and says("is outside [")(finding),
    ),
    Accepted(
        "CumSum CumProd",
        REFUSED,
        "the CPU EP does not look at the axis of an empty input",
        lambda finding: of_nothing(finding) and says("is outside [")(finding),
    ),
    Accepted("NonMaxSuppression", REFUSED, "the CPU EP takes the first of several numbers", says("it must have one")),
    Accepted(
        "TensorScatter",
        SERVED,
        "the CPU EP wants a place for no steps, too",
        lambda finding: finding.node.inputs[1].array.size == 0,
    ),
    Accepted("GatherND ScatterND", REFUSED, "indices of depth 0, which ONNX doesn't have", says("indices of depth 0")),
    Accepted(
        "GatherND",
        REFUSED,
        "the CPU EP overlooks batch dimensions that differ",
        says("batch dimension"),
    ),
    Accepted("Resize", SHAPE, "the CPU EP mixes up axes from the end with a policy", by_a_policy_from_the_end),
    Accepted("Squeeze", SHAPE, "an empty list of axes names none; the CPU EP takes it for absent", without_axes),
    Accepted(
        "SimplifiedLayerNormalization LayerNormalization RMSNormalization",
        SERVED,
        "the CPU EP refuses rows of nothing",
        says("must be at least 1, got 0"),
    ),
    Accepted(
        "GlobalMaxPool GlobalAveragePool GlobalLpPool",
        SERVED,
        "nothing is spatial",
        says("Input dimension cannot be less than 3"),
    ),
    Accepted("InstanceNormalization", SERVED, "the same", says("number of dimensions is less than 3")),
    Accepted("Softmax LogSoftmax Hardmax", SERVED, "all is one row, or each a row of its own", says("IsAxisInRange")),
    Accepted(
        "Softmax LogSoftmax Hardmax", REFUSED, "the CPU EP overflows at an axis far below zero", says("is outside [-")
    ),
    Accepted("Mean Sum Max Min", SERVED, "before opset 8 shapes had to be equal", lambda f: f.case.opset < 8),
    Accepted("Clip", SERVED, "before opset 11 the CPU EP refuses bounds that leave nothing", says("clip.h")),
    Accepted("Gelu", SERVED, "onnxruntime takes the function's body", says("Unsupported approximation_algorithm")),
    Accepted("Gelu", SERVED, "the same, which the CPU EP does in a newer opset", says("No Op registered for Erf")),
    Accepted("Cast", SERVED, "an attribute that means nothing here", says("saturate is only used for cast to float 8")),
    Accepted(
        "Split",
        REFUSED,
        "the CPU EP overlooks a num_outputs of zero or less, or of more than the node has",
        says("num_outputs is 0", "num_outputs is -", "but the node has"),
    ),
    Accepted("Pad", REFUSED, "the CPU EP reflects what has nothing beside its edge", says("beside the edge")),
    Accepted("Pad", SERVED, "the CPU EP pads no scalars, not even by nothing", lambda f: contents(f).ndim == 0),
    Accepted("Pad", SERVED, "the CPU EP wraps no empty tensor, not even by nothing", says("Unexpected mode of 3")),
    Accepted("Pad", SERVED, "axes in any shape", lambda f: len(f.node.inputs) > 3 and contents(f, 3).ndim != 1),
    Accepted("Slice DynamicSlice", SERVED, "of a scalar nothing is cut", says("Cannot slice scalars")),
    Accepted(
        "RMSNormalization",
        SHAPE,
        "the result has the type of scale, as ONNX has it",
        lambda f: f.node.inputs[0].type != f.node.inputs[1].type and says("type ")(f),
    ),
    Accepted(
        "BatchNormalization", REFUSED, "parameters that are no vectors", says("B has shape", "scale has shape", "mean")
    ),
    Accepted("Gather GatherND", SERVED, "nothing is read by an index into nothing", of_nothing),
    Accepted("Tile", SERVED, "the CPU EP makes no more than 4 GB", says("exceeds the supported maximum")),
    Accepted("Mod", SERVED, "nothing is divided", lambda f: is_empty(f) and says("modulo by zero")(f)),
    Accepted(
        "RNN GRU LSTM",
        SERVED,
        "no hidden_size is what the weights say",
        lambda f: f.node.attrs.get("hidden_size") == 0 and says("must have shape {")(f),
    ),
    Accepted(
        "RotaryEmbedding", SERVED, "caches shorter than a sequence", says("Updating cos_cache and sin_cache in Rotary")
    ),
    Accepted("GatherElements", REFUSED, "no indices, but of another rank", lambda f: f.node.inputs[1].array.size == 0),
    Accepted(
        "Split",
        SERVED,
        "the last parts are empty; the CPU EP refuses more parts than there are elements",
        says("Invalid num_outputs value", "exceeds the remaining size of the selected axis"),
    ),
    Accepted(
        "CausalConvWithState", SERVED, "nothing to convolve; the Conv of the function's body refuses it", is_empty
    ),
    Accepted("MeanVarianceNormalization", REFUSED, "axes that there are not", says("is outside [")),
    Accepted(
        "GroupNormalization",
        REFUSED,
        "the function's body broadcasts its parameters, and divides nothing into groups",
        says("bias has shape", "scale has shape", "cannot be divided by num_groups", "it needs batch and channels"),
    ),
    Accepted("CenterCropPad", REFUSED, "a negative size", says("is negative")),
    Accepted("CenterCropPad", SHAPE, "the CPU EP's vast sizes wrap", lambda f: contents(f, 1).max() >= 2**62),
    Accepted(
        "CenterCropPad", SERVED, "nothing, of which the function's body makes much on its way", says("running Pad node")
    ),
    Accepted("CenterCropPad", REFUSED, "the function's body lets one size stand for all", says("are wanted")),
    Accepted("GlobalLpPool", SERVED, "an image of nothing", is_empty),
    Accepted(
        "TensorScatter TopK",
        REFUSED,
        "the CPU EP wraps an axis beyond 32 bits",
        lambda f: abs(f.node.attrs.get("axis", 0)) >= 2**31 and says("is outside [-")(f),
    ),
    Accepted("Unique", SHAPE, "numbers from elsewhere that are no longer alike", in_another_session),
    Accepted(
        "Conv ConvInteger",
        REFUSED,
        "the CPU EP overlooks strides beyond the dimensions",
        says("strides has"),
    ),
    Accepted("RoiAlign", REFUSED, "the CPU EP overlooks a fifth dimension", has_fifth_dimension),
    Accepted("RoiAlign", REFUSED, "an image of nothing", says("has nothing to pool")),
    Accepted("RoiAlign", REFUSED, "more samples a bin than Encore takes", says("(limit 4096)")),
    Accepted(
        "DeformConv",
        SERVED,
        "the CPU EP refuses what is empty",
        says("Invalid deform conv dimensions", "Input channels C must be positive"),
    ),
    Accepted("ImageScaler", SERVED, "the CPU EP wants a bias", says("image_scaler.h")),
    Accepted("ImageScaler", REFUSED, "what is no image", says("it must be [batch, channels, height, width]")),
    Accepted(
        "ScatterElements ScatterND", SERVED, "the CPU EP reduces no booleans", says("bool data type is not supported")
    ),
    Accepted("MaxRoiPool", REFUSED, "an image of nothing", says("has nothing to pool")),
    Accepted("MaxRoiPool", REFUSED, "the CPU EP overlooks dimensions beyond the fourth", says("height and width")),
    Accepted(
        "ReverseSequence",
        SERVED,
        "lengths of sequences of nothing: they are in device memory, where nobody looks at them",
        lambda f: f.node.inputs[0].array.size == 0 and says("Invalid sequence length")(f),
    ),
    Accepted(
        "QLinearMatMul",
        SERVED,
        "of nothing nobody looks at the scales",
        lambda f: is_empty(f) and says("quantize_linear_matmul.cc")(f),
    ),
    Accepted(
        "QLinearConv",
        SERVED,
        "of no images nobody looks at the bias",
        lambda f: is_empty(f) and says("bias shape invalid")(f),
    ),
    Accepted(
        "QuantizeLinear",
        REFUSED,
        "with channels last onnxruntime turns what is quantized in blocks, but not the scale",
        lambda f: "prefer_nhwc" in f.case.options and says("; blocks of ")(f),
    ),
    Accepted(
        "QuantizeLinear",
        SERVED,
        "the CPU EP wants scales of the input's type",
        lambda f: f.node.inputs[0].type != f.node.inputs[1].type and says("IsPrimitiveDat")(f),
    ),
    Accepted("Col2Im", SERVED, "an image's shape in any shape", says("'image_shape' input must be a 1-D")),
    Accepted("DeformConv", REFUSED, "an image of nothing", says("the window spans")),
    Accepted("LpPool", SERVED, "the CPU EP refuses to pool nothing", says("pool_attributes.h")),
    Accepted(
        "CenterCropPad", SERVED, "the function's body takes sizes of int64 only", says("bound to different types")
    ),
    Accepted("TfIdfVectorizer", SERVED, "the CPU EP refuses no rows", says("must have either [C] or [B,C]")),
    Accepted("Transpose", SERVED, "an axis counted from the end is one", says("transpose.h")),
    Accepted("OneHot", SERVED, "a single index has no dimensions", says("indices tensor must have rank >= 1")),
    Accepted(
        "CausalConvWithState",
        REFUSED,
        "the function's body takes a weight of nothing",
        lambda finding: is_empty(finding) and says("the weight has shape")(finding),
    ),
    Accepted(
        "Add Sub Mul Div Pow And Or Xor Equal Greater Less",
        REFUSED,
        "before opset 7 operands had to fit; the reference broadcasts",
        lambda f: f.case.opset < 7 and says("attribute broadcast is not 1")(f),
    ),
    Accepted("Col2Im", SERVED, "no channels", lambda f: is_empty(f) and says("must be a positive multiple")(f)),
    Accepted("TensorScatter", SERVED, "the CPU EP checks more than it has to", says("tensorscatter.cc")),
    Accepted("ParametricSoftplus", SERVED, "the CPU EP wants its attributes", says("element_wise_ranged_transform")),
    Accepted("ScaledTanh", SERVED, "the CPU EP knows no defaults", says("element_wise_ranged_transform.h")),
    Accepted("Crop", SERVED, "borders and scales that mean nothing", says("border", "Attribute scale")),
    Accepted(
        "Clip",
        REFUSED,
        "without a kernel on the CPU the function's body broadcasts bounds",
        says("must be a scalar"),
    ),
    Accepted("Clip", SHAPE, "the same, so that a scalar becomes a row", lambda f: f.node.inputs[0].array.ndim == 0),
    Accepted("LpPool", REFUSED, "a window that is larger than the image", says("the window spans")),
    Accepted("Bernoulli", SHAPE, "a hostile node has another type", says("type ")),
    Accepted("Range", SERVED, "the function's body takes no number in a shape", says("_inlfunc_Range")),
    Accepted("Range", REFUSED, "the function's body divides by a step of zero", says("delta is 0")),
    Accepted("SVMRegressor SVMClassifier", SERVED, "no kernel_params are zeros", says("svmclassifier.h")),
    Accepted(
        "Gemm",
        REFUSED,
        "ONNX has matrices; the CPU EP takes a vector for a row",
        lambda f: contents(f).ndim == 1 and says("A and B must be matrices")(f),
    ),
]
