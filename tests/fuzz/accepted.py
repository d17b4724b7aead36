"""Where Encore and the CPU EP may differ, each with the reason: of one operator, and as narrow as can be.

The CPU EP is that of onnxruntime 1.30 and newer; older ones have faults of their own, which are not listed.
"""

import dataclasses
from collections.abc import Callable

from symptoms import (
    adds_in_any_order,
    adds_up_to_nothing,
    almost_singular,
    as_of_floats,
    at_a_tie,
    at_the_ends_of_the_type,
    beyond_doubles,
    beyond_when_quantized,
    by_a_policy_from_the_end,
    by_one,
    contents,
    crops_what_keeps_its_size,
    dilated,
    drops,
    few_differ,
    goes_far_below,
    hands_nan_on,
    hardly_varies,
    has_flat_channels,
    has_nan,
    has_no_range,
    has_no_scale,
    has_no_terms,
    has_vast_attribute,
    in_another_session,
    is_drawn,
    is_empty,
    is_turned,
    log_of_little,
    loses_nothing,
    mask_is_short,
    minus_zero_as_boolean,
    near_a_kink,
    near_a_sigmoid,
    nearly,
    no_slope,
    no_slope_of_zero,
    not_finite,
    of_nothing,
    of_nothing_from_the_end,
    only_infinity_differs,
    only_nan_is_wanted,
    orders_nan,
    out_of_range,
    overflows,
    overflows_on_the_way,
    pads_a_whole_window,
    peaks_beside,
    power_overflows,
    reduces_nan,
    rounded_on_the_way,
    says,
    shrunk_in_float,
    steps_over,
    without_axes,
    writes_twice,
)

REFUSED, SERVED, VALUES, SHAPE = "refused", "served", "values", "shape"


@dataclasses.dataclass
class Accepted:
    operators: str
    kind: str
    reason: str
    when: Callable = lambda finding: True


POOLS = "MaxPool AveragePool"
SUMS = "ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceSumSquare ReduceProd"
REDUCTIONS = f"{SUMS} ReduceMax ReduceMin ReduceLogSum ReduceLogSumExp"
GELUS = "Gelu FastGelu BiasGelu QuickGelu"
LOSSES = "SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss"

ACCEPTED = [
    Accepted(
        f"HardSwish Erf {GELUS}",
        VALUES,
        "the CPU EP computes doubles with constants or polynomials of a float's precision",
        nearly,
    ),
    Accepted(
        "MaxPool GlobalMaxPool ReduceMax ReduceMin ArgMax ArgMin LogSoftmax Softmax",
        VALUES,
        "of NaN and infinity the CPU EP makes what depends on their places; Encore hands NaN on",
        hands_nan_on,
    ),
    Accepted("TopK", VALUES, "the CPU EP's order has no place for NaN; Encore's has it above all numbers", orders_nan),
    Accepted("Unique", VALUES, "the same, where NaN is one value", has_nan),
    Accepted("Unique", SHAPE, "and of how many there are", has_nan),
    Accepted(
        "ScatterND ScatterElements",
        VALUES,
        "the CPU EP hands NaN on if it comes last; Encore in any case",
        reduces_nan,
    ),
    Accepted(
        "OneHot",
        VALUES,
        "ONNX casts indices to integers; the CPU EP compares floats as they are",
        lambda finding: contents(finding).dtype.kind == "f" and (contents(finding) % 1 != 0).any(),
    ),
    Accepted(
        "DecoderMaskedMultiHeadAttention",
        VALUES,
        "the CPU EP's keys of the past are as they are elsewhere; Encore's are in chunks, as GPUs have them",
    ),
    Accepted("DecoderMaskedMultiHeadAttention", REFUSED, "which wants heads of whole chunks, and beams that are there"),
    Accepted(
        "Attention QAttention",
        SERVED,
        "the CPU EP looks at lengths first; Encore takes those below zero for none, and those above for all",
        says("mask_index value"),
    ),
    Accepted("Attention", SERVED, "Encore has biases where there is a past", says("both past and attention_bias")),
    Accepted(
        "MultiHeadAttention",
        SERVED,
        "Encore has masks in each form that Attention has",
        says("'key_padding_mask' shape is not expected"),
    ),
    Accepted("MultiHeadAttention", SERVED, "Encore has values of any size", says("'key' and 'value' shall have same")),
    Accepted("Upsample Resize", VALUES, "integers between two pixels are rounded from floats", by_one),
    Accepted("Cast CastLike", VALUES, "ONNX leaves open what a float beyond the integers becomes", out_of_range),
    Accepted(
        "Cast",
        VALUES,
        "the CPU EP leaves unwritten what it casts with a `saturate` that there is not",
        lambda finding: finding.node.attrs.get("saturate", 1) not in (0, 1),
    ),
    Accepted(
        "Mod",
        VALUES,
        "the CPU EP's fmod of integers is that of doubles, which hold no more than 53 bits",
        beyond_doubles,
    ),
    Accepted(
        "Loop Scan",
        VALUES,
        "halves are rounded in each step, and the reference is computed in floats",
        rounded_on_the_way,
    ),
    Accepted("Cast CastLike", VALUES, "the CPU EP takes float8's -0 for true", minus_zero_as_boolean),
    Accepted("QuantizeLinear", VALUES, "what is far below zero the CPU EP makes the largest", beyond_when_quantized),
    Accepted(
        "MatMulInteger ConvInteger MatMul FusedMatMul",
        VALUES,
        "sums of nothing are left as they were by the CPU EP",
        adds_up_to_nothing,
    ),
    Accepted("QLinearMatMul QLinearConv", VALUES, "the same", is_empty),
    Accepted(
        "MatMulInteger",
        SERVED,
        "the CPU EP has one zero point for all rows",
        lambda finding: len(finding.node.inputs) > 2 and finding.node.inputs[2] and contents(finding, 2).size > 1,
    ),
    Accepted(
        "QuantizeLinear DequantizeLinear",
        SERVED,
        "the CPU EP wants no axis where there is one block of all",
        lambda finding: finding.node.attrs.get("block_size") and finding.node.inputs[1].array.size == 1,
    ),
    Accepted(SUMS, VALUES, "integers beyond their type wrap; the CPU EP's stop at the last one or average", overflows),
    Accepted("LeakyRelu", VALUES, "the CPU EP multiplies what is positive too, by a slope that is no number", no_slope),
    Accepted("PRelu", VALUES, "the CPU EP multiplies zero too, by a slope that is no number", no_slope_of_zero),
    Accepted("Elu Selu", VALUES, "the CPU EP subtracts 1 from what may be very near 1", near_a_kink),
    Accepted("QuickGelu", VALUES, "the CPU EP's sigmoid is a polynomial", near_a_sigmoid),
    Accepted("Clip", VALUES, "where no bound is given, the type's largest number is one", at_the_ends_of_the_type),
    Accepted(
        "Gemm Conv",
        VALUES,
        "sums of nothing are left as they were by the CPU EP",
        has_no_terms,
    ),
    Accepted(
        "LayerNormalization SkipLayerNormalization",
        VALUES,
        "of constant rows nothing but their mean's rounding is left",
        hardly_varies,
    ),
    Accepted(
        "MatMul",
        SERVED,
        "the CPU EP doesn't broadcast over batches of nothing",
        lambda finding: any(value.array.size == 0 for value in finding.node.inputs),
    ),
    Accepted("GroupNormalization", VALUES, "the CPU EP has the function, which computes doubles in float", nearly),
    Accepted(
        "GroupNormalization", SERVED, "of nothing the function makes no shapes", says("running Reshape node", "Reshape")
    ),
    Accepted(
        "MeanVarianceNormalization",
        SERVED,
        "the CPU EP has the function, which is wrong about types, and wants axes",
        says("Type parameter (T)", "No valid axes"),
    ),
    Accepted(
        "LRN", SERVED, "the CPU EP has odd sizes, positive numbers and images", says("lrn.h", "lrn.cc", "safeint")
    ),
    Accepted("ReduceLogSum", VALUES, "near zero a logarithm enlarges the rounding of its sum", log_of_little),
    Accepted("Shrink", VALUES, "the CPU EP computes in float", shrunk_in_float),
    Accepted("Hardmax", VALUES, "the CPU EP passes over NaN, which ONNX's ArgMax chooses", not_finite),
    Accepted(LOSSES, VALUES, "the mean of nothing", loses_nothing),
    Accepted(
        LOSSES, REFUSED, "the CPU EP overlooks labels and weights that do not fit", says("labels of", "weights have")
    ),
    Accepted(LOSSES, SERVED, "the CPU EP refuses losses of nothing", of_nothing),
    Accepted("SoftmaxCrossEntropyLoss", VALUES, "of what is no number, or infinite, no loss is known", not_finite),
    Accepted("Celu", VALUES, "a slope that is no number is one of numbers below zero alone", no_slope),
    Accepted("ParametricSoftplus", SERVED, "the CPU EP wants its attributes", says("element_wise_ranged_transform")),
    Accepted(
        "ParametricSoftplus",
        VALUES,
        "the CPU EP loses the digits of what is near zero",
        lambda finding: abs(finding.node.attrs.get("alpha", 1)) > 1e3,
    ),
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
    Accepted("Pow", VALUES, "a power beyond the integers is open, and the CPU EP's is a double's", power_overflows),
    Accepted("Dropout", VALUES, "what is dropped in training is random", drops),
    Accepted(
        "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial",
        VALUES,
        "what is drawn is random",
        is_drawn,
    ),
    Accepted(
        "RandomNormal RandomUniform RandomNormalLike RandomUniformLike HannWindow HammingWindow BlackmanWindow",
        SHAPE,
        "a hostile node has another type",
        says("type "),
    ),
    Accepted("LSTM GRU RNN", SERVED, "the CPU EP computes no doubles", says("does not support double yet")),
    Accepted("LSTM GRU RNN", SERVED, "R says it too, which is enough", says('GetAttr("hidden_size"')),
    Accepted(
        "MatMulBlockQuantizedFp8Weight MatMulBlockQuantizedFp4Weight GemmFloat8",
        SERVED,
        "the CPU EP has no kernel, and the casts that onnxruntime puts there instead make no model",
        says("InsertedPrecisionFreeCast", "Type 'tensor(float)' of input parameter", "NOT_IMPLEMENTED"),
    ),
    Accepted("Bernoulli", SERVED, "of bfloat16 there is no reference", says("No corresponding Numpy type")),
    Accepted("LSTM GRU RNN", SERVED, "numbers that the CPU EP narrows", says("narrowing_error")),
    Accepted(
        "LSTM GRU RNN", VALUES, "the CPU EP's Softplus of what is far below zero is infinite, not zero", goes_far_below
    ),
    Accepted(
        "LSTM GRU RNN",
        VALUES,
        "of no steps the CPU EP leaves the last states unwritten",
        lambda f: of_nothing(f) and not f.got.any(),
    ),
    Accepted("AffineGrid", SERVED, "the CPU EP refuses a grid of nothing", says("must be positive")),
    Accepted(
        "TensorScatter",
        REFUSED,
        "the CPU EP overflows at an axis far below zero",
        lambda f: f.node.attrs.get("axis", 0) < -(2**31) and says("is outside [-")(f),
    ),
    Accepted("DFT", SERVED, "an empty signal is one of zeros", says("signal dimension must be greater than zero")),
    Accepted("MelWeightMatrix", REFUSED, "no band lies between edges that are turned", says("the edges are")),
    Accepted("MelWeightMatrix", REFUSED, "a negative length", says("dft_length is -")),
    Accepted("MelWeightMatrix", VALUES, "an edge is on a bin but for a float's rounding", peaks_beside),
    Accepted("GridSample", SERVED, "the CPU EP refuses to sample nothing", says("must be non-empty for sampling")),
    Accepted("MelWeightMatrix", SERVED, "bands beyond the spectrum are cut", says("window_functions")),
    Accepted("STFT", SERVED, "without a length the whole signal is a frame", says("OutputMLValue")),
    Accepted("STFT", REFUSED, "the CPU EP takes windows of any rank", says("the window has shape")),
    Accepted("DFT", REFUSED, "nothing has no transform", says("the transform's length is 0", "length is -")),
    Accepted(
        "HannWindow HammingWindow BlackmanWindow MelWeightMatrix RandomNormal RandomUniform",
        REFUSED,
        "a hostile node has another type",
        says("Unexpected output data type"),
    ),
    Accepted(
        "HannWindow HammingWindow BlackmanWindow", VALUES, "what is 1 but for a float's rounding, as an integer", by_one
    ),
    Accepted("Bernoulli", VALUES, "the function's body, which the CPU EP takes, has 1 where ONNX has 0", is_turned),
    Accepted("ReduceProd", VALUES, "a product that passes infinity stays there or not", overflows_on_the_way),
    Accepted("Resize", VALUES, "the CPU EP doesn't crop along an axis that keeps its size", crops_what_keeps_its_size),
    Accepted("Resize", VALUES, "the nearest of two pixels that are as near depends on rounding", at_a_tie),
    Accepted("Resize", SERVED, "the CPU EP interpolates between fewer dimensions", says("ScalesValidation")),
    Accepted(
        "Concat",
        REFUSED,
        "the CPU EP overlooks empty operands whose other dimensions don't fit",
        lambda finding: any(value.array.size == 0 for value in finding.node.inputs),
    ),
    Accepted(POOLS, VALUES, "the CPU EP pads by less than nothing where windows leave gaps", steps_over),
    Accepted(POOLS, SERVED, "the same, which it then refuses", says("padding values must be non-negative")),
    Accepted(
        POOLS,
        SERVED,
        "the same, with dilations",
        lambda f: dilated(f) and says("pool_attributes.h")(f),
    ),
    Accepted(POOLS, SHAPE, "the CPU EP pads to the same size as if there were no dilation", dilated),
    Accepted(POOLS, VALUES, "the CPU EP pads to the same size as if there were no dilation", dilated),
    Accepted("Conv", REFUSED, "the CPU EP slides kernels of nothing", says("of the kernel is 0")),
    Accepted("Conv", SERVED, "exporters write an empty list for what they don't give", says("kernel_shape: {} W")),
    Accepted(
        "Conv ConvInteger QLinearConv",
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
        "GlobalMaxPool GlobalAveragePool",
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
        "SkipLayerNormalization SkipSimplifiedLayerNormalization",
        SERVED,
        "the CPU EP refuses a negative epsilon, and rows of nothing",
        says("epsilon_", "hidden_size must be positive"),
    ),
    Accepted(
        "NGramHashMapping VarlenNGramHashMapping",
        SERVED,
        "of a vocabulary of no size hashes are 0, and offsets may be any numbers, but for the CPU EP",
        says("vocab_sizes must be positive", "must fit in the id type", "head_offsets must be non-negative"),
    ),
    Accepted(
        "BranchwiseRMSNorm HyperConnectionPreMix HyperConnectionPostMix GatedAdd",
        SERVED,
        "the CPU EP refuses rows of nothing",
        says("branch and hidden dimensions must be positive", "last dimension must be positive"),
    ),
    Accepted(
        "SimplifiedLayerNormalization LayerNormalization RMSNormalization",
        SERVED,
        "the CPU EP refuses rows of nothing",
        says("must be at least 1, got 0"),
    ),
    Accepted(
        "GlobalMaxPool GlobalAveragePool", SERVED, "nothing is spatial", says("Input dimension cannot be less than 3")
    ),
    Accepted("Softmax LogSoftmax Hardmax", SERVED, "all is one row, or each a row of its own", says("IsAxisInRange")),
    Accepted(
        "Softmax LogSoftmax Hardmax", REFUSED, "the CPU EP overflows at an axis far below zero", says("is outside [-")
    ),
    Accepted("Mean Sum Max Min", SERVED, "before opset 8 shapes had to be equal", lambda f: f.case.opset < 8),
    Accepted("Clip", SERVED, "before opset 11 the CPU EP refuses bounds that leave nothing", says("clip.h")),
    Accepted("Gelu", SERVED, "onnxruntime takes the function's body", says("Unsupported approximation_algorithm")),
    Accepted("Gelu", SERVED, "the same, which the CPU EP does in a newer opset", says("No Op registered for Erf")),
    Accepted("Cast", SERVED, "an attribute that means nothing here", says("saturate is only used for cast to float 8")),
    Accepted("FastGelu", REFUSED, "of doubles the CPU EP makes an Add, which broadcasts", says("bias has shape")),
    Accepted(
        "SkipSimplifiedLayerNormalization SkipLayerNormalization",
        REFUSED,
        "the CPU EP does not look at how many rows skip has",
        says("skip ["),
    ),
    Accepted(
        "Split",
        REFUSED,
        "the CPU EP overlooks a num_outputs of zero or less, or of more than the node has",
        says("num_outputs is 0", "num_outputs is -", "but the node has"),
    ),
    Accepted("Pad", SERVED, "the CPU EP pads no scalars, not even by nothing", lambda f: contents(f).ndim == 0),
    Accepted("Pad", SERVED, "the CPU EP wraps no empty tensor, not even by nothing", says("Unexpected mode of 3")),
    Accepted("Slice", SERVED, "of a scalar nothing is cut", says("Cannot slice scalars")),
    Accepted(
        "RMSNormalization",
        SHAPE,
        "the result has the type of scale, as ONNX has it",
        lambda f: f.node.inputs[0].type != f.node.inputs[1].type and says("type ")(f),
    ),
    Accepted(
        "BatchNormalization", REFUSED, "parameters that are no vectors", says("B has shape", "scale has shape", "mean")
    ),
    Accepted("UnfoldTensor", SERVED, "the CPU EP has but some of the types", says("Unsupported data type")),
    Accepted("UnfoldTensor", SERVED, "a step beyond the end is no matter", says("Integer overflow")),
    Accepted("LinearAttention CausalConvWithState", SERVED, "the CPU EP keeps one state alone", says("state_w")),
    Accepted("FusedMatMul", SERVED, "products of nothing broadcast, too", says("right operand cannot broadcast")),
    Accepted("Softplus", VALUES, "the CPU EP's exponential overflows", only_infinity_differs),
    Accepted("Gather GatherND", SERVED, "nothing is read by an index into nothing", of_nothing),
    Accepted(
        "Attention RotaryEmbedding",
        SERVED,
        "onnxruntime takes the function's body",
        says("scale must be greater than 0", "rotary_embedding_dim_attr >= 0"),
    ),
    Accepted("Attention", SERVED, "the CPU EP has masks of all queries and keys, and no smaller ones", mask_is_short),
    Accepted("Attention", SERVED, "the CPU EP refuses sequences of nothing", says("attention_parameters.h")),
    Accepted("GemmaRotaryEmbedding", SERVED, "the CPU EP has no kernel", says("INVALID_GRAPH")),
    Accepted("MRotaryEmbedding", VALUES, "beyond the type's numbers the order of operations shows", has_vast_attribute),
    Accepted("GroupQueryAttention", SERVED, "many batches behind a past", says("batch_size must be 1")),
    Accepted(
        "GroupQueryAttention",
        VALUES,
        "rows that a window has no positions for are anything",
        lambda f: (
            f.node.attrs.get("sliding_window_cache", 0) == 1
            and (f.node.inputs[5].array + 1 < f.node.inputs[3].array.shape[2]).any()
        ),
    ),
    Accepted(
        "GroupQueryAttention",
        REFUSED,
        "a prompt that is longer than its rows",
        lambda f: (f.node.inputs[5].array >= f.node.inputs[6].array).any(),
    ),
    Accepted(
        "GroupQueryAttention",
        VALUES,
        "rows that pad a prompt are anything",
        lambda f: (f.node.inputs[5].array < f.node.inputs[0].array.shape[1] - 1).any(),
    ),
    Accepted(
        "Attention GroupQueryAttention",
        VALUES,
        "of a row whose scores are all -inf the CPU EP makes NaN, and ONNX zeros",
        lambda f: abs(f.node.attrs.get("scale", 0)) > 1e30,
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
        "LinearAttention",
        SERVED,
        "no tokens or batches; the function's body has a Reshape and a Scan that refuse them",
        says("reshape_helper.h", "Subgraph must have the shape"),
    ),
    Accepted(
        "CausalConvWithState", SERVED, "nothing to convolve; the Conv of the function's body refuses it", is_empty
    ),
    Accepted(
        "MeanVarianceNormalization",
        VALUES,
        "the CPU EP takes a root of what is left of a difference of squares, which may be below zero",
        only_nan_is_wanted,
    ),
    Accepted("MeanVarianceNormalization", REFUSED, "axes that there are not", says("is outside [")),
    Accepted("InstanceNormalization", VALUES, "of flat channels the CPU EP has its rounding left", has_flat_channels),
    Accepted("GroupNormalization", VALUES, "the function's body computes in float", as_of_floats),
    Accepted(
        "GroupNormalization",
        REFUSED,
        "the function's body broadcasts its parameters, and divides nothing into groups",
        says("bias has shape", "scale has shape", "cannot be divided by num_groups"),
    ),
    Accepted(
        "LinearAttention", REFUSED, "the function's body broadcasts a state", says("past_state has another shape")
    ),
    Accepted("Attention", REFUSED, "heads that do not divide", says("cannot be divided into")),
    Accepted("CenterCropPad", REFUSED, "a negative size", says("is negative")),
    Accepted("CenterCropPad", REFUSED, "the function's body lets one size stand for all", says("are wanted")),
    Accepted("FusedConv", SERVED, "no activation is none", says("GetFusedActivationAttr")),
    Accepted(
        "FastGelu", SERVED, "a single number is none to the CPU EP", says("expected to have 1 or more dimensions")
    ),
    Accepted("GlobalLpPool", SERVED, "an image of nothing", is_empty),
    Accepted("TensorScatter", REFUSED, "the CPU EP wraps an axis beyond 32 bits", says("775807 is outside")),
    Accepted("Inverse", VALUES, "what is almost singular keeps few digits", almost_singular),
    Accepted("Unique", SHAPE, "numbers from elsewhere that are no longer alike", in_another_session),
    Accepted("Conv", REFUSED, "the CPU EP overlooks strides beyond the dimensions", says("strides has")),
    Accepted("RoiAlign", REFUSED, "an image of nothing", says("has nothing to pool")),
    Accepted("DeformConv", SERVED, "the CPU EP refuses what is empty", says("Invalid deform conv dimensions")),
    Accepted("ScaledTanh", SERVED, "the CPU EP knows no defaults", says("element_wise_ranged_transform.h")),
    Accepted("ScatterND ScatterElements Scatter", VALUES, "which of two updates stays is open", writes_twice),
    Accepted("ScatterND ScatterElements", VALUES, "sums in another order", adds_in_any_order),
    Accepted(
        "ScatterElements ScatterND", SERVED, "the CPU EP reduces no booleans", says("bool data type is not supported")
    ),
    Accepted("DynamicQuantizeLinear", VALUES, "numbers that are none have no range", not_finite),
    Accepted(
        "DynamicQuantizeLinear", VALUES, "a range so small that its scale is 0 has no place for zero", has_no_range
    ),
    Accepted("QuantizeLinear", VALUES, "scales or values that are no numbers", has_no_scale),
    Accepted("Selu", VALUES, "the CPU EP takes the newer defaults before opset 6", lambda f: f.case.opset < 6),
    Accepted("Shrink Celu", VALUES, "beyond the type's numbers the order of operations shows", has_vast_attribute),
    Accepted("MaxRoiPool", VALUES, "the CPU EP passes NaN over, and starts at the least finite number", not_finite),
    Accepted("MaxRoiPool", REFUSED, "an image of nothing", says("has nothing to pool")),
    Accepted("DeformConv", REFUSED, "an image of nothing", says("the window spans")),
    Accepted("DeformConv", VALUES, "a tap on the very edge is inside or not", few_differ),
    Accepted("LpPool", SERVED, "the CPU EP refuses to pool nothing", says("pool_attributes.h")),
    Accepted(
        "CenterCropPad", SERVED, "the function's body takes sizes of int64 only", says("bound to different types")
    ),
    Accepted("Crop", SERVED, "borders and scales that mean nothing", says("border", "Attribute scale")),
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
    Accepted(
        "QMoE",
        VALUES,
        "the CPU EP normalizes weights in any case, and takes no weights as packed for CUDA",
        lambda f: f.node.attrs.get("normalize_routing_weights") != 1 or f.node.attrs.get("weights_prepacked") != 0,
    ),
    Accepted("QMoE", REFUSED, "the same", says("cannot be packed for a GPU")),
    Accepted("MoE QMoE", SERVED, "the CPU EP has factors side by side only", says("only supports interleaved SwiGLU")),
]

# Of any operator: a node that Encore declines, for a reason that it tells, and that the CPU EP has no kernel for.
ON_NEITHER = "Encore declines the node, and the CPU EP has no kernel of its type"


# Of any model: an output that onnxruntime has made a constant is on the host, and no replay copies from there.
FOLDED = "onnxruntime folded an output to a constant on the host, and a graph copies nothing from there"


def reason_for(finding):
    """Why this difference is accepted, or None."""
    if finding.kind == REFUSED and says("is made on the host")(finding) and says("captured")(finding):
        return FOLDED
    if finding.kind == REFUSED and says("Provider type for", "Failed to find kernel for")(finding):
        return ON_NEITHER
    # Of two sessions that differ nothing is known but that they do: something before the node may have been drawn.
    shown = finding.kind != VALUES or finding.got is not None
    if not shown:
        earlier = [dataclasses.replace(finding, node=node) for node in finding.case.nodes if "Random" in node.op]
        if any(is_drawn(one) for one in earlier):
            return "what is drawn is random"
    for entry in ACCEPTED:
        if not shown and entry.when not in (is_drawn, is_turned, drops):
            continue
        if finding.node.op in entry.operators.split() and finding.kind == entry.kind and entry.when(finding):
            return entry.reason
    return None
