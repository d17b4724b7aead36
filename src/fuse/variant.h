// A node like another but for what is said of it here, or one of fusion's own.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/op.h"

namespace encore::fuse {

using ops::NodeInfo;
using ops::Tensor;
using ops::Type;

class Variant final : public NodeInfo {
 public:
  struct Slot {
    bool present = false;
    Type type = Type::undefined;
    std::optional<std::vector<int64_t>> dims = {};
    const Tensor* constant = nullptr;  // null: that of the other node
  };

  explicit Variant(std::shared_ptr<const NodeInfo> like);
  // One whose attributes are only those given below.
  Variant(std::string op_type, const ops::Settings& settings, std::vector<Slot> inputs, std::vector<Slot> outputs);

  void set_name(std::string name) { name_ = std::move(name); }
  void set_operator(std::string domain, std::string op_type, int since_version) {
    domain_ = std::move(domain), op_type_ = std::move(op_type), since_version_ = since_version;
  }
  void set(const std::string& attribute, ops::Attribute value) { attributes_[attribute] = std::move(value); }
  std::vector<Slot>& inputs() { return inputs_; }
  std::vector<Slot>& outputs() { return outputs_; }

  const std::string& name() const override { return name_; }
  const std::string& domain() const override { return domain_; }
  const std::string& op_type() const override { return op_type_; }
  int since_version() const override { return since_version_; }
  int input_count() const override { return int(inputs_.size()); }
  int output_count() const override { return int(outputs_.size()); }
  bool has_input(int i) const override { return input(i).present; }
  bool has_output(int i) const override { return i < output_count() && outputs_[size_t(i)].present; }
  Type input_type(int i) const override { return input(i).type; }
  Type output_type(int i) const override { return i < output_count() ? outputs_[size_t(i)].type : Type::undefined; }
  std::optional<std::vector<int64_t>> input_dims(int i) const override { return input(i).dims; }
  const Tensor* constant_input(int i) const override {
    return input(i).constant ? input(i).constant : like_ ? like_->constant_input(i) : nullptr;
  }
  std::optional<int64_t> find_int(const char* attribute) const override;
  std::optional<float> find_float(const char* attribute) const override;
  std::optional<std::string> find_string(const char* attribute) const override;
  std::optional<std::vector<int64_t>> find_ints(const char* attribute) const override;
  std::optional<std::vector<float>> find_floats(const char* attribute) const override;
  const Tensor* find_tensor(const char* attribute) const override;
  std::optional<std::vector<std::string>> find_strings(const char* attribute) const override;
  ops::Attributes attributes() const override;
  bool kernel_has_strings() const override { return true; }  // it is the graph that is read

 private:
  const Slot& input(int i) const {
    static const Slot absent;
    return i < input_count() ? inputs_[size_t(i)] : absent;
  }
  template <class T>
  const T* find(const char* attribute) const {
    const auto found = attributes_.find(attribute);
    return found == attributes_.end() ? nullptr : std::get_if<T>(&found->second);
  }

  const std::shared_ptr<const NodeInfo> like_;
  std::string name_, domain_, op_type_;
  int since_version_ = 0;
  std::vector<Slot> inputs_, outputs_;
  ops::Attributes attributes_;
};

// A node that somebody else keeps.
inline std::shared_ptr<const NodeInfo> borrowed(const NodeInfo& node) { return {std::shared_ptr<void>(), &node}; }

}  // namespace encore::fuse
