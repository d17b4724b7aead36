// How types and numbers are written.
#pragma once
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include "device/half.h"
#include "ops/registry.h"

namespace encore::fuse {

inline constexpr std::string_view kTypeNames[] = {
    "_",          "f32",    "u8",         "i8",  "u16", "i16",    "i32",    "i64",  "string",
    "bool",       "f16",    "f64",        "u32", "u64", "c64",    "c128",   "bf16", "f8e4m3",
    "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "u4",  "i4",  "f4e2m1", "f8e8m0", "u2",   "i2"};

// The one that needs no telling.
inline int newest_version(std::string_view domain) { return domain.empty() ? ops::kNewestOpset : 1; }

// Calls `f` with the address of an element as what it is; false if that is no number which C++ has.
template <class F>
bool visit_element(ops::Type type, void* at, F f) {
  using ops::Type;
  switch (type) {
    case Type::f16: return f(static_cast<device::Half*>(at)), true;
    case Type::bf16: return f(static_cast<device::BFloat16*>(at)), true;
    case Type::f32: return f(static_cast<float*>(at)), true;
    case Type::f64: return f(static_cast<double*>(at)), true;
    case Type::boolean:
    case Type::u8: return f(static_cast<uint8_t*>(at)), true;
    case Type::i8: return f(static_cast<int8_t*>(at)), true;
    case Type::u16: return f(static_cast<uint16_t*>(at)), true;
    case Type::i16: return f(static_cast<int16_t*>(at)), true;
    case Type::u32: return f(static_cast<uint32_t*>(at)), true;
    case Type::i32: return f(static_cast<int32_t*>(at)), true;
    case Type::u64: return f(static_cast<uint64_t*>(at)), true;
    case Type::i64: return f(static_cast<int64_t*>(at)), true;
    default: return false;
  }
}

// The shortest text that is read as the same number; of a float it has a point, an exponent, or letters.
template <class T>
std::string number_text(T value) {
  if constexpr (std::is_same_v<T, device::Half> || std::is_same_v<T, device::BFloat16>) {
    return number_text(float(value));
  } else {
    char digits[64];
    std::string made(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
    if (std::is_floating_point_v<T> && made.find_first_not_of("-0123456789") == made.npos) made += ".0";
    return made;
  }
}

// Nothing if the text is no such number.
template <class T>
std::optional<T> number_from(std::string_view text) {
  if constexpr (std::is_same_v<T, device::Half> || std::is_same_v<T, device::BFloat16>) {
    const auto wide = number_from<float>(text);
    return wide ? std::optional(T(*wide)) : std::nullopt;
  } else {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
  }
}

}  // namespace encore::fuse
