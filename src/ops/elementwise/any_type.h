// Elements whose type is known when the kernel runs: what conversions and quantization read, and the packed types.
#pragma once
#include <cstdint>

#include "device/transform.h"
#include "device/type.h"

namespace encore::ops {

// Read in packs of kCount, of which `count` are there.
struct AnyInput {
  static constexpr int kPack = 8;  // the largest

  const void* data;
  device::Type type;
  bool aligned;  // so that packs may be loaded at once

  AnyInput(const void* data, device::Type type) : data(data), type(type), aligned(pack_aligned(data, type)) {}
  static bool pack_aligned(const void* data, device::Type type) {
    return reinterpret_cast<uintptr_t>(data) % size_t(device::size_bits(type)) == 0;  // kPack elements: bits as bytes
  }

  // Of types that float holds exactly.
  template <int kCount>
  DEVICE_FN device::Pack<float, kCount> floats(int64_t first, int count = kCount) const {
    switch (type) {
      case device::Type::f16: return read<float, device::Half, kCount>(first, count);
      case device::Type::bf16: return read<float, device::BFloat16, kCount>(first, count);
      case device::Type::f8e4m3: return read<float, device::Float8E4M3, kCount>(first, count);
      case device::Type::f8e5m2: return read<float, device::Float8E5M2, kCount>(first, count);
      case device::Type::f8e4m3fnuz: return read<float, device::Float8E4M3Fnuz, kCount>(first, count);
      case device::Type::f8e5m2fnuz: return read<float, device::Float8E5M2Fnuz, kCount>(first, count);
      case device::Type::f8e8m0: return read<float, device::Float8E8M0, kCount>(first, count);
      case device::Type::f4e2m1:
        return unpack<float, 4, kCount>(first, count, [](uint32_t bits) { return device::float4_value(bits); });
      default: return read<float, float, kCount>(first, count);
    }
  }
  // Of types that By holds.
  template <class By, int kCount>
  DEVICE_FN device::Pack<By, kCount> integers(int64_t first, int count = kCount) const {
    switch (type) {
      case device::Type::i2:
        return unpack<By, 2, kCount>(first, count, [](uint32_t bits) { return By(int(bits ^ 2) - 2); });
      case device::Type::u2: return unpack<By, 2, kCount>(first, count, [](uint32_t bits) { return By(bits); });
      case device::Type::i4:
        return unpack<By, 4, kCount>(first, count, [](uint32_t bits) { return By(int(bits ^ 8) - 8); });
      case device::Type::u4: return unpack<By, 4, kCount>(first, count, [](uint32_t bits) { return By(bits); });
      case device::Type::i8: return read<By, int8_t, kCount>(first, count);
      case device::Type::i16: return read<By, int16_t, kCount>(first, count);
      case device::Type::i32: return read<By, int32_t, kCount>(first, count);
      case device::Type::u16: return read<By, uint16_t, kCount>(first, count);
      case device::Type::u32: return read<By, uint32_t, kCount>(first, count);
      case device::Type::i64: return read<By, int64_t, kCount>(first, count);
      default: return read<By, uint8_t, kCount>(first, count);  // and bool, which is 0 or 1
    }
  }
  template <class By, class From, int kCount>
  DEVICE_FN device::Pack<By, kCount> read(int64_t first, int count = kCount) const {
    const auto in = device::load_pack<kCount>(static_cast<const From*>(data) + first, aligned || kCount == 1, count);
    device::Pack<By, kCount> out;
    UNROLL for (int i = 0; i < kCount; ++i) out.at[i] = By(in.at[i]);
    return out;
  }

 private:
  template <class By, int kBits, int kCount, class F>
  DEVICE_FN device::Pack<By, kCount> unpack(int64_t first, int count, F value) const {
    constexpr uint32_t kMask = (1u << kBits) - 1;
    const auto* bytes = static_cast<const uint8_t*>(data) + first * kBits / 8;
    device::Pack<By, kCount> out;
    if constexpr (kCount == 1) {
      out.at[0] = value(uint32_t(*bytes) >> (first * kBits % 8) & kMask);
    } else {
      constexpr int kInByte = 8 / kBits;
      const auto in = device::load_pack<kCount / kInByte>(bytes, aligned, (count + kInByte - 1) / kInByte);
      UNROLL for (int i = 0; i < kCount; ++i) out.at[i] =
          value(uint32_t(in.at[i / kInByte]) >> (i % kInByte * kBits) & kMask);
    }
    return out;
  }
};

// Stores a pack of packed elements, of which the low kBits count; `first` is a multiple of kCount.
template <int kBits, int kCount>
DEVICE_FN void store_packed(void* to, int64_t first, const device::Pack<uint32_t, kCount>& elements, bool aligned,
                            int count) {
  constexpr int kInByte = 8 / kBits;
  device::Pack<uint8_t, kCount / kInByte> bytes;
  UNROLL for (int b = 0; b < kCount / kInByte; ++b) {
    uint32_t byte = 0;
    UNROLL for (int i = 0; i < kInByte; ++i) {
      const int e = b * kInByte + i;
      if (e < count) byte |= (elements.at[e] & ((1u << kBits) - 1)) << (i * kBits);
    }
    bytes.at[b] = uint8_t(byte);
  }
  device::store_pack(static_cast<uint8_t*>(to) + first * kBits / 8, bytes, aligned, (count + kInByte - 1) / kInByte);
}

}  // namespace encore::ops
