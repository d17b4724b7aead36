#include "ops/bound_alone.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "ops/registry.h"

namespace encore::ops {
namespace {

// Of a row that goes into a cache with room: kernels have the lengths, and the angles are for as many positions.
bool is_total_length(const NodeInfo& node, int input) {
  constexpr int kPast = 3, kTotal = 6, kAngles = 7, kPositions = 9, kScores = 10;
  if (node.domain() != kMicrosoft || node.op_type() != "GroupQueryAttention" || input != kTotal) return false;
  const auto query = node.input_dims(0), past = node.input_dims(kPast), angles = node.input_dims(kAngles);
  if (!query || query->size() != 3 || (*query)[1] != 1 || !node.has_input(kPast) || node.has_input(kScores) ||
      (node.output_count() > 3 && node.has_output(3)))
    return false;
  if (!node.has_input(kAngles) || node.has_input(kPositions)) return true;
  return past && past->size() == 4 && (*past)[2] >= 0 && angles && !angles->empty() && (*angles)[0] >= (*past)[2];
}

// Recurrent layers take as many steps as there are then, in which sequences that have ended stay as they are.
bool is_length(const NodeInfo& node, int input) {
  constexpr std::array<std::string_view, 4> kRecurrent{"DynamicQuantizeLSTM", "GRU", "LSTM", "RNN"};
  constexpr int kLengths = 4;
  return input == kLengths && std::ranges::count(kRecurrent, node.op_type()) > 0;
}

}  // namespace

bool is_bound_alone(const NodeInfo& node, int input) { return is_total_length(node, input) || is_length(node, input); }

}  // namespace encore::ops
