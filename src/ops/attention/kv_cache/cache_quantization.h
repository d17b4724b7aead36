// Quantized KV caches: codes, which a scale makes keys and values. Whole numbers of eight bits, or of four with a zero
// point of 8, two in a byte, the earlier one in the low bits; or floats of eight bits.
#pragma once
#include <cmath>
#include <cstdint>

#include "device/half.h"
#include "ops/choice.h"

namespace encore::ops {

enum class Quantized { none, by_tensor, by_channel };  // how many scales there are

inline Quantized read_quantized(const NodeInfo& node, const char* attribute) {
  return read_choice<Quantized>(
      node, attribute, "NONE",
      {{"NONE", Quantized::none}, {"PER_TENSOR", Quantized::by_tensor}, {"PER_CHANNEL", Quantized::by_channel}});
}

enum class CodeKind { none, i8, i4, f8 };  // none: values are what they are

struct CacheQuantization {
  CodeKind kind = CodeKind::none;
  const float* scales = nullptr;        // on the device
  int64_t by_head = 0, by_channel = 0;  // from one scale to the next

  BOTH_FN explicit operator bool() const { return kind != CodeKind::none; }
  DEVICE_FN float scale(int64_t head, int64_t channel) const { return scales[head * by_head + channel * by_channel]; }
};

// Of a head's values in the cache, in bytes.
inline int64_t row_bytes(CodeKind kind, int64_t size, Type type) {
  switch (kind) {
    case CodeKind::none: return size * int64_t(device::size_bytes(type));
    case CodeKind::i4: return (size + 1) / 2;
    default: return size;
  }
}

// The code of value / scale, for i4 in the low bits. NaN becomes the least of the whole numbers.
DEVICE_FN uint32_t code_of(CodeKind kind, float quotient) {
  if (kind == CodeKind::f8) return device::Float8E4M3(quotient).bits;
  const float most = kind == CodeKind::i8 ? 127.f : 7.f, whole = rint(quotient);
  const int code = int(whole > -most - 1 ? (whole < most ? whole : most) : -most - 1);
  return kind == CodeKind::i8 ? uint32_t(code) & 0xff : uint32_t(code + 8);
}
DEVICE_FN float value_of(CodeKind kind, uint32_t code) {
  switch (kind) {
    case CodeKind::i8: return float(int8_t(code));
    case CodeKind::i4: return float(int(code) - 8);
    default: return float(std::bit_cast<device::Float8E4M3>(uint8_t(code)));
  }
}

}  // namespace encore::ops
