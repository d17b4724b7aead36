// Element types, numbered as ONNX numbers them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "device/half.h"

namespace encore::device {

enum class Type : int32_t {
  undefined = 0,
  f32 = 1,
  u8 = 2,
  i8 = 3,
  u16 = 4,
  i16 = 5,
  i32 = 6,
  i64 = 7,
  string = 8,
  boolean = 9,
  f16 = 10,
  f64 = 11,
  u32 = 12,
  u64 = 13,
  complex64 = 14,
  complex128 = 15,
  bf16 = 16,
  f8e4m3 = 17,
  f8e4m3fnuz = 18,
  f8e5m2 = 19,
  f8e5m2fnuz = 20,
  u4 = 21,
  i4 = 22,
  f4e2m1 = 23,
  f8e8m0 = 24,
  u2 = 25,
  i2 = 26,
};
// The one to which ONNX gives this number, or nothing.
std::optional<Type> numbered_type(int64_t number);
// ONNX's own names: "float", "float16", ...
const char* name(Type type);
// Zero for types without a fixed whole number of bytes (string, 4-bit, 2-bit).
size_t size_bytes(Type type);
// Zero for strings only. What is narrower than a byte is packed, the first element in the lowest bits.
int size_bits(Type type);
inline bool is_packed(Type type) { return size_bits(type) % 8 != 0; }
// What `count` elements take, in whole bytes; Error{invalid_input} if no size_t holds it.
size_t size_bytes(Type type, int64_t count);

template <class T>
struct TypeOf;
template <>
struct TypeOf<float> {
  static constexpr Type value = Type::f32;
};
template <>
struct TypeOf<double> {
  static constexpr Type value = Type::f64;
};
template <>
struct TypeOf<Half> {
  static constexpr Type value = Type::f16;
};
template <>
struct TypeOf<BFloat16> {
  static constexpr Type value = Type::bf16;
};
template <>
struct TypeOf<Float8E4M3> {
  static constexpr Type value = Type::f8e4m3;
};
template <>
struct TypeOf<Float8E5M2> {
  static constexpr Type value = Type::f8e5m2;
};
template <>
struct TypeOf<Float8E4M3Fnuz> {
  static constexpr Type value = Type::f8e4m3fnuz;
};
template <>
struct TypeOf<Float8E5M2Fnuz> {
  static constexpr Type value = Type::f8e5m2fnuz;
};
template <>
struct TypeOf<Float8E8M0> {
  static constexpr Type value = Type::f8e8m0;
};
template <>
struct TypeOf<bool> {
  static constexpr Type value = Type::boolean;
};
template <>
struct TypeOf<int8_t> {
  static constexpr Type value = Type::i8;
};
template <>
struct TypeOf<int16_t> {
  static constexpr Type value = Type::i16;
};
template <>
struct TypeOf<int32_t> {
  static constexpr Type value = Type::i32;
};
template <>
struct TypeOf<int64_t> {
  static constexpr Type value = Type::i64;
};
template <>
struct TypeOf<uint8_t> {
  static constexpr Type value = Type::u8;
};
template <>
struct TypeOf<uint16_t> {
  static constexpr Type value = Type::u16;
};
template <>
struct TypeOf<uint32_t> {
  static constexpr Type value = Type::u32;
};
template <>
struct TypeOf<uint64_t> {
  static constexpr Type value = Type::u64;
};
template <class T>
inline constexpr Type kTypeOf = TypeOf<T>::value;

}  // namespace encore::device
