#include "fuse/row_rules.h"

#include <algorithm>

#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr int kNone = -1;

// Operators that go through a batch sequence by sequence: where each input and output has the batch.
struct BatchSlot {
  int axis;
  bool may_be_one = false;  // it is broadcast
};
struct Batched {
  const char *domain, *op;
  std::vector<BatchSlot> inputs;
  std::vector<int> outputs;
};

const std::vector<Batched>& batched() {
  static const std::vector<Batched> all = {
      {"", "Attention", {{0}, {0}, {0}, {0, true}, {0}, {0}, {0}}, {0, 0, 0, 0}},
      {"com.microsoft", "Attention", {{0}, {kNone}, {kNone}, {0}, {1}, {0, true}, {kNone}}, {0, 1}},
      {"com.microsoft",
       "MultiHeadAttention",
       {{0}, {0}, {0}, {kNone}, {0}, {0, true}, {0}, {0}, {kNone}},
       {0, 0, 0, 0}},
      {"com.microsoft",
       "GroupQueryAttention",
       {{0}, {0}, {0}, {0}, {0}, {0}, {kNone}, {kNone}, {kNone}, {0}, {0, true}, {kNone}},
       {0, 0, 0}},
      {"com.microsoft", "RotaryEmbedding", {{0}, {0}, {kNone}, {kNone}}, {0}},
      {"com.microsoft",
       "EmbedLayerNormalization",
       {{0}, {0}, {kNone}, {kNone}, {kNone}, {kNone}, {kNone}, {0}, {0, true}},
       {0, 0, 0}},
  };
  return all;
}

Rows in_batch(const PaddedStep& step, const std::vector<BatchSlot>& inputs, const std::vector<int>& outputs,
              size_t output) {
  for (size_t i = 0; i < step.inputs(); ++i) {
    if (!step.has(i)) continue;
    const BatchSlot slot = i < inputs.size() ? inputs[i] : BatchSlot{kNone};
    const bool is_apart =
        step.axis(i) == kUnpadded && (slot.axis == kNone || (slot.may_be_one && step.is_one(i, slot.axis)));
    if (!is_apart && (slot.axis == kNone || step.axis(i) != slot.axis))
      step.refuse(step.axis(i) == kUnpadded ? text("has an input ", i, " that need not be as long")
                                            : text("brings together what its input ", i, " has along it"));
  }
  if (output >= outputs.size()) step.refuse("has outputs that are not known");
  return outputs[output];
}

Rows of_batch(const PaddedStep& step, size_t output) {
  const auto is_it = [&](const Batched& one) {
    return one.domain == step.node().domain() && one.op == step.node().op_type();
  };
  const Batched& known = *std::ranges::find_if(batched(), is_it);
  return in_batch(step, known.inputs, known.outputs, output);
}

// ---- along sequences, whose keys come with a mask of those that are added

// Queries at input 0 and keys and values behind it: whether they have the dimension, along their rows.
struct Sides {
  bool of_queries, of_keys;
};
Sides sides(const PaddedStep& step, int rows) {
  if (step.axis(1) != step.axis(2)) step.refuse("has more keys than values");
  for (size_t i : {0, 1})
    if (step.axis(i) != kUnpadded && step.axis(i) != rows) step.refuse("brings together what its input has along it");
  return {step.axis(0) == rows, step.axis(1) == rows};
}

// A mask of bools has another one beside it, and else one is added to the scores.
Rows with_keys_mask(const PaddedStep& step, Rows made, bool of_keys, bool is_boolean = false) {
  const Type type = step.node().input_type(0);
  if (type != Type::f32 && !ops::kHalves.has(type)) step.refuse("sums along it");
  if (of_keys)
    made.masks = {is_boolean ? PaddingMask{PaddingMask::rows, Type::boolean} : PaddingMask{PaddingMask::keys, type}};
  return made;
}

void check_has_none_from(const PaddedStep& step, size_t first, const char* what) {
  for (size_t i = first; i < step.inputs(); ++i)
    if (step.has(i)) step.refuse(text("has ", what));
}

// A mask has queries and keys as its last axes; the queries' may be one.
Rows attention_along(const PaddedStep& step, size_t output) {
  const int rank = step.rank(0);
  const auto [of_queries, of_keys] = sides(step, rank == 4 ? 2 : 1);
  check_has_none_from(step, 4, "a past, or lengths");
  if (output > 0) step.refuse("has outputs besides the first");
  if (step.has(3)) {
    const int last = step.rank(3) - 1, at = step.axis(3);
    const bool has_queries = at >= 0 && at == last - 1, has_keys = at >= 0 && at == last;
    if (at != kUnpadded && !(of_queries && has_queries && !of_keys) && !(of_keys && has_keys))
      step.refuse("has a mask of something else");
    if (of_queries && !has_queries && last > 0 && !step.is_one(3, last - 1))
      step.refuse("has a mask that need not be as long");
    if (of_keys && !has_keys && (!step.is_one(3, last) || step.node().since_version() >= 24))
      step.refuse("has a mask that need not be as long");
  }
  return with_keys_mask(step, of_queries ? rank == 4 ? 2 : 1 : kUnpadded, of_keys,
                        step.has(3) && step.node().input_type(3) == Type::boolean);
}

// com.microsoft's have a mask of integers, of keys or of how many there are.
Rows microsoft_attention(const PaddedStep& step, size_t output, Sides has, size_t mask, size_t bias) {
  check_has_none_from(step, bias, "a bias of scores, or a past");
  if (output > 0) step.refuse("has outputs besides the first");
  const int rank = step.has(mask) ? step.rank(mask) : 0;
  if (rank > 2) step.refuse("has a mask of queries");
  if (rank == 2 && has.of_keys != (step.axis(mask) == 1)) step.refuse("has a mask that need not be as long");
  if (rank < 2 && step.axis(mask) != kUnpadded) step.refuse("has a mask of something else");
  if (has.of_queries != has.of_keys && step.node().get_int("unidirectional", 0) != 0)
    step.refuse("sees more keys before each query");
  return with_keys_mask(step, has.of_queries ? 1 : kUnpadded, has.of_keys);
}

bool has_batch(const PaddedStep& step) { return step.axis(0) == 0 || step.axis(1) == 0 || step.axis(2) == 0; }

Rows attention(const PaddedStep& step, size_t output) {
  return has_batch(step) ? of_batch(step, output) : attention_along(step, output);
}

Rows multi_head_attention(const PaddedStep& step, size_t output) {
  if (has_batch(step)) return of_batch(step, output);
  for (size_t i : {0, 1, 2})
    if (!step.has(i) || step.rank(i) != 3) step.refuse("has queries, keys and values that are not apart");
  if (step.axis(3) != kUnpadded) step.refuse("has it in its bias");
  return microsoft_attention(step, output, sides(step, 1), 4, 5);
}

Rows projected_attention(const PaddedStep& step, size_t output) {
  if (has_batch(step)) return of_batch(step, output);
  if (step.axis(0) != 1 || step.axis(1) != kUnpadded || step.axis(2) != kUnpadded)
    step.refuse("brings together what its input has along it");
  return microsoft_attention(step, output, {true, true}, 3, 4);
}

// X, W, R, B, lengths of sequences, and states.
Rows recurrent(const PaddedStep& step, size_t output) {
  const int at = step.node().get_int("layout", 0) != 0 ? 0 : 1;
  return in_batch(step, {{at}, {kNone}, {kNone}, {kNone}, {0}, {at}, {at}, {kNone}}, {at == 0 ? 0 : 2, at, at}, output);
}

constexpr RowRules kRules[] = {
    {"", "Attention", attention},
    {"com.microsoft", "Attention", projected_attention},
    {"com.microsoft", "MultiHeadAttention", multi_head_attention},
    {"com.microsoft", "EmbedLayerNormalization GroupQueryAttention RotaryEmbedding", of_batch},
    {"", "GRU LSTM RNN", recurrent},
};

}  // namespace

std::span<const RowRules> rules_of_sequences() { return kRules; }

}  // namespace encore::fuse
