#include "fuse/variant.h"

namespace encore::fuse {

Variant::Variant(std::shared_ptr<const NodeInfo> like)
    : like_(std::move(like)),
      name_(like_->name()),
      domain_(like_->domain()),
      op_type_(like_->op_type()),
      since_version_(like_->since_version()) {
  settings = like_->settings;
  for (int i = 0; i < like_->input_count(); ++i)
    inputs_.push_back({like_->has_input(i), like_->input_type(i), like_->input_dims(i)});
  for (int i = 0; i < like_->output_count(); ++i) outputs_.push_back({like_->has_output(i), like_->output_type(i)});
}

Variant::Variant(std::string op_type, const ops::Settings& given, std::vector<Slot> inputs, std::vector<Slot> outputs)
    : op_type_(std::move(op_type)), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {
  settings = given;
}

std::optional<int64_t> Variant::find_int(const char* attribute) const {
  if (const auto* value = find<int64_t>(attribute)) return *value;
  return like_ ? like_->find_int(attribute) : std::nullopt;
}
std::optional<float> Variant::find_float(const char* attribute) const {
  if (const auto* value = find<float>(attribute)) return *value;
  return like_ ? like_->find_float(attribute) : std::nullopt;
}
std::optional<std::string> Variant::find_string(const char* attribute) const {
  if (const auto* value = find<std::string>(attribute)) return *value;
  return like_ ? like_->find_string(attribute) : std::nullopt;
}
std::optional<std::vector<int64_t>> Variant::find_ints(const char* attribute) const {
  if (const auto* value = find<std::vector<int64_t>>(attribute)) return *value;
  return like_ ? like_->find_ints(attribute) : std::nullopt;
}
std::optional<std::vector<float>> Variant::find_floats(const char* attribute) const {
  if (const auto* value = find<std::vector<float>>(attribute)) return *value;
  return like_ ? like_->find_floats(attribute) : std::nullopt;
}
const Tensor* Variant::find_tensor(const char* attribute) const {
  if (const auto* value = find<const Tensor*>(attribute)) return *value;
  return like_ ? like_->find_tensor(attribute) : nullptr;
}
std::optional<std::vector<std::string>> Variant::find_strings(const char* attribute) const {
  return like_ ? like_->find_strings(attribute) : std::nullopt;
}
ops::Attributes Variant::attributes() const {
  ops::Attributes all = attributes_;
  if (like_) all.merge(like_->attributes());
  return all;
}

}  // namespace encore::fuse
