#include "ops/shape.h"

#include <algorithm>

#include "device/error.h"

namespace encore::ops {

int64_t checked_product(int64_t a, int64_t b) {
  int64_t out;
  require(!__builtin_mul_overflow(a, b, &out), "a size overflows: ", a, " x ", b);
  return out;
}

Shape::Shape(std::span<const int64_t> dims) : rank_(int(dims.size())) {
  require(dims.size() <= size_t(kMaxRank), "a tensor of rank ", dims.size(), ": Encore handles up to ", kMaxRank,
          " dimensions");
  bool empty = false;
  for (int i = 0; i < rank_; ++i) {
    require(dims[i] >= 0, "dimension ", i, " of a shape is negative: ", dims[i]);
    dims_[i] = dims[i];
    empty |= dims[i] == 0;
  }
  // An empty tensor may have dimensions whose product would not fit.
  if (empty)
    count_ = 0;
  else
    for (int i = 0; i < rank_; ++i) count_ = checked_product(count_, dims_[i]);
}

int64_t Shape::count(int from, int to) const {
  int64_t out = 1;
  for (int i = from; i < to; ++i) out = checked_product(out, dims_[i]);
  return out;
}

bool Shape::operator==(const Shape& other) const {
  return rank_ == other.rank_ && std::equal(dims_.begin(), dims_.begin() + rank_, other.dims_.begin());
}

Shape Shape::with(int axis, int64_t dim) const {
  std::array<int64_t, kMaxRank> dims = dims_;
  dims[axis] = dim;
  return Shape(std::span<const int64_t>(dims.data(), size_t(rank_)));
}

std::string Shape::str() const {
  std::string out = "[";
  for (int i = 0; i < rank_; ++i) out += (i ? "," : "") + std::to_string(dims_[i]);
  return out + "]";
}

int checked_axis(int64_t axis, int rank, const char* what) {
  require(axis >= -rank && axis < rank, what, " ", axis, " is outside [", -rank, ",", rank, ")");
  return int(axis < 0 ? axis + rank : axis);
}

Shape broadcast(const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  std::array<int64_t, kMaxRank> dims;
  for (int i = 0; i < rank; ++i) {
    const int ia = i - (rank - a.rank()), ib = i - (rank - b.rank());
    const int64_t da = ia < 0 ? 1 : a[ia], db = ib < 0 ? 1 : b[ib];
    require(da == db || da == 1 || db == 1, "shapes ", a.str(), " and ", b.str(), " cannot be broadcast together");
    dims[i] = da == 1 ? db : da;
  }
  return Shape(std::span<const int64_t>(dims.data(), size_t(rank)));
}

bool broadcasts_to(const Shape& from, const Shape& to) {
  const int lead = to.rank() - from.rank();
  for (int i = 0; i < from.rank(); ++i)
    if (lead < 0 || (from[i] != 1 && from[i] != to[lead + i])) return false;
  return true;
}

std::array<int64_t, kMaxRank> strides_of(const Shape& shape) {
  std::array<int64_t, kMaxRank> strides{};
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

}  // namespace encore::ops
