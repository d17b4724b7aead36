#include "fuse/row_rules.h"

#include <algorithm>

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

// X, W, R, B, lengths of sequences, and states.
Rows recurrent(const PaddedStep& step, size_t output) {
  const int at = step.node().get_int("layout", 0) != 0 ? 0 : 1;
  return in_batch(step, {{at}, {kNone}, {kNone}, {kNone}, {0}, {at}, {at}, {kNone}}, {at == 0 ? 0 : 2, at, at}, output);
}

constexpr RowRules kRules[] = {
    {"", "Attention", of_batch},
    {"com.microsoft", "Attention EmbedLayerNormalization GroupQueryAttention MultiHeadAttention RotaryEmbedding",
     of_batch},
    {"", "GRU LSTM RNN", recurrent},
};

}  // namespace

std::span<const RowRules> rules_of_sequences() { return kRules; }

}  // namespace encore::fuse
