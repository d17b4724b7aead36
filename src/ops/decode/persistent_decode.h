// A chain of products and attention as one persistent kernel.
#pragma once
#include <span>

#include "ops/decode/decode_chain.h"

namespace encore::ops {

// What the kernel is told of a link.
struct PersistentLink {
  DecodeLink link;
  bool x_from_memory = true;     // of a product; else it is what the link before made
  bool skip_from_memory = true;  // else the sum of the last product that had one
  bool y_to_memory = true, sum_to_memory = true;
};

// Whether the kernel does it, wherever it stands.
bool suits_persistent_decode(int device, const DecodeLink& link);
// Whether both are done by the same kernel, in one launch.
bool is_one_persistent_decode(const DecodeLink& link, const DecodeLink& other);
inline constexpr size_t kMostDecodeProducts = 128, kMostDecodeAttends = 40;
inline constexpr int64_t kMostNormedDepth = 8192;

// There is an attend among them, and a product comes first.
void run_persistent_decode(Context& context, std::span<const PersistentLink> links);

}  // namespace encore::ops
