#include "fuse/own_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "fuse/text_numbers.h"

namespace encore::fuse {

using ops::Type;

namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

// The relative error of one rounding, at most.
template <class T>
constexpr float kUnit = std::numeric_limits<T>::epsilon() / 2;
template <>
constexpr float kUnit<device::Half> = 0x1p-11f;
template <>
constexpr float kUnit<device::BFloat16> = 0x1p-8f;

// Rounds numbers, and sees whether what is lost is within that, root mean square of either.
template <class T>
class Rounding {
 public:
  T operator()(double number) {
    const T kept(static_cast<float>(number));
    const double error = number - float(kept);
    held_ += number * number;
    lost_ += error * error;
    return kept;
  }
  bool is_fine() const { return lost_ <= kUnit<T> * kUnit<T> * held_; }

 private:
  double held_ = 0, lost_ = 0;
};

template <class T>
bool are_fine(const std::vector<Rounding<T>>& roundings) {
  return std::ranges::all_of(roundings, &Rounding<T>::is_fine);
}

// Whether little is lost in each column.
template <class T>
bool scale_columns(const T* from, T* to, size_t count, const std::vector<double>& factors) {
  std::vector<Rounding<T>> columns(factors.size());
  for (size_t row = 0; row < count; row += factors.size())
    for (size_t column = 0; column < factors.size(); ++column)
      to[row + column] = columns[column](float(from[row + column]) * factors[column]);
  return are_fine(columns);
}

// Likewise.
template <class T>
bool round_rows(const std::vector<double>& numbers, T* to, size_t count) {
  std::vector<Rounding<T>> rows(count);
  for (size_t i = 0; i < numbers.size(); ++i) to[i] = rows[i / (numbers.size() / count)](numbers[i]);
  return are_fine(rows);
}

}  // namespace

std::shared_ptr<OwnTensor> own(Type type, const ops::Shape& shape) {
  auto made = std::make_shared<OwnTensor>();
  made->view = {type, ops::Where::host, shape, nullptr};
  made->bytes.resize(made->view.bytes());
  made->view.data = made->bytes.data();
  return made;
}

std::shared_ptr<OwnTensor> own(Type type, const ops::Shape& shape, const void* data) {
  auto made = own(type, shape);
  if (!made->bytes.empty()) std::memcpy(made->bytes.data(), data, made->bytes.size());
  return made;
}

std::shared_ptr<OwnTensor> own_ints(const std::vector<int64_t>& list) {
  return own(Type::i64, ops::Shape{int64_t(list.size())}, list.data());
}

std::shared_ptr<OwnTensor> own_numbers(Type type, const ops::Shape& shape, const std::vector<double>& numbers) {
  auto made = own(type, shape);
  visit_element(type, made->bytes.data(), [&](auto* at) {
    for (const double number : numbers) *at++ = std::remove_pointer_t<decltype(at)>(float(number));
  });
  return made;
}

std::shared_ptr<OwnTensor> own_finite_numbers(Type type, const ops::Shape& shape, const std::vector<double>& numbers) {
  auto made = own_numbers(type, shape, numbers);
  const std::vector<double> rounded = numbers_of(made->view);
  return std::ranges::all_of(rounded, [](double number) { return std::isfinite(number); }) ? made : nullptr;
}

std::shared_ptr<OwnTensor> own_rows(Type type, const ops::Shape& shape, const std::vector<double>& numbers) {
  if (!kServed.has(type)) return nullptr;
  auto made = own(type, shape);
  bool is_kept = false;
  visit_element(type, made->bytes.data(), [&](auto* to) { is_kept = round_rows(numbers, to, size_t(shape[0])); });
  return is_kept ? made : nullptr;
}

std::vector<double> numbers_of(const ops::Tensor& constant) {
  if (!kServed.has(constant.type)) return {};
  std::vector<double> numbers(size_t(constant.count()));
  visit_element(constant.type, constant.data, [&](const auto* at) {
    for (double& number : numbers) number = float(*at++);
  });
  return numbers;
}

std::shared_ptr<OwnTensor> scaled_columns(const ops::Tensor& constant, const std::vector<double>& factors) {
  if (!kServed.has(constant.type)) return nullptr;
  auto made = own(constant.type, constant.shape);
  bool is_kept = false;
  visit_element(constant.type, constant.data, [&]<class T>(const T* from) {
    is_kept = scale_columns(from, reinterpret_cast<T*>(made->bytes.data()), size_t(constant.count()), factors);
  });
  return is_kept ? made : nullptr;
}

}  // namespace encore::fuse
