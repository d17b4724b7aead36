// A node that says what a test has put into it.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "ops/op.h"

namespace encore::ops {

class Node final : public NodeInfo {
 public:
  explicit Node(std::string op, std::string domain = "com.microsoft")
      : op_(std::move(op)), domain_(std::move(domain)) {}

  std::vector<bool> inputs, outputs;  // which are there
  std::map<std::string, int64_t> ints;
  std::map<std::string, std::string> strings;

  const std::string& name() const override { return op_; }
  const std::string& domain() const override { return domain_; }
  const std::string& op_type() const override { return op_; }
  int since_version() const override { return 1; }
  int input_count() const override { return int(inputs.size()); }
  int output_count() const override { return int(outputs.size()); }
  bool has_input(int i) const override { return inputs[size_t(i)]; }
  bool has_output(int i) const override { return outputs[size_t(i)]; }
  Type input_type(int) const override { return Type::f32; }
  Type output_type(int) const override { return Type::f32; }
  std::optional<std::vector<int64_t>> input_dims(int) const override { return {}; }
  const Tensor* constant_input(int) const override { return nullptr; }
  std::optional<int64_t> find_int(const char* attribute) const override { return find(ints, attribute); }
  std::optional<float> find_float(const char*) const override { return {}; }
  std::optional<std::string> find_string(const char* attribute) const override { return find(strings, attribute); }
  std::optional<std::vector<int64_t>> find_ints(const char*) const override { return {}; }
  std::optional<std::vector<float>> find_floats(const char*) const override { return {}; }
  std::optional<std::vector<std::string>> find_strings(const char*) const override { return {}; }
  bool kernel_has_strings() const override { return true; }
  const Tensor* find_tensor(const char*) const override { return nullptr; }

 private:
  template <class T>
  static std::optional<T> find(const std::map<std::string, T>& map, const char* attribute) {
    const auto found = map.find(attribute);
    return found == map.end() ? std::nullopt : std::optional(found->second);
  }

  std::string op_, domain_;
};

}  // namespace encore::ops
