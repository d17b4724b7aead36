#include "fuse/own_tensor.h"

#include <cstring>

#include "fuse/text_numbers.h"

namespace encore::fuse {

using ops::Type;

namespace {

std::shared_ptr<OwnTensor> own(Type type, const ops::Shape& shape) {
  auto made = std::make_shared<OwnTensor>();
  made->view = {type, ops::Where::host, shape, nullptr};
  made->bytes.resize(made->view.bytes());
  made->view.data = made->bytes.data();
  return made;
}

}  // namespace

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
  for (size_t i = 0; i < numbers.size(); ++i)
    visit_element(type, made->bytes.data() + i * device::size_bytes(type),
                  [&](auto* at) { *at = std::remove_pointer_t<decltype(at)>(float(numbers[i])); });
  return made;
}

std::vector<double> numbers_of(const ops::Tensor& constant) {
  constexpr ops::Types kFloats = ops::kHalves | ops::Types{Type::f32};
  std::vector<double> numbers;
  const auto* at = static_cast<char*>(constant.data);
  for (int64_t i = 0; kFloats.has(constant.type) && i < constant.count(); ++i, at += device::size_bytes(constant.type))
    visit_element(constant.type, const_cast<char*>(at), [&](auto* element) { numbers.push_back(float(*element)); });
  return numbers;
}

}  // namespace encore::fuse
