"""The same as accepted_onnx.py, of the operators that only com.microsoft has, and of ai.onnx.ml's."""

import numpy as np
from accepted import DECLINED, REFUSED, SERVED, VALUES, Accepted
from symptoms import beside_largest, of_nothing, says
from symptoms_of_attention import (
    believes_lengths,
    does_not_normalize,
    has_keys_in_chunks,
    has_no_positions,
    hides_keys,
    pads_a_prompt,
    passes_its_total,
    rounds_what_it_turns,
    sees_no_key,
)
from symptoms_of_images import skips_by_a_policy
from symptoms_of_values import (
    almost_singular,
    by_one,
    cancels,
    has_vast_attribute,
    near_a_sigmoid,
    scales_are_far_apart,
    transposes_beside_vector,
)

ACCEPTED = [
    Accepted(
        "DecoderMaskedMultiHeadAttention",
        VALUES,
        "the CPU EP's keys of the past are as they are elsewhere; Encore's are in chunks, as GPUs have them",
        has_keys_in_chunks,
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
        sees_no_key,
    ),
    Accepted("MultiHeadAttention", SERVED, "Encore has values of any size", says("'key' and 'value' shall have same")),
    Accepted(
        "QLinearAdd", VALUES, "a tie falls as the CPU EP's processor fuses sums and products, or does not", by_one
    ),
    Accepted("QLinearSigmoid", VALUES, "the CPU EP's sigmoid is a polynomial", by_one),
    Accepted("QLinearSoftmax QLinearAveragePool", VALUES, "sums of floats in another order", by_one),
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
    Accepted("LinearAttention", SERVED, "the CPU EP refuses values of nothing", says("value hidden size must be")),
    Accepted(
        "LinearAttention GatedDeltaNet",
        VALUES,
        "a state that grows a thousandfold keeps no digits of what is small",
        lambda f: np.nanmax(np.abs(f.wanted.astype(np.float64))) > 1e4 and beside_largest(0.01)(f),
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
        "RotaryEmbedding MRotaryEmbedding",
        SERVED,
        "the CPU EP counts no heads beyond 2^31",
        says("num_heads_attr >= 0"),
    ),
    Accepted(
        "QAttention",
        VALUES,
        "lengths hide keys; the CPU EP takes 10,000 from their scores, and larger scores are seen yet",
        hides_keys,
    ),
    Accepted("QAttention", SERVED, "scales of rows in any shape", says("must be a scalar or a 1D tensor")),
    Accepted("MRotaryEmbedding", VALUES, "beyond the type's numbers the order of operations shows", has_vast_attribute),
    Accepted("GroupQueryAttention", SERVED, "many batches behind a past", says("batch_size must be 1")),
    Accepted("GroupQueryAttention", VALUES, "rows that a window has no positions for are anything", has_no_positions),
    Accepted(
        "GroupQueryAttention",
        VALUES,
        "of lengths beyond their total the CPU EP believes the total, which makes one row a prompt",
        believes_lengths,
    ),
    Accepted("GroupQueryAttention", REFUSED, "a prompt that is longer than its rows", passes_its_total),
    Accepted("GroupQueryAttention", VALUES, "rows that pad a prompt are anything", pads_a_prompt),
    Accepted(
        "GroupQueryAttention",
        VALUES,
        "keys are turned before they are rounded to the cache's type; of large scores that shows",
        rounds_what_it_turns,
    ),
    Accepted("GroupQueryAttention", DECLINED, "a cap or scale that is none", says("they must be finite")),
    Accepted(
        "EmbedLayerNormalization",
        DECLINED,
        "segments without their embedding, which the CPU EP overlooks",
        says("segment_ids and segment_embedding must be given together"),
    ),
    Accepted("MatMulBnb4", SERVED, "blocks of any power of two", says("only block size 16, 32")),
    Accepted("FusedConv", SERVED, "no activation is none", says("GetFusedActivationAttr")),
    Accepted("FusedConv", SERVED, "no kernel_shape is the weights'", says("kernel_shape: {}")),
    Accepted(
        "FastGelu", SERVED, "a single number is none to the CPU EP", says("expected to have 1 or more dimensions")
    ),
    Accepted("Inverse", VALUES, "what is almost singular keeps few digits", almost_singular),
    Accepted("QMoE", VALUES, "the CPU EP normalizes weights in any case", does_not_normalize),
    Accepted("QMoE", REFUSED, "the same", says("cannot be packed for a GPU")),
    Accepted("MoE QMoE", SERVED, "the CPU EP has factors side by side only", says("only supports interleaved SwiGLU")),
]
