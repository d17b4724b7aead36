"""The same as accepted_onnx.py, of attention, linear attention too."""

from accepted import DECLINED, REFUSED, SERVED, SHAPE, Accepted
from symptoms import contents, has, is_empty, mask_is_short, mask_is_wide, says
from symptoms_of_attention import do_not_fit, has_other_lengths

ACCEPTED = [
    Accepted(
        "Attention QAttention",
        SERVED,
        "the CPU EP looks at lengths first; Encore takes those below zero for none, and those above for all",
        says("mask_index value"),
    ),
    Accepted(
        "Attention", SERVED, "the CPU EP has no masks of four dimensions", says("4D mask in attention cpu kernel")
    ),
    Accepted("Attention", SERVED, "Encore has biases where there is a past", says("both past and attention_bias")),
    Accepted(
        "Attention",
        REFUSED,
        "masks and pasts of nothing, which the CPU EP doesn't look at, and masks of more than there is",
        lambda f: (
            says("does not broadcast to", "don't fit K")(f)
            and (any(value is not None and value.array.size == 0 for value in f.node.inputs[3:]) or mask_is_wide(f))
        ),
    ),
    Accepted(
        "Attention",
        SERVED,
        "values of nothing, which a Reshape of the function's body refuses",
        lambda f: says("running Reshape node")(f) and is_empty(f),
    ),
    Accepted(
        "Attention",
        REFUSED,
        "the CPU EP takes lengths below zero, and beyond all keys",
        lambda f: says("is outside [")(f) and len(f.node.inputs) > 6,
    ),
    Accepted(
        "Attention",
        REFUSED,
        "the CPU EP doesn't look whether queries, keys and values fit together",
        do_not_fit,
    ),
    Accepted(
        "Attention",
        REFUSED,
        "nor whether they have one rank",
        lambda f: says("must all have rank")(f) and len({contents(f, i).ndim for i in range(3)}) > 1,
    ),
    Accepted("Attention", REFUSED, "the CPU EP overlooks lengths of batches that there are not", has_other_lengths),
    Accepted("Attention", DECLINED, "a scale that is none", says("it must be above zero and finite")),
    Accepted("Attention", DECLINED, "a cap below zero, or none", says("it must be finite and not negative")),
    Accepted("LinearAttention", DECLINED, "longer keys than Encore has room for", says("256 is the most")),
    Accepted(
        "GroupQueryAttention",
        SHAPE,
        "caches of a type of their own, which present ones have, too; a hostile node has others",
        lambda f: f.output > 0 and has(f, 2 + f.output) and f.got.dtype == contents(f, 2 + f.output).dtype,
    ),
    Accepted(
        "LinearAttention",
        SHAPE,
        "a present state has its past's type; a hostile node has another",
        lambda f: f.output == 1 and has(f, 3) and f.got.dtype == contents(f, 3).dtype,
    ),
    Accepted("LinearAttention CausalConvWithState", SERVED, "the CPU EP keeps one state alone", says("state_w")),
    Accepted(
        "Attention RotaryEmbedding",
        SERVED,
        "onnxruntime takes the function's body",
        says("scale must be greater than 0", "rotary_embedding_dim_attr >= 0"),
    ),
    Accepted(
        "RotaryEmbedding",
        REFUSED,
        "of an odd number of elements the function's body makes no pairs",
        lambda f: f.node.attrs.get("rotary_embedding_dim", 0) % 2 == 1 and says("_inlfunc_RotaryEmbedding")(f),
    ),
    Accepted(
        "RotaryEmbedding MRotaryEmbedding",
        DECLINED,
        "an odd number of elements makes no pairs",
        says("it must be even and not negative"),
    ),
    Accepted(
        "Attention",
        SERVED,
        "the function's body pads no masks without dimensions",
        lambda f: f.node.inputs[3].array.ndim == 0 and says("running Pad node")(f),
    ),
    Accepted("Attention", SERVED, "the CPU EP has masks of all queries and keys, and no smaller ones", mask_is_short),
    Accepted("Attention", SERVED, "the CPU EP refuses sequences of nothing", says("attention_parameters.h")),
    Accepted(
        "LinearAttention",
        REFUSED,
        "the present's type is the past's, of which a case knows nothing if it was changed",
        says("Unexpected output data type"),
    ),
    Accepted(
        "LinearAttention",
        SERVED,
        "no tokens or batches; the function's body has a Reshape and a Scan that refuse them",
        says("reshape_helper.h", "Subgraph must have the shape"),
    ),
    Accepted(
        "LinearAttention CausalConvWithState",
        REFUSED,
        "the function's body broadcasts a state, keys and beta",
        says("past_state has another shape", "key has shape", "beta has another shape"),
    ),
    Accepted("Attention", REFUSED, "heads that do not divide", says("cannot be divided into")),
    Accepted("Attention", REFUSED, "more dimensions than the scores have", says("it can have four dimensions at most")),
    Accepted(
        "LinearAttention",
        SERVED,
        "a decay that the rule has no use for is not looked at",
        lambda f: "gated" not in f.node.attrs.get("update_rule", "gated") and says("decay last dim must be")(f),
    ),
]
