#include "ops/elementwise/broadcast.h"

#include <numeric>

#include "ops/elementwise/binary.h"

namespace encore::ops {

std::vector<WalkedDim> walked_dims(const Shape& output, std::span<const Shape> inputs) {
  std::vector<WalkedDim> dims;
  int64_t steps[kMostInputs] = {1, 1, 1, 1};  // from one index of this dimension to the next
  for (int axis = output.rank() - 1; axis >= 0; --axis) {
    if (output[axis] == 1) continue;
    WalkedDim dim{output[axis], {}};
    bool joins = !dims.empty();  // the dimension inside of it
    for (size_t k = 0; k < inputs.size(); ++k) {
      const int own = axis - (output.rank() - inputs[k].rank());
      if (own >= 0 && inputs[k][own] != 1) {
        dim.strides[k] = steps[k];
        steps[k] *= dim.size;
      }
      joins = joins && dim.strides[k] == dims.back().strides[k] * dims.back().size;
    }
    if (joins)
      dims.back().size *= dim.size;
    else
      dims.push_back(dim);
  }
  if (dims.empty()) dims.push_back({1, {}});
  return dims;
}

Walk::Walk(std::span<const WalkedDim> dims, int64_t count) {
  flat_ = (1u << kMostInputs) - 1;
  int64_t before = 1, farthest[kMostInputs] = {};
  for (const WalkedDim& dim : dims) {
    for (int k = 0; k < kMostInputs; ++k) {
      flat_ &= ~(unsigned(dim.strides[k] != before) << k);
      farthest[k] += (dim.size - 1) * dim.strides[k];
    }
    before *= dim.size;
    sizes_[rank_] = device::Divider(dim.size, count);
    std::copy(dim.strides, dim.strides + kMostInputs, strides_[rank_++]);
  }
  // Operands of sums may be larger than what comes of them.
  small_ = count < int64_t(1) << 31 && *std::max_element(farthest, farthest + kMostInputs) < int64_t(1) << 32;
}

int64_t Walk::inner() const {
  int64_t count = 1;
  for (int d = 0; d + 1 < rank_; ++d) count *= sizes_[d].divisor();
  return count;
}

int64_t Walk::period(int pack) const { return rank_ == 1 ? 1 : inner() / std::gcd(inner(), pack); }

int64_t Walk::moved(int input, int64_t outputs) const {
  return outputs / (rank_ == 1 ? 1 : inner()) * strides_[rank_ - 1][input];
}

Shape EarlyBroadcast::aligned(const Shape& a, const Shape& b) const {
  if (!applies_ || a == b) return b;
  require(allowed_, "shapes ", a.str(), " and ", b.str(), " differ, and attribute broadcast is not 1");
  if (b.count() == 1) {
    require(b.rank() <= a.rank(), "B of shape ", b.str(), " has more dimensions than A of ", a.str());
    return Shape{};
  }
  const int64_t last = a.rank() - b.rank(), axis = axis_ ? checked_axis(*axis_, a.rank()) : last;
  require(axis >= 0 && axis <= last, "B of shape ", b.str(), " does not fit A of ", a.str(), " from axis ", axis,
          " on");
  std::vector<int64_t> dims(b.dims().begin(), b.dims().end());
  for (int i = 0; i < b.rank(); ++i)
    require(b[i] == a[int(axis) + i], "B of shape ", b.str(), " does not fit A of ", a.str(), " from axis ", axis,
            " on");
  dims.resize(size_t(a.rank() - axis), 1);
  return Shape(dims);
}

Type as_unsigned(Type type) {
  switch (type) {
    case Type::i8:
    case Type::boolean: return Type::u8;
    case Type::i16: return Type::u16;
    case Type::i32: return Type::u32;
    case Type::i64: return Type::u64;
    default: return type;
  }
}

}  // namespace encore::ops
