// Dimensions of a tensor: any number of them, never negative, and with a count of elements that fits in 63 bits.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace encore::ops {

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  // Throws Error{invalid_input} on a negative dimension or an overflowing count.
  explicit Shape(std::span<const int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return data()[axis]; }
  int64_t back() const { return data()[rank_ - 1]; }
  std::span<const int64_t> dims() const { return {data(), size_t(rank_)}; }
  int64_t count() const { return count_; }
  int64_t count(int from, int to) const;  // product of dims [from, to)
  bool operator==(const Shape& other) const;
  bool is_scalar() const { return count_ == 1 && rank_ <= 1; }  // a vector of one value passes for one
  Shape with(int axis, int64_t dim) const;                      // the same but for one dimension
  std::string str() const;                                      // "[2,3]"

 private:
  static constexpr int kFew = 8;
  const int64_t* data() const { return rank_ <= kFew ? few_.data() : many_.data(); }

  std::array<int64_t, kFew> few_{};
  std::vector<int64_t> many_;  // all of them, if there are more than kFew
  int rank_ = 0;
  int64_t count_ = 1;
};

// The axis made non-negative; `what` names the node's argument in the error.
int checked_axis(int64_t axis, int rank, const char* what = "axis");
// NumPy's rule. Throws Error{invalid_input} naming both shapes.
Shape broadcast(const Shape& a, const Shape& b);
// Whether that gives `to`: ONNX's unidirectional broadcast.
bool broadcasts_to(const Shape& from, const Shape& to);
// a * b, or Error{invalid_input} if it does not fit.
int64_t checked_product(int64_t a, int64_t b);

// What kernels count in an int is below: two such counts add up to no more than an int has.
inline constexpr int64_t kIntCap = int64_t(1) << 30;

// Row-major strides in elements; zeros if there are none.
std::vector<int64_t> strides_of(const Shape& shape);

}  // namespace encore::ops
