// Operators that see an integer as its bits, or anything else as those of another type.
#include <type_traits>

#include "ops/choice.h"
#include "ops/elementwise/binary.h"
#include "ops/elementwise/unary.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

// BitwiseAnd, BitwiseOr and BitwiseXor share their kernels.
struct Bitwise {
  uint64_t of_both, of_one;  // all bits or none: what comes of bits that both have, and of those that one has
  Bitwise() = default;
  explicit Bitwise(const NodeInfo& node)
      : of_both(node.op_type() == "BitwiseXor" ? 0 : ~uint64_t(0)),
        of_one(node.op_type() == "BitwiseAnd" ? 0 : ~uint64_t(0)) {}
  template <class T>
  DEVICE_FN T operator()(T a, T b) const {
    return T((a & b & T(of_both)) | ((a ^ b) & T(of_one)));
  }
};

// A shift by as many bits as there are, or more, leaves none, or to the right the sign alone. So does one by less than
// none, which is many without the sign.
struct Shifted {
  bool left, is_signed;
  Shifted() = default;
  explicit Shifted(const NodeInfo& node) {
    left = read_choice<bool>(node, "direction", "", {{"LEFT", true}, {"RIGHT", false}});
    is_signed = kSigned.has(node.input_type(0));
  }
  template <class T>
  DEVICE_FN T operator()(T x, T bits) const {
    constexpr T kWidth = T(8 * sizeof(T));
    const bool none = bits >= kWidth;
    if (is_signed && !left) return T(std::make_signed_t<T>(x) >> (none ? T(kWidth - 1) : bits));
    if (none) return T(0);
    return T(left ? uint64_t(x) << bits : uint64_t(x) >> bits);
  }
};

struct Flipped {
  DEVICE_FN uint8_t operator()(uint8_t bits) const { return uint8_t(~bits); }
};
class BitwiseNot : public Op {
 public:
  explicit BitwiseNot(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor y = context.output(0, x.shape);
    device::transform(context.stream(), int64_t(x.bytes()), y.as<uint8_t>(), Flipped{}, x.as<const uint8_t>());
  }
};

class BitCast : public Op {
 public:
  explicit BitCast(const NodeInfo& node) {
    const Type from = node.input_type(0), to = node.output_type(0);
    if (device::size_bytes(from) != device::size_bytes(to))
      fail(Code::not_supported, device::name(from), " and ", device::name(to), " are not of one size");
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    copy_bytes(context.stream(), x.data, context.output(0, x.shape).data, int64_t(x.bytes()));
  }
};

OpRow bits_row(const char* name) {
  return {.name = name,
          .since = 18,
          .types = {in(0, kIntegers)},
          .make = make<Binary<Bitwise, UnsignedList>>,
          .may_reuse = {{0, 0}, {1, 0}}};
}

}  // namespace

std::vector<OpRow> bits_rows() {
  constexpr Types kCast = kFixedSize | Types{Type::f8e4m3fnuz, Type::f8e5m2fnuz};
  OpRow unsigned_shift = binary_row<Shifted, UnsignedList>("BitShift", 11, kUnsigned);
  unsigned_shift.until = 27;
  return {
      bits_row("BitwiseAnd"),
      bits_row("BitwiseOr"),
      bits_row("BitwiseXor"),
      {.name = "BitwiseNot", .since = 18, .types = {in(0, kIntegers)}, .make = make<BitwiseNot>, .may_reuse = {{0, 0}}},
      unsigned_shift,
      binary_row<Shifted, UnsignedList>("BitShift", 28, kIntegers),
      {.name = "BitCast",
       .since = 26,
       .types = {in(0, kCast), out(0, kCast)},
       .make = make<BitCast>,
       .may_reuse = {{0, 0}}},
  };
}

}  // namespace encore::ops
