// What rewrites a plan: passes, one after the other. The same ones find groups of nodes in a graph and compile them.
#pragma once
#include <span>

#include "fuse/match.h"

namespace encore::fuse {

struct Pass {
  const char* name;
  const char* what;                    // the steps are that it joins; null if it joins none
  void (*at)(Match& match, int step);  // rewrites what has this step, if it is what the pass looks for
  bool is_for_groups = true;           // else for regions alone
  void (*whole)(Match& match) = {};    // instead, if what it looks for is seen in all steps together
};

std::span<const Pass> passes();  // in their order
// Whether there was anything to do.
bool run(const Pass& pass, Plan& plan);

void rewrite(Plan& plan, const Watch& watch);

// Convolutions with what follows each become one step: a sum with a tensor of the same shape, and an activation. In
// regions of convolutions, whose pictures have their channels last.
void join_convolution(Match& match, int conv);
inline constexpr Pass kConvolutions{"convolutions", nullptr, join_convolution};

bool is_quantized_product(const NodeInfo& info);
// MatMul by both constants of a gate, whose columns alternate, and the gate.
bool is_gated_product(const NodeInfo& info);
// A product by a constant and the norm of its rows.
bool is_product_norm(const NodeInfo& info);
// Whether it is Conv, whose channels may be last.
bool is_conv(const Match& match, int step);
// Whether a convolution, which has one group, takes a single position for each that it makes, and pads none.
bool has_one_tap(const Match& match, const Step& conv);
// The value that the step adds to this one, which must surely have the same shape; -1 if it does nothing like it.
int residual_of(const Match& match, int sum, int v);
// Whether it is a norm of rows, along the last dimension, by constants of the same type, or float ones of halves.
bool is_norm_of_rows(const Match& match, int step);
// Whether it draws numbers: others each time.
bool draws(const NodeInfo& info);
// Whether the step leaves elements in their order.
bool only_shapes(const Match& match, int s);
// Whether only steps that may be part of programs read the value, or parts of it: then it need not be there.
bool is_read_in_place(const Match& match, int v);
// Whether elementwise programs compute what the step does.
bool is_for_programs(const Match& match, int step);
// Whether one makes the value for one reader alone: then that step takes along what the value is added to.
bool is_elementwise_for(const Match& match, int v);
// An activation that a kernel does at its end, as FusedConv names it; its last step makes the result.
struct Ending {
  std::vector<int> steps;
  std::string activation;
  std::vector<float> params;
  int move = -1;  // the last one of the steps ahead of these that only move elements, if there are any
};
// The one that alone reads the value, if that is known.
std::optional<Ending> ending_of(const Match& match, int v);
// That, or a Gelu of any kind without a bias, which alone reads the value, perhaps behind steps that only move it.
std::optional<Ending> ending_behind(const Match& match, int v);
// What the step makes if it ends so.
const std::vector<int>& ended_outputs(const Match& match, int step, const Ending& end);
// Puts `made`, which makes that, in the place of the step. What only moved its elements does so afterwards.
void end_with(Match& match, int step, Step made, Ending end);

// ---- the passes. None joins steps which a path leaves and comes back to.

// Attention as exporters spell it out: a product of queries and keys, a scale, a mask, a softmax, perhaps zeros for
// rows that see nothing, and a product with values. It becomes one step, which makes no matrix of scores, with what
// only moves or scales queries, keys and values on their way there, and the transposition behind it. In halves, which
// have tensor cores for it, rows of which all is masked become zeros. In regions floats are taken, too: their scores
// are made as before. What shapes are asked for is known and not read.
void join_attention(Match& match, int softmax);
// Heads of attention are made larger, by columns of zeros in what makes them, up to a size that kernels are fast at.
void pad_heads(Match& match, int attention);
// The gates of language models, x * sigmoid(x) * y: Sigmoid, Mul and Mul, or Swish and Mul, become one step, which
// reads x and y once; SwiGLU is one. If these are products of the same rows by constants, and nobody else reads them,
// they come along: as one product by both constants, whose columns alternate, and which gates what it makes. So does
// one product of which they are the halves. Parts of something else are left to a program, which reads them in place.
void join_gate(Match& match, int first);
// Other gates, such as gelu(x) * y: products of the same rows by constants, of which an elementwise step reads an
// activation of one and the other, are one product, and programs read its parts in place.
void join_gated_products(Match& match, int product);
// The norms of language models, whose rows are multiplied by constants, quantized or not: norm and product become one
// step, which norms few rows on the way. The product may be a gate's.
void join_norm(Match& match, int product);
// Products by constants, quantized or not, to whose rows a constant one is added: one step, which adds it on the way.
void join_bias(Match& match, int product);
// Pictures with their channels last, each channel multiplied by a gate that two products and their activations make of
// all channels' means: convolutions of one position, or products of rows. It becomes one step, squeeze and excite, if
// the weights are few, with a batch normalisation by constants and an activation behind.
void join_squeeze_excite(Match& match, int mean);
// A softmax of scores to which a mask is added; with what puts zeros where all is masked.
void join_softmax(Match& match, int softmax);
// Gelu as exporters spell it out, x * (1 + erf(x / sqrt(2))) / 2 in five nodes.
void join_gelu(Match& match, int erf);
// x / sqrt(mean(x^2) + epsilon) times a constant row: the norm of language models, in six to nine nodes. In halves what
// is between is in float.
void join_spelled_norm(Match& match, int mean);
// Such a norm of what is left of rows without their mean: LayerNormalization.
void centre_norm(Match& match, int norm);
// A norm by scale and bias in float of what has been halves, and becomes such again, reads and writes halves.
void join_norm_casts(Match& match, int norm);
// So does a reduction in float of what has been halves, and becomes such again.
void join_reduction_casts(Match& match, int reduction);
// x / max(length of x, a number) along rows: queries and keys of attention by cosines, in four to six nodes.
void join_spelled_l2_norm(Match& match, int quotient);
// Whether scores go to a softmax, perhaps behind masks.
bool goes_to_a_softmax(const Match& match, int v);
// Whether the step is a Softmax along the last axis.
bool is_softmax_of_rows(const Match& match, int s);
// Products of heads of batch and heads in one dimension, around what sees these apart: all have four dimensions.
void part_heads(Match& match, int step);
// A constant that chooses between scores and a number which hides them, and leaves some in each row, is a mask that is
// added; or nothing, where it leaves all.
void add_chosen_mask(Match& match, int where);
// Masks that are added one after the other, such as ALiBi's and a causal one, are added together, once for all
// attention by the same ones.
void join_masks(Match& match, int sum);
// Scores of attention that each head multiplies by a number of its own: the queries are, which are fewer, so that
// attention finds its products.
void scale_heads(Match& match, int product);
// Heads over their lengths are read where they come from, and multiplied by a constant for each on the way.
void view_l2_norm(Match& match, int norm);
// Rotary embeddings, x * cos + turned(x) * sin, where the second half of x, negated, is put before the first one. It
// becomes one step, with what only moves heads on their way there and a norm of each. In halves what is between may be
// in float. The step writes heads where x had them before they were turned, so that it is attention which takes that
// along. Where only the first part of each head is rotated, and the rest put behind it, the step keeps that, as it does
// the first rows if only those behind are rotated. Pairs may be neighbours, too.
void join_rotation(Match& match, int sum);
// A norm of groups of channels as Reshape, InstanceNormalization, Reshape, or of each channel as the second of these
// alone, and what each channel is multiplied by and added to. What is between is in float.
void join_group_norm(Match& match, int norm);
// Convolutions of one picture that are summed up, with the picture itself, and with what multiplies each channel by a
// constant or adds one: a convolution, if its windows need to be no wider. The weights are summed up before they are
// rounded once to their type, if no more is lost than that loses anyway.
void join_convolution_sum(Match& match, int conv);
// Rows of tables that ids pick, perhaps multiplied by a number, what is added to them, and the norm of the sum.
void join_embeddings(Match& match, int norm);
// Residual sums and the norms that read them: one step each, which gives the sum too.
void join_residual(Match& match, int norm);

// ---- what onnxruntime does for its own providers, after it has asked what a region takes

// Gelu by tanh, x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2.
void join_tanh_gelu(Match& match, int tanh);
// x * sigmoid(alpha * x), or without alpha.
void join_quick_gelu(Match& match, int sigmoid);
// A Gelu and the constant row that is added before.
void join_bias_gelu(Match& match, int gelu);
// The products that make queries, keys and values of the same rows are one, of whose columns attention reads each where
// it is. GroupQueryAttention takes them packed.
void join_projections(Match& match, int attention);
// A Split into queries, keys and values goes, if GroupQueryAttention alone reads them: it takes what was split.
void pack_heads(Match& match, int attention);
// Two rotations by the same cosines and sines, as of queries and keys, neither of which waits for the other.
void join_rotation_pair(Match& match, int first);
// LSTMs, GRUs and RNNs on top of one another, in one direction, of which nobody else reads what is between.
void stack_recurrences(Match& match, int above);
// Of attention by the same mask the first step makes what libraries read of it, and the others read that.
void share_masks(Match& match);
// Depthwise and pointwise convolutions and the activation behind, Gelus among them, also where steps between only move
// elements.
void end_convolution(Match& match, int conv);
// Norms of groups of channels, which are last, and the activation behind.
void end_group_norm(Match& match, int norm);
// The columns of a product, each multiplied by a constant: the product has that in its weights and its bias, if their
// type holds it as well.
void fold_layer_scale(Match& match, int product);
// Products whose factors are transposed, or scaled, and those that are scaled themselves.
void join_product(Match& match, int product);
// Products by constants and the residual sums that alone read them.
void join_product_sum(Match& match, int product);
// Products by constants, of halves, and the activations that alone read them, unless these go with elementwise steps.
void join_product_activation(Match& match, int product);
// Products by constants and the norms that alone read their rows, with a residual sum between or none.
void join_product_norm(Match& match, int product);
// Such a norm without a mean and the norm that alone reads its rows, with a residual sum between.
void join_two_norms(Match& match, int norm);
// Norms, of products or not, and the residual sums that alone read their rows.
void join_norm_sum(Match& match, int norm);

// ---- what makes no difference to results, to the bit

// Where each sequence's last key is, as language models count it: a mask's sums less one, as int32.
void join_last_keys(Match& match, int cast);
// A Gemm between Reshapes, of which the first one puts rows of more dimensions into two and the second one takes them
// out again, is MatMul and Add of the rows as they are, as onnxruntime has found it. A Reshape stays that cuts columns.
void open_flat_gemm(Match& match, int gemm);
// Of neighbours the second one, negated, before the first one, as rotary embeddings of pairs have it: pairs are rolled,
// with signs.
void turn_pairs(Match& match, int concat);
// What is cut in two along an axis and put together the other way round is read from elsewhere on, with signs if a part
// is negated, as rotary embeddings have it.
void join_roll(Match& match, int concat);
// Every other row and column, from each first one on, side by side in the channels: they are one copy.
void join_patches(Match& match, int concat);
// A Transpose that puts few channels last for a convolution alone goes with that.
void take_planes(Match& match, int turn);
// A batch normalisation of a product's rows is one with the product.
void fold_batch_norm(Match& match, int norm);
// One that only a convolution reads is one with the convolution.
void fold_batch_norm_ahead(Match& match, int norm);
// A batch normalisation by constants that only an elementwise step reads, which makes as much, is a product and a sum,
// which go with it.
void open_batch_norm(Match& match, int norm);
// A Clip that elementwise steps are around is Max and Min.
void open_clip(Match& match, int clip);
// What adds or takes away dimensions of one behind an elementwise step does so before it, so that it has the shape of
// those behind.
void move_unit_dims(Match& match, int reshape);
// What a number selects along an axis for elementwise steps alone is a part of a Reshape.
void cut_selections(Match& match);
// Elementwise steps of one shape are one kernel (ops/elementwise/program.h), as many as fit in one.
void join_elementwise(Match& match);
// What is cut out of pieces that were put side by side, where these begin and end, is those pieces.
void take_pieces(Match& match, int cut);
// Pictures that are resized and put side by side along the last axis: each is made where it belongs.
void join_resizes(Match& match, int concat);
// Of what is put side by side, what is a part of something wider is read there.
void join_cuts(Match& match, int concat);
// Convolutions with their channels last read some of a wider picture's where they are.
void read_part(Match& match, int conv);

// Pictures have their channels last where convolutions gain by it, or fewer are turned then than before.
void turn_pictures(Match& match);
// All have, unless some had before: of a region that was made so that they may.
void turn_all_pictures(Match& match);
// The channels of a picture that are cut apart begin where packs do.
void align_parts(Match& match, int split);
// Transpositions, Reshapes, rolls and their kin, one behind the other, are one copy, or none.
void join_movements(Match& match);

// Einsum is MatMul where its equation says no more.
void make_product_of_einsum(Match& match, int einsum);
// Single numbers that are computed from constants, or from dimensions which the model tells, are constants; so are
// integers that are computed from these dimensions, such as where a part begins.
void know_numbers(Match& match);
// What a Reshape computes its dimensions with, if all are numbers, or there before, or all but one are numbers, is a
// constant: nobody asks for shapes then, and values have no readers for these alone.
void know_target(Match& match, int reshape);
// What is computed from constants alone, as each run would do it, is one, if it doesn't take much more memory.
void fold_constants(Match& match);
// A Cast to a wider type and back, or to one that is asked where it is infinite or NaN.
void drop_casts(Match& match, int second);
// Bools of whose numbers the sum or the largest tells whether one is true: their largest.
void ask_for_any(Match& match, int last);
// Whether any element of all is infinite, or not a number.
void ask_for_any_odd(Match& match, int reduction);
// Rows of halves that are clipped, by bounds which a bool chooses, and normed. The step asks by itself whether any of
// them is infinite, if it is that.
void join_clipped_norm(Match& match, int norm);
// Rows that are turned before a product are turned behind it, or the other way round, where they are moved anyway.
void turn_rows_elsewhere(Match& match, int step);
// What is turned behind a step by a constant, while its other operand is turned likewise for others, is made of that.
void turn_operand_ahead(Match& match, int turn);
// Two transpositions are one, or none.
void join_transposes(Match& match, int second);
// What is turned for its shape alone is not.
void read_shape_before_turn(Match& match, int shape);
// A Gather of all that there is in its order gives it another shape.
void open_gather(Match& match, int gather);
// Who reads what Identity makes, a Pad by nothing, a Slice of all, a Reshape to the same dimensions, or a Resize to the
// same size, can read what it is made of.
void drop_identity(Match& match, int identity);
// MatMulInteger with what makes floats of its sums.
void join_integer_product(Match& match, int product);
// HardSwish and HardSigmoid that are spelled out.
void join_hard_swish(Match& match, int sum);
// QuantizeLinear and DequantizeLinear of what DequantizeLinear made by the same numbers, and others moved about.
void drop_requantization(Match& match, int step);
// What is repeated for readers that broadcast anyway, and bools of which others that are constant leave one side as it
// is: they read that.
void drop_repetition(Match& match, int step);
// Likewise numbers that are multiplied by one, or to which nothing is added. Norms may have such rows, and are found by
// them.
void drop_neutral(Match& match, int step);
// Operands of elementwise steps that are constants of the same type, shape and contents are one.
void share_constants(Match& match);
// What is computed twice from the same values.
void share_result(Match& match, int second);
// What nobody reads.
void drop_unread(Match& match, int step);

}  // namespace encore::fuse
