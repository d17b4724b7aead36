// The types that a normalisation of rows is compiled for.
#pragma once
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/norm/row_norm.h"

namespace encore::ops {

inline bool adds(const RowNorm& norm) { return norm.skip || norm.bias || norm.sum; }

// Calls f.template operator()<X, V, Y, kAdds>(): the types of values, of scale and of results, and whether something
// may be added to x.
template <class F>
void dispatch_norm(const RowNorm& norm, const NormTypes& types, F f) {
  using Halves = TypeList<Half, BFloat16>;
  if (types.x != types.gamma && types.x == types.y) {
    dispatch(Halves{}, types.x, [&]<class T> { f.template operator()<T, float, T, true>(); });
  } else if (adds(norm)) {
    dispatch(TypeList<float, Half, BFloat16>{}, types.x, [&]<class T> { f.template operator()<T, T, T, true>(); });
  } else if (types.x == types.gamma) {
    dispatch(FloatList{}, types.x, [&]<class T> { f.template operator()<T, T, T, false>(); });
  } else if (types.x == Type::f32) {
    dispatch(Halves{}, types.gamma, [&]<class T> { f.template operator()<float, T, T, false>(); });
  } else {
    dispatch(Halves{}, types.x, [&]<class T> { f.template operator()<T, float, float, false>(); });
  }
}

// Whether packs of values, as many as have 16 bytes in the wider type, are aligned in every row.
template <class X, class V, class Y>
bool is_whole(const RowNorm& norm) {
  constexpr int kPack = device::pack_size<X, V>();
  bool whole = norm.width % kPack == 0;
  for (const void* x : {norm.x, norm.skip, norm.bias, static_cast<const void*>(norm.sum)})
    whole &= device::is_pack_aligned<kPack>(static_cast<const X*>(x));
  for (const void* v : {norm.gamma.data, norm.beta.data, norm.ahead.gamma})
    whole &= device::is_pack_aligned<kPack>(static_cast<const V*>(v));
  for (const void* y : {static_cast<const void*>(norm.y), norm.behind})
    whole &= device::is_pack_aligned<kPack>(static_cast<const Y*>(y));
  return whole;
}

// As a node of its own does it: the terms have been rounded.
struct AddBehind {
  template <class Y>
  DEVICE_FN Y operator()(Y y, Y behind) const {
    return Y(device::Compute<Y>(y) + device::Compute<Y>(behind));
  }
};

}  // namespace encore::ops
