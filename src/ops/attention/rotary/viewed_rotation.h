// Heads rotated as models spell it out: x * cos + turned(x) * sin, where `turned` puts the second half of a head,
// negated, before the first one, or the second of each two neighbours. They are read where the nodes before would have
// taken them from, perhaps normed on the way, and the result is written where the one behind them would have put it.
// Heads larger than cosines and sines keep what is behind the part that these rotate, and are not normed.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "ops/op.h"
#include "ops/shape/viewed.h"

namespace encore::ops {

// The inputs are x, cos and sin, which are broadcast, and what the norm multiplies by, if there is one.
struct ViewedRotation {
  std::vector<ViewStep> x;       // to [batch, head, row, size], or another order of the first three
  std::vector<int64_t> y_order;  // in which the result's dimensions are written; the last one stays
  std::optional<float> epsilon;  // of a norm by the root of the mean square
  bool interleaved = false;      // pairs are neighbours, else half of a head apart
};
inline constexpr int64_t kLargestRotatedHead = 256;

// Two tensors are rotated by the same cosines and sines, to two results, if there are inputs behind these: another x,
// and what its norm multiplies by. Its attributes begin with this.
inline constexpr const char* kOther = "other_";
inline constexpr const char* kInterleaved = "interleaved";  // of both

Attributes attributes_of(const ViewedRotation& how);
std::unique_ptr<Op> make_viewed_rotation(const NodeInfo& node);

}  // namespace encore::ops
