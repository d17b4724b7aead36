// From a run-time element type to a compile-time one.
#pragma once
#include <utility>

#include "device/error.h"
#include "device/type.h"

namespace encore::ops {

template <class... T>
struct TypeList {};
using device::BFloat16;
using device::Half;
using FloatList = TypeList<float, Half, BFloat16, double>;
using UnsignedList = TypeList<uint8_t, uint16_t, uint32_t, uint64_t>;
using NumberList =
    TypeList<float, Half, BFloat16, double, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>;

// Calls f.template operator()<T>() for the T of the list that `type` stands for.
template <class... T, class F>
void dispatch(TypeList<T...>, device::Type type, F&& f) {
  const bool found = ((type == device::kTypeOf<T> ? (f.template operator()<T>(), true) : false) || ...);
  if (!found) fail(Code::not_supported, "type ", device::name(type), " is not supported here");
}

// Calls f with an unsigned type of the same size: for ops that only move bytes.
struct Bytes16 {
  uint64_t low, high;
};
template <class F>
void dispatch_size(size_t bytes, F&& f) {
  switch (bytes) {
    case 1: return f.template operator()<uint8_t>();
    case 2: return f.template operator()<uint16_t>();
    case 4: return f.template operator()<uint32_t>();
    case 8: return f.template operator()<uint64_t>();
    case 16: return f.template operator()<Bytes16>();
    default: fail(Code::not_supported, "elements of ", bytes, " bytes are not supported here");
  }
}

}  // namespace encore::ops
