// Compiles only if the tables and the official headers agree. It checks what the given headers' version has:
// offset and type of every slot, size of every struct, value of every enumerator, type of every typedef.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <type_traits>

namespace tables {
#include "ort_abi.h"  // first, because the official headers make macros of a few of its names
}  // namespace tables

#include <onnxruntime_c_api.h>

// The tables don't say which official slots are noexcept; ours all are, which is stricter for callbacks.
template <class T>
struct Throwing {
  using Type = T;
};
template <class Result, class... Arguments>
struct Throwing<Result (*)(Arguments...) noexcept> {
  using Type = Result (*)(Arguments...);
};
#pragma GCC diagnostic ignored "-Wignored-attributes"  // warn_unused_result is no part of a type
template <class A, class B>
inline constexpr bool same_type = std::is_same_v<typename Throwing<A>::Type, typename Throwing<B>::Type>;

#define ENUMERATOR(name) \
  static_assert(static_cast<int>(name) == static_cast<int>(tables::name), "value of " #name " differs");
#define TYPEDEF(name, ...) static_assert(same_type<name, __VA_ARGS__>, "type of " #name " differs");
#define MEMBER(owner, name) \
  static_assert(offsetof(owner, name) == offsetof(tables::owner, name), "offset of " #owner "::" #name " differs");
#define SLOT(owner, name, ...) \
  MEMBER(owner, name)          \
  static_assert(same_type<decltype(owner::name), __VA_ARGS__>, "type of " #owner "::" #name " differs");
#define SIZE(owner, expected)                                                                                       \
  static_assert(                                                                                                    \
      sizeof(owner) == (expected) || (ORT_API_VERSION > tables::ort_abi::kNewestApi && sizeof(owner) > (expected)), \
      "size of " #owner " differs");

#include "ort_abi_check.inc"
