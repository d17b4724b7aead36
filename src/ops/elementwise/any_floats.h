// What small operators of com.microsoft share: parameters of any float type, and hidden states of several branches.
#pragma once
#include <bit>
#include <type_traits>

#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/tensor.h"

namespace encore::ops {

// Values of float or a half type, which is known at run time, as floats.
struct AnyFloats {
  // A pack as it lies in memory, on its way from there. Of halves there is no second part.
  template <int kCount>
  struct Raw {
    using Part = std::conditional_t<kCount == 1, uint16_t, device::Pack<uint32_t, (kCount + 1) / 2>>;
    Part first, second;
  };

  const void* data = nullptr;
  Type type = Type::f32;

  DEVICE_FN float at(int64_t i) const { return pack<1>(i).at[0]; }
  // Of packs that are aligned.
  template <int kCount>
  DEVICE_FN device::Pack<float, kCount> pack(int64_t first) const {
    return floats(raw<kCount>(first));
  }
  // Asks for a pack without a branch, and waits for nothing: ask for all that are needed before floats() of one.
  template <int kCount>
  DEVICE_FN Raw<kCount> raw(int64_t first) const {
    const auto* const from = static_cast<const typename Raw<kCount>::Part*>(address(first));
    Raw<kCount> raw{load(from), {}};
    if (type == Type::f32) raw.second = load(from + 1);
    return raw;
  }
  template <int kCount>
  DEVICE_FN device::Pack<float, kCount> floats(const Raw<kCount>& raw) const {
    if (type == Type::f16) return floats_of<Half>(raw);
    if (type == Type::bf16) return floats_of<BFloat16>(raw);
    return floats_of<float>(raw);
  }
  DEVICE_FN const void* address(int64_t i) const {
    return static_cast<const char*>(data) + i * (type == Type::f32 ? 4 : 2);
  }
  // Whether all packs are, if their first values' indices are multiples of kCount.
  template <int kCount>
  bool has_packs() const {
    return reinterpret_cast<uintptr_t>(data) % (kCount * device::size_bytes(type)) == 0;
  }

 protected:
  template <class T, int kCount>
  DEVICE_FN static device::Pack<float, kCount> floats_of(const Raw<kCount>& raw) {
    if constexpr (std::is_same_v<T, float>) {
      return std::bit_cast<device::Pack<float, kCount>>(raw);
    } else {
      const auto pack = std::bit_cast<device::Pack<T, kCount>>(raw.first);
      device::Pack<float, kCount> out;
      UNROLL for (int j = 0; j < kCount; ++j) out.at[j] = float(pack.at[j]);
      return out;
    }
  }

 private:
  template <class Part>
  DEVICE_FN static Part load(const Part* from) {
    return device::load_aligned<1>(from).at[0];
  }
};

// Values of float or T: packs of as many as T has become floats without a branch, too.
template <class T>
struct FloatsOr : AnyFloats {
  static bool has_packs(const AnyFloats& values) {
    return (values.type == Type::f32 || values.type == device::kTypeOf<T>)&&values.has_packs<device::pack_size<T>()>();
  }
  template <int kCount>
  DEVICE_FN Raw<kCount> raw(int64_t first) const {
    if constexpr (std::is_same_v<T, float>)
      return std::bit_cast<Raw<kCount>>(device::load_aligned<kCount>(static_cast<const float*>(data) + first));
    else
      return AnyFloats::raw<kCount>(first);
  }
  template <int kCount>
  DEVICE_FN device::Pack<float, kCount> floats(const Raw<kCount>& raw) const {
    auto out = floats_of<float>(raw);
    if constexpr (!std::is_same_v<T, float>) {
      const auto narrow = floats_of<T>(raw);
      UNROLL for (int j = 0; j < kCount; ++j) out.at[j] = type == Type::f32 ? out.at[j] : narrow.at[j];
    }
    return out;
  }
};

// `rows` times `count` branches of `width` values: the last two dimensions, or the last one if the count is told.
struct Branches {
  int64_t rows, count, width;
  int lead;  // dimensions before
};
inline Branches branches_of(const Shape& shape, int64_t told, const char* what) {
  const int rank = shape.rank(), lead = rank - (told > 0 ? 1 : 2);
  require(lead >= 0, what, " ", shape.str(), " has too few dimensions for branches");
  if (told == 0) return {shape.count(0, lead), shape[lead], shape.back(), lead};
  require(shape.back() % told == 0, "the last dimension of ", what, " ", shape.str(),
          " cannot be divided by num_branches ", told);
  return {shape.count(0, lead), told, shape.back() / told, lead};
}

}  // namespace encore::ops
