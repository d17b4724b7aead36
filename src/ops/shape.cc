#include "ops/shape.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>

#include "device/error.h"
#include "ops/few.h"

namespace encore::ops {

int64_t checked_product(int64_t a, int64_t b) {
  int64_t out;
  require(!__builtin_mul_overflow(a, b, &out), "a size overflows: ", a, " x ", b);
  return out;
}

Shape::Shape(std::span<const int64_t> dims) : rank_(int(dims.size())) {
  if (rank_ <= kFew)
    std::copy(dims.begin(), dims.end(), few_.begin());
  else
    many_.assign(dims.begin(), dims.end());
  bool empty = false;
  for (int i = 0; i < rank_; ++i) {
    require(dims[size_t(i)] >= 0, "dimension ", i, " of a shape is negative: ", dims[size_t(i)]);
    empty |= dims[size_t(i)] == 0;
  }
  // An empty tensor may have dimensions whose product would not fit.
  if (empty)
    count_ = 0;
  else
    for (int64_t dim : dims) count_ = checked_product(count_, dim);
}

int64_t Shape::count(int from, int to) const {
  int64_t out = 1;
  for (int i = from; i < to; ++i) out = checked_product(out, data()[i]);
  return out;
}

bool Shape::operator==(const Shape& other) const { return std::ranges::equal(dims(), other.dims()); }

Shape Shape::with(int axis, int64_t dim) const {
  Few<int64_t> dims;
  dims.append(this->dims());
  dims[size_t(axis)] = dim;
  return Shape(dims);
}

// Sentences that refuse a shape are put together where it suits, too.
std::string Shape::str() const {
  std::string out = "[";
  for (int i = 0; i < rank_; ++i) {
    char digits[std::numeric_limits<int64_t>::digits10 + 2];
    if (i) out += ',';
    out.append(digits, std::to_chars(digits, std::end(digits), data()[i]).ptr);
  }
  out += ']';
  return out;
}

int checked_axis(int64_t axis, int rank, const char* what) {
  require(axis >= -rank && axis < rank, what, " ", axis, " is outside [", -rank, ",", rank, ")");
  return int(axis < 0 ? axis + rank : axis);
}

Shape broadcast(const Shape& a, const Shape& b) {
  if (b.rank() == 0 || a == b) return a;
  if (a.rank() == 0) return b;
  const int rank = std::max(a.rank(), b.rank());
  Few<int64_t> dims;
  for (int i = 0; i < rank; ++i) {
    const int ia = i - (rank - a.rank()), ib = i - (rank - b.rank());
    const int64_t da = ia < 0 ? 1 : a[ia], db = ib < 0 ? 1 : b[ib];
    if (da != db && da != 1 && db != 1)
      fail(Code::invalid_input, "shapes ", a.str(), " and ", b.str(), " cannot be broadcast together");
    dims.push_back(da == 1 ? db : da);
  }
  return Shape(dims);
}

bool broadcasts_to(const Shape& from, const Shape& to) {
  const int lead = to.rank() - from.rank();
  for (int i = 0; i < from.rank(); ++i)
    if (lead < 0 || (from[i] != 1 && from[i] != to[lead + i])) return false;
  return true;
}

std::vector<int64_t> strides_of(const Shape& shape) {
  std::vector<int64_t> strides(static_cast<size_t>(shape.rank()));
  if (shape.count() == 0) return strides;  // other dimensions' product may not fit
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[size_t(i)] = step;
    step *= shape[i];
  }
  return strides;
}

}  // namespace encore::ops
