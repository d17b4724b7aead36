// Numbers from the host's memory for kernels to read.
#pragma once
#include <cstdint>
#include <span>

#include "ops/op.h"

namespace encore::ops {

// The same numbers in device memory. They are launches' arguments, so that a graph has them; so let there be few.
const int32_t* on_device(Context& context, std::span<const int32_t> values);
void store(device::StreamRef stream, std::span<const int32_t> values, int32_t* to);
// Of a tensor in host memory; there is room for whole words.
void store(device::StreamRef stream, const Tensor& on_host, void* to);
inline size_t whole_words(size_t bytes) { return (bytes + sizeof(int32_t) - 1) / sizeof(int32_t) * sizeof(int32_t); }

}  // namespace encore::ops
