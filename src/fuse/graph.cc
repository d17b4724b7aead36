#include "fuse/graph.h"

namespace encore::fuse {

std::vector<int> Graph::producers() const {
  std::vector<int> of(values.size(), -1);
  for (size_t n = 0; n < nodes.size(); ++n)
    for (int value : nodes[n].outputs)
      if (value >= 0) of[size_t(value)] = int(n);
  return of;
}

std::vector<std::vector<int>> Graph::consumers() const {
  std::vector<std::vector<int>> of(values.size());
  for (size_t n = 0; n < nodes.size(); ++n)
    for (int value : nodes[n].inputs)
      if (value >= 0) of[size_t(value)].push_back(int(n));
  return of;
}

Makers Graph::makers() const {
  const std::vector<int> producers = this->producers();
  Makers of(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n)
    for (const auto* values : {&nodes[n].inputs, &nodes[n].read_inside})
      for (int value : *values)
        if (value >= 0 && producers[size_t(value)] >= 0) of[n].push_back(producers[size_t(value)]);
  return of;
}

Variant::Variant(const NodeInfo& like)
    : like_(&like),
      name_(like.name()),
      domain_(like.domain()),
      op_type_(like.op_type()),
      since_version_(like.since_version()) {
  settings = like.settings;
  for (int i = 0; i < like.input_count(); ++i)
    inputs_.push_back({like.has_input(i), like.input_type(i), like.input_dims(i)});
  for (int i = 0; i < like.output_count(); ++i) outputs_.push_back({like.has_output(i), like.output_type(i)});
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
  return like_ ? like_->find_tensor(attribute) : nullptr;
}
std::optional<std::vector<std::string>> Variant::find_strings(const char* attribute) const {
  return like_ ? like_->find_strings(attribute) : std::nullopt;
}

}  // namespace encore::fuse
