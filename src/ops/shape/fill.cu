// ConstantOfShape and Range.
#include <cmath>
#include <cstring>
#include <type_traits>

#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/range_count.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

template <class T>
struct Fill {
  T* out;
  T value;
  DEVICE_FN void operator()(int64_t i) const { out[i] = value; }
};

class ConstantOfShape : public Op {
 public:
  explicit ConstantOfShape(const NodeInfo& node) {
    if (const Tensor* value = node.find_tensor("value")) {
      require(value->count() == 1, "value has ", value->count(), " elements; it must have one");
      bytes_ = value->bytes();
      require(bytes_ > 0 && bytes_ <= sizeof value_, "a value of type ", device::name(value->type),
              " cannot be filled in");
      std::memcpy(&value_, value->data, bytes_);
      if (device::is_packed(value->type))  // a byte has several
        value_ = repeated(value_, device::size_bits(value->type));
    }
  }
  void run(Context& context) const override {
    const Tensor out = context.output(0, Shape(host_ints(context.input(0), "shape")));
    const int64_t count = int64_t(out.bytes() / bytes_);
    dispatch_size(bytes_, [&]<class T>() {
      if constexpr (sizeof(T) <= sizeof value_) {
        T value;
        std::memcpy(&value, &value_, sizeof(T));
        device::for_each_index(context.stream(), count, Fill<T>{out.as<T>(), value});
      }
    });
  }

 private:
  static uint64_t repeated(uint64_t value, int bits) {
    const uint64_t one = value & ((uint64_t{1} << bits) - 1);
    uint64_t byte = 0;
    for (int at = 0; at < 8; at += bits) byte |= one << at;
    return byte;
  }

  uint64_t value_ = 0;
  size_t bytes_ = sizeof(float);  // zero of type float where nothing is said
};

template <class T>
struct Count {
  // Integers wrap around on the way, where the difference of the ends does not fit.
  using Term = std::conditional_t<std::is_integral_v<T>, uint64_t, device::Compute<T>>;
  T* out;
  T start, delta;
  DEVICE_FN void operator()(int64_t i) const { out[i] = T(Term(start) + Term(i) * Term(delta)); }
};
constexpr int64_t kFloat = 1;  // as ONNX numbers types
constexpr int64_t kMostOfRange = int64_t(1) << 53;
using RangeTypes = TypeList<float, Half, BFloat16, double, int16_t, int32_t, int64_t>;

class Range : public Op {
 public:
  explicit Range(const NodeInfo& node) {
    const int64_t stash = node.get_int("stash_type", kFloat);
    if (stash != kFloat && kHalves.has(node.input_type(0)))
      fail(Code::not_supported, "stash_type is ", stash, "; numbers are added up in float (1)");
  }
  void run(Context& context) const override {
    dispatch(RangeTypes{}, context.input(0).type, [&]<class T>() {
      const auto scalar = [&](int i, const char* what) {
        const Tensor& given = context.input(i);
        require(given.shape.is_scalar(), what, " has shape ", given.shape.str(), "; it must be a scalar");
        require(given.type == context.input(0).type, what, " is not of the type of start");
        return *given.as<const T>();
      };
      const T start = scalar(0, "start"), limit = scalar(1, "limit"), delta = scalar(2, "delta");
      using C = device::Compute<T>;
      require(C(delta) != C(0), "delta is 0");
      using Exact = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
      const int64_t count = range_count(Exact(C(start)), Exact(C(limit)), Exact(C(delta)));
      require(count < kMostOfRange, "a range of ", count, " elements");
      const Tensor out = context.output(0, Shape{count});
      device::for_each_index(context.stream(), count, Count<T>{out.as<T>(), start, delta});
    });
  }
};

}  // namespace

std::vector<OpRow> fill_rows() {
  return {
      {.name = "ConstantOfShape",
       .since = 9,
       .types = {out(0, kFixedSize | kPacked)},
       .make = make<ConstantOfShape>,
       .host_inputs = {0}},
      {.name = "Range",
       .since = 11,
       .types = {in(0, kFloats | Types{Type::i16, Type::i32, Type::i64})},
       .make = make<Range>,
       .host_inputs = {0, 1, 2}},
  };
}

}  // namespace encore::ops
