"""The same as accepted_onnx.py, of the operators that only com.microsoft has, and of ai.onnx.ml's."""

import numpy as np
from accepted import REFUSED, SERVED, VALUES, Accepted
from symptoms import (
    a_step_apart,
    almost_singular,
    cancels,
    contents,
    few_differ,
    has_vast_attribute,
    lengths_hide_keys,
    lengths_pass_their_total,
    near_a_sigmoid,
    of_nothing,
    says,
    scales_are_far_apart,
    transposes_beside_vector,
)
from symptoms_of_images import skips_by_a_policy

# What their rounding may come to, of the largest result.
ROUNDED = {"float16": 0.01, "bfloat16": 0.08}

ACCEPTED = [
    Accepted(
        "DecoderMaskedMultiHeadAttention",
        VALUES,
        "the CPU EP's keys of the past are as they are elsewhere; Encore's are in chunks, as GPUs have them",
    ),
    Accepted("DecoderMaskedMultiHeadAttention", REFUSED, "which wants heads of whole chunks, and beams that are there"),
    Accepted(
        "MultiHeadAttention",
        SERVED,
        "Encore has masks in each form that Attention has",
        says("'key_padding_mask' shape is not expected"),
    ),
    Accepted(
        "MultiHeadAttention",
        VALUES,
        "where no key is to be seen the CPU EP takes 10,000 from all scores, which rounds them",
        lambda f: few_differ(f) and len(f.node.inputs) > 4 and f.node.inputs[4] and (contents(f, 4) <= 0).all(),
    ),
    Accepted("MultiHeadAttention", SERVED, "Encore has values of any size", says("'key' and 'value' shall have same")),
    Accepted(
        "QLinearAdd",
        VALUES,
        "a tie falls as the CPU EP's processor fuses sums and products, or does not",
        a_step_apart,
    ),
    Accepted("QLinearSigmoid", VALUES, "the CPU EP's sigmoid is a polynomial", a_step_apart),
    Accepted("QLinearSoftmax QLinearAveragePool", VALUES, "sums of floats in another order", a_step_apart),
    Accepted(
        "QLinearAdd QLinearMul QLinearAveragePool",
        VALUES,
        "what is beyond 32 bits x86's conversion makes the least number",
        scales_are_far_apart,
    ),
    Accepted("QGemm DynamicQuantizeLSTM", VALUES, "of nothing the CPU EP leaves its outputs unwritten", of_nothing),
    Accepted(
        "QLinearAveragePool",
        VALUES,
        "by a policy the CPU EP takes pads away where steps are longer than windows",
        skips_by_a_policy,
    ),
    Accepted("QLinearSoftmax", SERVED, "the CPU EP refuses a scale below zero", says("must be positive")),
    Accepted("QLinearSoftmax", REFUSED, "the CPU EP has an axis of 32 bits", says("is outside")),
    Accepted(
        "QLinearGlobalAveragePool QLinearAveragePool",
        SERVED,
        "the CPU EP refuses scales that are far apart",
        says("out of computation range"),
    ),
    Accepted("DynamicQuantizeLSTM", SERVED, "R tells the hidden size, too", says("hidden_size")),
    Accepted("ArrayFeatureExtractor", SERVED, "negative indices count from the end", says("must be in [0")),
    Accepted(
        "LinearClassifier LinearRegressor",
        REFUSED,
        "the CPU EP reads coefficients behind the last, or not all",
        says("the coefficients are of"),
    ),
    Accepted("QuickGelu", VALUES, "the CPU EP's sigmoid is a polynomial", near_a_sigmoid),
    Accepted(
        "MatMulBlockQuantizedFp8Weight MatMulBlockQuantizedFp4Weight GemmFloat8 RouterGateUpProj",
        SERVED,
        "the CPU EP has no kernel, and the casts that onnxruntime puts there instead make no model",
        says("InsertedPrecisionFreeCast", "Type 'tensor(float)' of input parameter", "NOT_IMPLEMENTED"),
    ),
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
        "BranchwiseRMSNorm HyperConnectionPreMix HyperConnectionPostMix GatedAdd QMoE",
        SERVED,
        "the CPU EP refuses rows of nothing",
        says(
            "branch and hidden dimensions must be positive",
            "dimension must be positive",
            "width must be positive",
            "hidden_size must be positive",
        ),
    ),
    Accepted("SkipLayerNormalization", SERVED, "a skip of as many rows", says("skip is expected to have same shape")),
    Accepted("FastGelu", REFUSED, "of doubles the CPU EP makes an Add, which broadcasts", says("bias has shape")),
    Accepted(
        "SkipSimplifiedLayerNormalization SkipLayerNormalization",
        REFUSED,
        "the CPU EP does not look at how many rows skip has",
        says("skip ["),
    ),
    Accepted("UnfoldTensor", SERVED, "the CPU EP has but some of the types", says("Unsupported data type")),
    Accepted("UnfoldTensor", SERVED, "a step beyond the end is no matter", says("Integer overflow")),
    Accepted("FusedMatMul", SERVED, "products of nothing broadcast, too", says("right operand cannot broadcast")),
    Accepted(
        "FusedMatMul TransposeMatMul",
        VALUES,
        "the CPU EP does not transpose a matrix that a vector follows",
        transposes_beside_vector,
    ),
    Accepted("GatedDeltaNet", SERVED, "zeros stand for dt_bias", says("requires a_log and dt_bias")),
    Accepted(
        "VarlenCausalConvWithState",
        SERVED,
        "ends that no token falls between are no matter",
        says("cumulative_sequence_length must be non-decreasing"),
    ),
    Accepted("LinearAttention", SERVED, "the CPU EP refuses values of nothing", says("value hidden size must be")),
    Accepted(
        "LinearAttention GatedDeltaNet",
        VALUES,
        "a state that grows a thousandfold keeps no digits of what is small",
        lambda f: np.abs(f.wanted.astype(np.float64)).max() > 1e4 and few_differ(f),
    ),
    Accepted(
        "TransposeMatMul",
        VALUES,
        "what is left of terms that cancel out is rounding for the most part",
        cancels,
    ),
    Accepted("ConvTransposeWithDynamicPads", SERVED, "no pads are none", says("Dynamic pads tensor is required")),
    Accepted("ConvTransposeWithDynamicPads", SERVED, "pads in any shape", says("Dynamic pads tensor must be 1-D")),
    Accepted(
        "MatMulNBits",
        SERVED,
        "scales, zero points and biases in any shape that has as many",
        says("is expected to have shape"),
    ),
    Accepted(
        "GroupQueryAttention",
        REFUSED,
        "of a query and a past of two types the CPU EP takes the wrong one's kernel",
        says("Unexpected output data type"),
    ),
    Accepted(
        "GemmaRotaryEmbedding QOrderedLongformerAttention", SERVED, "the CPU EP has no kernel", says("INVALID_GRAPH")
    ),
    Accepted(
        "RotaryEmbedding MRotaryEmbedding",
        SERVED,
        "the CPU EP counts no heads beyond 2^31",
        says("num_heads_attr >= 0"),
    ),
    Accepted(
        "QAttention",
        VALUES,
        "lengths hide keys; the CPU EP takes 10,000 from their scores, and larger scores are seen yet",
        lengths_hide_keys,
    ),
    Accepted("QAttention", SERVED, "scales of rows in any shape", says("must be a scalar or a 1D tensor")),
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
        VALUES,
        "of lengths beyond their total the CPU EP believes the total, which makes one row a prompt",
        lengths_pass_their_total,
    ),
    Accepted(
        "GroupQueryAttention",
        REFUSED,
        "a prompt that is longer than its rows",
        lengths_pass_their_total,
    ),
    Accepted(
        "GroupQueryAttention",
        VALUES,
        "rows that pad a prompt are anything",
        lambda f: (f.node.inputs[5].array < f.node.inputs[0].array.shape[1] - 1).any(),
    ),
    Accepted(
        "GroupQueryAttention",
        VALUES,
        "keys are turned before they are rounded to the cache's type; of large scores that shows",
        lambda f: f.node.inputs[0].type in ROUNDED and few_differ(f, ROUNDED[f.node.inputs[0].type]),
    ),
    Accepted("MatMulBnb4", SERVED, "blocks of any power of two", says("only block size 16, 32")),
    Accepted("FusedConv", SERVED, "no activation is none", says("GetFusedActivationAttr")),
    Accepted("FusedConv", SERVED, "no kernel_shape is the weights'", says("kernel_shape: {}")),
    Accepted(
        "FastGelu", SERVED, "a single number is none to the CPU EP", says("expected to have 1 or more dimensions")
    ),
    Accepted("Inverse", VALUES, "what is almost singular keeps few digits", almost_singular),
    Accepted(
        "QMoE",
        VALUES,
        "the CPU EP normalizes weights in any case, and takes no weights as packed for CUDA",
        lambda f: f.node.attrs.get("normalize_routing_weights") != 1 or f.node.attrs.get("weights_prepacked") != 0,
    ),
    Accepted("QMoE", REFUSED, "the same", says("cannot be packed for a GPU")),
    Accepted("MoE QMoE", SERVED, "the CPU EP has factors side by side only", says("only supports interleaved SwiGLU")),
]
