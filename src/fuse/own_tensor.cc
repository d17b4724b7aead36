#include "fuse/own_tensor.h"

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

// Whether what is lost in each column is within that, root mean square of either.
template <class T>
bool scale_columns(const T* from, T* to, size_t count, const std::vector<double>& factors) {
  std::vector<double> held(factors.size()), lost(factors.size());
  for (size_t row = 0; row < count; row += factors.size()) {
    for (size_t column = 0; column < factors.size(); ++column) {
      const double scaled = float(from[row + column]) * factors[column];
      const T kept(static_cast<float>(scaled));
      const double error = scaled - float(kept);
      to[row + column] = kept;
      held[column] += scaled * scaled;
      lost[column] += error * error;
    }
  }
  for (size_t column = 0; column < factors.size(); ++column)
    if (!(lost[column] <= kUnit<T> * kUnit<T> * held[column])) return false;
  return true;
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
