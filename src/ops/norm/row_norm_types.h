// The types that a normalisation of rows is compiled for.
#pragma once
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/norm/row_norm.h"

namespace encore::ops {

// Calls f.template operator()<X, V, kAdds>(): the types of values and of scale, which are the same or a half type and
// float, and whether something is added to x.
template <class F>
void dispatch_norm(const RowNorm& norm, Type x, Type gamma, F f) {
  if (norm.skip || norm.bias || norm.sum) {
    dispatch(TypeList<float, Half, BFloat16>{}, x, [&]<class T> { f.template operator()<T, T, true>(); });
  } else if (x == gamma) {
    dispatch(FloatList{}, x, [&]<class T> { f.template operator()<T, T, false>(); });
  } else if (x == Type::f32) {
    dispatch(TypeList<Half, BFloat16>{}, gamma, [&]<class T> { f.template operator()<float, T, false>(); });
  } else {
    dispatch(TypeList<Half, BFloat16>{}, x, [&]<class T> { f.template operator()<T, float, false>(); });
  }
}

// Whether packs of values, as many as have 16 bytes in the wider type, are aligned in every row.
template <class X, class V>
bool is_whole(const RowNorm& norm) {
  constexpr int kPack = device::pack_size<X, V>();
  bool whole = norm.width % kPack == 0;
  for (const void* x : {norm.x, norm.skip, norm.bias, static_cast<const void*>(norm.sum)})
    whole &= device::is_pack_aligned<kPack>(static_cast<const X*>(x));
  for (const void* v : {norm.gamma.data, norm.beta.data, static_cast<const void*>(norm.y)})
    whole &= device::is_pack_aligned<kPack>(static_cast<const V*>(v));
  return whole;
}

}  // namespace encore::ops
