// The table of operators: the single truth behind the kernel registry, node claiming, and docs/operators.md.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops/op.h"

namespace encore::ops {

// A set of element types.
class Types {
 public:
  constexpr Types(std::initializer_list<Type> types) {
    for (Type type : types) bits_ |= 1u << int(type);
  }
  constexpr bool has(Type type) const { return unsigned(type) < 32 && (bits_ >> int(type) & 1); }
  constexpr Types operator|(Types other) const { return Types(bits_ | other.bits_); }
  std::string str() const;  // "float, double"

 private:
  constexpr explicit Types(uint32_t bits) : bits_(bits) {}
  uint32_t bits_ = 0;
};
inline constexpr Types kHalves{Type::f16, Type::bf16};
inline constexpr Types kFloats = kHalves | Types{Type::f32, Type::f64};
inline constexpr Types kSigned{Type::i8, Type::i16, Type::i32, Type::i64};
inline constexpr Types kUnsigned{Type::u8, Type::u16, Type::u32, Type::u64};
inline constexpr Types kIntegers = kSigned | kUnsigned;
inline constexpr Types kNumbers = kFloats | kIntegers;
inline constexpr Types kFloat8{Type::f8e4m3, Type::f8e5m2, Type::f8e4m3fnuz, Type::f8e5m2fnuz};
// Every type that is moved by bytes.
inline constexpr Types kFixedSize = kNumbers | kFloat8 | Types{Type::f8e8m0, Type::boolean};
// Several elements in a byte: moved as a whole, or by kernels that know of it.
inline constexpr Types kPacked{Type::i4, Type::u4, Type::i2, Type::u2, Type::f4e2m1};
inline constexpr Types kIndices{Type::i32, Type::i64};
inline constexpr Types kBool{Type::boolean};

// "Input `index` (or output) has one of `types`"; `and_following` extends it to a variadic tail.
struct TypeRule {
  bool output = false;
  int index = 0;
  Types types;
  bool and_following = false;
};
constexpr TypeRule in(int index, Types types) { return {false, index, types, false}; }
constexpr TypeRule in_all(int from, Types types) { return {false, from, types, true}; }
constexpr TypeRule out(int index, Types types) { return {true, index, types, false}; }

// Domains.
inline constexpr const char* kOnnx = "";
inline constexpr const char* kMicrosoft = "com.microsoft";
inline constexpr const char* kChannelsLast = "com.ms.internal.nhwc";  // ai.onnx's operators with the layout changed
// The schemas of that domain know no bfloat16, whichever the operator's version.
inline constexpr Types kChannelsLastFloats{Type::f16, Type::f32, Type::f64};

// The newest ai.onnx opset that is understood; rows end here unless a later schema version changes the meaning.
inline constexpr int kNewestOpset = 28;

using MakeOp = std::unique_ptr<Op> (*)(const NodeInfo&);
template <class T>
std::unique_ptr<Op> make(const NodeInfo& node) {
  return std::make_unique<T>(node);
}

struct OpRow {
  const char* domain = kOnnx;
  const char* name;
  int since, until = kNewestOpset;  // schema versions, inclusive
  std::vector<TypeRule> types = {};
  MakeOp make = nullptr;                            // null for control flow: the caller runs its bodies
  std::vector<int> host_inputs = {};                // inputs that must be in host memory
  std::vector<int> host_outputs = {};               // outputs that are written in host memory
  std::vector<std::pair<int, int>> alias = {};      // (input, output) which are the same memory: Reshape
  std::vector<std::pair<int, int>> may_reuse = {};  // (input, output) where the output may overwrite the input
  bool reads_back = false;                          // an output's size depends on data: a graph can't hold the node
  bool anywhere = false;                            // where its first input is in host memory, it works there
};
// Every row, in a fixed order: those of each `std::vector<OpRow> NAME_rows()` in the files of this room, which
// cmake/list_operators.py lists.
const std::vector<OpRow>& rows();
const OpRow* find_row(const std::string& domain, const std::string& name, int since_version);

// Why the row cannot serve the node, or an empty string: types against the rules, then the op's own constructor.
std::string why_declined(const OpRow& row, const NodeInfo& node);

}  // namespace encore::ops
