// What small operators of com.microsoft share: parameters of any float type, and hidden states of several branches.
#pragma once
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/elementwise/curves.h"
#include "ops/elementwise/rough.h"
#include "ops/tensor.h"

namespace encore::ops {

// Values of float or a half type, which is known at run time, as floats.
struct AnyFloats {
  const void* data = nullptr;
  Type type = Type::f32;

  DEVICE_FN float at(int64_t i) const { return pack<1>(i).at[0]; }
  // Of packs that are aligned.
  template <int kCount>
  DEVICE_FN device::Pack<float, kCount> pack(int64_t first) const {
    if (type == Type::f16) return read<Half, kCount>(first);
    if (type == Type::bf16) return read<BFloat16, kCount>(first);
    return read<float, kCount>(first);
  }
  DEVICE_FN const void* address(int64_t i) const {
    return static_cast<const char*>(data) + i * (type == Type::f32 ? 4 : 2);
  }
  // Whether all packs are, if their first values' indices are multiples of kCount.
  template <int kCount>
  bool has_packs() const {
    return reinterpret_cast<uintptr_t>(data) % (kCount * device::size_bytes(type)) == 0;
  }

 private:
  template <class T, int kCount>
  DEVICE_FN device::Pack<float, kCount> read(int64_t first) const {
    const auto pack = device::load_pack<kCount>(static_cast<const T*>(data) + first, true);
    device::Pack<float, kCount> out;
    UNROLL for (int j = 0; j < kCount; ++j) out.at[j] = float(pack.at[j]);
    return out;
  }
};

// With as many digits as a T keeps.
template <class T>
DEVICE_FN float sigmoid_for(float x) {
  if constexpr (kIsHalf<T>)
    return rough_sigmoid(x);
  else
    return sigmoid(x);
}

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
