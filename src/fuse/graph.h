// A graph as fusion sees it: nodes and the values between them, by number.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fuse/convex.h"
#include "ops/op.h"

namespace encore::fuse {

using ops::NodeInfo;
using ops::Tensor;
using ops::Type;

struct Value {
  std::string name;
  Type type = Type::undefined;
  // Dimensions that the model only names are below -1, a number for each name; unknown ones are -1.
  std::optional<std::vector<int64_t>> dims;
  bool is_constant = false;
  const Tensor* constant = nullptr;  // in host memory, once a plan is made
  bool is_output = false;            // of the graph, or read by a graph inside a node
};

struct Node {
  const NodeInfo* info;
  std::vector<int> inputs, outputs;   // values; -1 where absent
  bool takable = true;                // Encore has a kernel for it
  bool is_free = true;                // no other provider has taken it
  std::vector<int> read_inside = {};  // values that graphs inside of it read
};

struct Graph {
  std::vector<Node> nodes;  // in an order in which they can run
  std::vector<Value> values;

  std::vector<int> producers() const;               // by value: a node, or -1
  std::vector<std::vector<int>> consumers() const;  // by value: nodes, one for each reading
  Makers makers() const;
};

// A node like another, but for what is said of it here.
class Variant final : public NodeInfo {
 public:
  using Attribute = std::variant<int64_t, float, std::string, std::vector<int64_t>, std::vector<float>>;
  struct Slot {
    bool present = false;
    Type type = Type::undefined;
    std::optional<std::vector<int64_t>> dims = {};
    const Tensor* constant = nullptr;  // null: that of the other node
  };

  explicit Variant(const NodeInfo& like);
  // One whose attributes are only those given below.
  Variant(std::string op_type, const ops::Settings& settings, std::vector<Slot> inputs, std::vector<Slot> outputs);

  void set_name(std::string name) { name_ = std::move(name); }
  void set_operator(std::string domain, std::string op_type, int since_version) {
    domain_ = std::move(domain), op_type_ = std::move(op_type), since_version_ = since_version;
  }
  void set(const std::string& attribute, Attribute value) { attributes_[attribute] = std::move(value); }
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

  const NodeInfo* like_ = nullptr;
  std::string name_, domain_, op_type_;
  int since_version_ = 0;
  std::vector<Slot> inputs_, outputs_;
  std::map<std::string, Attribute, std::less<>> attributes_;
};

}  // namespace encore::fuse
