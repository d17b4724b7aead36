// What becomes of a node whose pictures have their channels last: [N, C, H, W] is [N, H, W, C] then. What is said of
// pictures goes for lines, too: [N, C, L] is [N, L, C].
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "fuse/graph.h"
#include "fuse/own_tensor.h"

namespace encore::fuse {

inline constexpr bool is_picture_rank(size_t rank) { return rank == 3 || rank == 4; }
// Where dimension i of the one layout is in the other, for pictures of this rank.
std::span<const int64_t> to_channels_last(size_t rank);
std::span<const int64_t> to_channels_first(size_t rank);

std::vector<int64_t> permuted(const std::vector<int64_t>& dims, std::span<const int64_t> order);

struct ChannelsLast {
  std::shared_ptr<Variant> node;
  size_t rank = 0;                                    // of all its pictures
  std::vector<bool> inputs;                           // which are read with channels last; outputs all are written so
  std::vector<std::shared_ptr<OwnTensor>> constants;  // by input, where there is another one now
};
// Nothing if the node would not be the same.
std::optional<ChannelsLast> with_channels_last(const std::vector<Value>& values, std::shared_ptr<const NodeInfo> node,
                                               const std::vector<int>& inputs);
// Whether it is an operator for which with_channels_last() has an answer, and which stands where pictures are.
bool goes_between(const std::string& op_type);
// Whether a turned value is worth a thought: of a type and rank that convolutions have.
bool is_picture(const Value& value);
// Whether both layouts are the same in memory.
bool is_single(const Value& value);

}  // namespace encore::fuse
