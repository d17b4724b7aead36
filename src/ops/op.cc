#include "ops/op.h"

namespace encore::ops {

std::string label_of(std::string_view op_type, std::string_view name) { return text(op_type, " node '", name, "'"); }

const Tensor& Context::input(int i) {
  const Tensor* tensor = find_input(i);
  require(tensor != nullptr, "input ", i, " is missing");
  return *tensor;
}

std::vector<std::string> NodeInfo::get_strings(const char* attribute, const std::vector<std::string>& otherwise) const {
  const auto found = find_strings(attribute);
  if (!found) return otherwise;
  if (*found != otherwise && !kernel_has_strings())
    fail(Code::not_supported, "attribute '", attribute,
         "' is a list of strings, which this host does not tell kernels; newer ones do");
  return *found;
}

std::vector<int64_t> host_ints(const Tensor& tensor, const char* what) {
  require(tensor.where == Where::host, what, " is not in host memory");
  if (tensor.shape.rank() > 1 && tensor.shape.back() != tensor.count())
    fail(Code::invalid_input, what, " has shape ", tensor.shape.str(), "; it must be a vector");
  std::vector<int64_t> out(static_cast<size_t>(tensor.count()));
  for (size_t i = 0; i < out.size(); ++i) {
    if (tensor.type == Type::i64)
      out[i] = tensor.as<const int64_t>()[i];
    else if (tensor.type == Type::i32)
      out[i] = tensor.as<const int32_t>()[i];
    else
      fail(Code::invalid_input, what, " has type ", device::name(tensor.type), "; it must be int64 or int32");
  }
  return out;
}

}  // namespace encore::ops
