#include "device/type.h"

#include <iterator>

#include "device/error.h"

namespace encore::device {

std::optional<Type> numbered_type(int64_t number) {
  if (number <= int64_t(Type::undefined) || number > int64_t(Type::i2)) return {};
  return Type(number);
}

const char* name(Type type) {
  static constexpr const char* kNames[] = {
      "undefined", "float",      "uint8",      "int8",         "uint16",         "int16",      "int32",
      "int64",     "string",     "bool",       "float16",      "double",         "uint32",     "uint64",
      "complex64", "complex128", "bfloat16",   "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz",
      "uint4",     "int4",       "float4e2m1", "float8e8m0",   "uint2",          "int2"};
  const auto index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

size_t size_bytes(Type type) {
  switch (type) {
    case Type::u8:
    case Type::i8:
    case Type::boolean:
    case Type::f8e4m3:
    case Type::f8e4m3fnuz:
    case Type::f8e5m2:
    case Type::f8e5m2fnuz:
    case Type::f8e8m0: return 1;
    case Type::u16:
    case Type::i16:
    case Type::f16:
    case Type::bf16: return 2;
    case Type::f32:
    case Type::i32:
    case Type::u32: return 4;
    case Type::f64:
    case Type::i64:
    case Type::u64:
    case Type::complex64: return 8;
    case Type::complex128: return 16;
    default: return 0;
  }
}

int size_bits(Type type) {
  switch (type) {
    case Type::u2:
    case Type::i2: return 2;
    case Type::u4:
    case Type::i4:
    case Type::f4e2m1: return 4;
    default: return int(size_bytes(type)) * 8;
  }
}

size_t size_bytes(Type type, int64_t count) {
  if (is_packed(type)) {
    const int64_t in_a_byte = 8 / size_bits(type);
    return size_t(count / in_a_byte + (count % in_a_byte != 0));
  }
  size_t bytes = 0;
  require(count >= 0 && !__builtin_mul_overflow(size_t(count), size_bytes(type), &bytes), count, " elements of ",
          name(type), " are more than memory can hold");
  return bytes;
}

}  // namespace encore::device
