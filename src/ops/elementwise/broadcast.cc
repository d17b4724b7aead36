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

BroadcastPlan::BroadcastPlan(StreamRef stream, const Shape& shape, void* y,
                             std::span<const std::pair<Shape, const void*>> x, const Types& types)
    : stream_(stream), y_(y), x_(x), types_(types) {
  Shape shapes[kMostInputs];
  for (size_t k = 0; k < x.size(); ++k) shapes[k] = x[k].first;
  dims_ = walked_dims(shape, std::span(shapes, x.size()));
  inner_ = std::min<size_t>(dims_.size(), Walk::kMostDims);
  for (size_t d = inner_; d < dims_.size(); ++d) launches_ *= dims_[d].size;
  if (shape.count() == 0) launches_ = 0;
  if (launches_ != 0) n_ = shape.count() / launches_;
}

BroadcastPlan::Launch BroadcastPlan::launch(int64_t i) const {
  const int pack = types_.pack, inputs = int(x_.size());
  const auto is_aligned = [&](const void* address, size_t bytes) {
    return reinterpret_cast<uintptr_t>(address) % (size_t(pack) * bytes) == 0;
  };
  Launch launch{.walk = Walk(std::span(dims_).first(inner_), n_),
                .n = n_,
                .y = static_cast<char*>(y_) + i * n_ * int64_t(types_.out),
                .whole = n_ / pack,
                .step = n_ / pack};
  const Walk& walk = launch.walk;
  launch.packs = is_aligned(launch.y, types_.out) && (walk.run() >= pack || walk.run() == n_);
  launch.in_runs = launch.packs && walk.run() % pack == 0;
  bool alike = launch.packs;  // as the first pack of a thread, so are the others
  for (int k = 0; k < inputs; ++k) {
    int64_t at = 0, rest = i;
    for (size_t d = inner_; d < dims_.size(); ++d) {
      at += rest % dims_[d].size * dims_[d].strides[k];
      rest /= dims_[d].size;
    }
    launch.x[k] = static_cast<const char*>(x_[size_t(k)].second) + at * int64_t(types_.in[k]);
    const bool aligned = is_aligned(launch.x[k], types_.in[k]), repeats = walk.repeats(k);
    launch.in_runs = launch.in_runs && (repeats || (aligned && walk.moves_by(k, pack)));
    alike = alike && (walk.is_flat(k) ? aligned : repeats || !walk.moves_outermost(k));
  }
  if (launch.in_runs) return launch;
  if (alike) launch.step = device::packs_apart(stream_, launch.whole, walk.period(pack), types_.at_once);
  for (int k = 0; k < inputs; ++k) launch.moves[k] = walk.moved(k, launch.step * pack);
  return launch;
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
