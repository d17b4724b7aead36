// A chain of products and attention as one persistent kernel.
#pragma once
#include <span>

#include "ops/decode/decode_chain.h"

namespace encore::ops {

// Whether the kernel does it, wherever it stands.
bool suits_persistent_decode(int device, const DecodeLink& link);
// Whether both are done by the same kernel, in one launch.
bool is_one_persistent_decode(const DecodeLink& link, const DecodeLink& other);
inline constexpr size_t kMostDecodeProducts = 128, kMostDecodeAttends = 40;
inline constexpr int64_t kMostNormedDepth = 8192;

// There is an attend among them, and a product comes first.
void run_persistent_decode(Context& context, std::span<const LinkPutOff> links);

}  // namespace encore::ops
