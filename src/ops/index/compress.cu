// NonZero and Compress.
#include <algorithm>

#include "device/divide.h"
#include "device/launch.h"
#include "ops/index/prefix_sum.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;

// The coordinates of places, along some of the dimensions at a time.
struct WriteCoordinates {
  static constexpr int kMost = 8;
  const int64_t* places;
  int64_t* out;  // [dimensions, count]
  int64_t count;
  int dims;
  int64_t strides[kMost];
  Divider sizes[kMost];
  DEVICE_FN void operator()(int64_t i) const {
    const int64_t place = places[i];
    for (int d = 0; d < dims; ++d) {
      int64_t at;
      sizes[d](place / strides[d], at);
      out[d * count + i] = at;
    }
  }
};

// The bits that make a number of the type another one than zero.
uint64_t mask_of(Type type) {
  const int bits = 8 * int(device::size_bytes(type));
  const bool has_minus_zero = kFloats.has(type);
  return ~uint64_t(0) >> (64 - bits + has_minus_zero);
}

class NonZero : public Op {
 public:
  explicit NonZero(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = std::max(x.shape.rank(), 1);  // a scalar is a vector of one
    const Selection selection(context, x.data, device::size_bytes(x.type), mask_of(x.type), x.count());
    const int64_t count = selection.count();
    const Tensor out = context.output(0, Shape{rank, count});
    if (out.count() == 0) return;
    if (rank == 1) return selection.write_places(out.as<int64_t>());
    auto* const places = static_cast<int64_t*>(context.scratch(size_t(count) * sizeof(int64_t)));
    selection.write_places(places);
    const auto strides = strides_of(x.shape);
    for (int first = 0; first < rank; first += WriteCoordinates::kMost) {
      WriteCoordinates some{
          places, out.as<int64_t>() + first * count, count, std::min(WriteCoordinates::kMost, rank - first), {}, {}};
      for (int d = 0; d < some.dims; ++d) {
        some.strides[d] = strides[size_t(first + d)];
        some.sizes[d] = Divider(x.shape[first + d], x.count());
      }
      device::for_each_index(context.stream(), count, some);
    }
  }
};

class Compress : public Op {
 public:
  explicit Compress(const NodeInfo& node) : axis_(node.find_int("axis")) {}
  void run(Context& context) const override {
    const Tensor &in = context.input(0), &condition = context.input(1);
    const int axis = axis_ ? checked_axis(*axis_, in.shape.rank()) : 0;
    const int64_t dim = axis_ ? in.shape[axis] : in.count();
    // A condition that is longer says nothing of what is not there.
    const Selection selection(context, condition.data, 1, 0xff, std::min(condition.count(), dim));
    const int64_t count = selection.count();
    const Tensor out = context.output(0, axis_ ? in.shape.with(axis, count) : Shape{count});
    if (out.count() == 0) return;
    auto* const places = static_cast<int64_t*>(context.scratch(size_t(count) * sizeof(int64_t)));
    selection.write_places(places);
    take(context.stream(), in, axis_ ? in.shape.count(0, axis) : 1, dim, places, count, out.data);
  }

 private:
  std::optional<int64_t> axis_;
};

}  // namespace

std::vector<OpRow> compress_rows() {
  return {
      {.name = "NonZero", .since = 9, .types = {in(0, kNumbers | kBool)}, .make = make<NonZero>, .reads_back = true},
      {.name = "Compress",
       .since = 9,
       .types = {in(0, kNumbers | kBool), in(1, kBool)},
       .make = make<Compress>,
       .reads_back = true},
  };
}

}  // namespace encore::ops
