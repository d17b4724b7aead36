// A node as ops see it, read from onnxruntime: from its graph when nodes are claimed, from its kernel info when a
// kernel is made.
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "ops/op.h"
#include "plugin/host/api_version.h"
#include "plugin/host/fence.h"

namespace encore::plugin {

// What onnxruntime has in an OrtValue that holds a dense tensor; throws OrtError for anything else.
struct TensorView {
  ONNXTensorElementDataType type;
  std::span<const int64_t> dims;
  void* data;
};
inline TensorView view_of(const OrtValue* value) {
  const OrtApi& api = *ort().api;
  ONNXTensorElementDataType type;
  const int64_t* dims;
  size_t rank;
  const void* data;
  check(api.GetTensorElementTypeAndShapeDataReference(value, &type, &dims, &rank));
  check(api.GetTensorData(value, &data));
  return {type, std::span(dims, rank), const_cast<void*>(data)};
}
ops::Tensor tensor_of(const OrtValue* value, ops::Where where);
// onnxruntime numbers the newest types otherwise than ONNX. Undefined: a type that Encore does not know.
ops::Type type_of(ONNXTensorElementDataType type);

struct ValueType {
  ops::Type type = ops::Type::undefined;  // if it is no tensor
  std::optional<std::vector<int64_t>> dims = {};
};
ValueType type_of(const OrtValueInfo* value);

// A node without a name goes by the first value that it makes: "(unnamed, makes y)".
bool is_unnamed(std::string_view name);

// What both sources share: names, slots and the tensors handed out.
class NodeInfoBase : public ops::NodeInfo {
 public:
  const std::string& name() const override { return name_; }
  const std::string& domain() const override { return domain_; }
  const std::string& op_type() const override { return op_type_; }
  int since_version() const override { return since_version_; }
  int input_count() const override { return int(inputs_.size()); }
  int output_count() const override { return int(outputs_.size()); }
  bool has_input(int i) const override { return i < input_count() && inputs_[size_t(i)].present; }
  bool has_output(int i) const override { return i < output_count() && outputs_[size_t(i)].present; }
  ops::Type input_type(int i) const override {
    return i < input_count() ? inputs_[size_t(i)].type : ops::Type::undefined;
  }
  ops::Type output_type(int i) const override {
    return i < output_count() ? outputs_[size_t(i)].type : ops::Type::undefined;
  }
  std::optional<std::vector<int64_t>> input_dims(int i) const override {
    return i < input_count() ? inputs_[size_t(i)].dims : std::nullopt;
  }
  bool kernel_has_strings() const override;
  std::optional<std::vector<int64_t>> output_dims(int i) const {
    return i < output_count() ? outputs_[size_t(i)].dims : std::nullopt;
  }
  const std::string& input_value(int i) const { return inputs_[size_t(i)].value; }  // its name
  const std::string& output_value(int i) const { return outputs_[size_t(i)].value; }

 protected:
  struct Slot {
    bool present = false;
    std::string value;
    ops::Type type = ops::Type::undefined;
    std::optional<std::vector<int64_t>> dims;
  };
  static Slot slot_of(const OrtTypeInfo* type);
  void name_if_unnamed();  // once the outputs are known

  std::string name_, domain_, op_type_;
  int since_version_ = 0;
  std::vector<Slot> inputs_, outputs_;
  mutable std::deque<ops::Tensor> tensors_;                  // addresses are handed out
  mutable std::vector<std::shared_ptr<void>> owned_values_;  // what the tensors look into
};

class GraphNodeInfo : public NodeInfoBase {
 public:
  explicit GraphNodeInfo(const OrtNode* node);
  const OrtNode* node() const { return node_; }
  bool is_constant(int i) const;
  // Null if it is absent.
  const OrtValueInfo* input_info(int i) const { return has_input(i) ? input_values_[size_t(i)] : nullptr; }

  const ops::Tensor* constant_input(int i) const override;
  std::optional<int64_t> find_int(const char* attribute) const override;
  std::optional<float> find_float(const char* attribute) const override;
  std::optional<std::string> find_string(const char* attribute) const override;
  std::optional<std::vector<int64_t>> find_ints(const char* attribute) const override;
  std::optional<std::vector<float>> find_floats(const char* attribute) const override;
  const ops::Tensor* find_tensor(const char* attribute) const override;
  std::optional<std::vector<std::string>> find_strings(const char* attribute) const override;
  ops::Attributes attributes() const override;

 private:
  const OrtOpAttr* find(const char* attribute, OrtOpAttrType type) const;
  template <class T>
  std::vector<T> read_array(const OrtOpAttr* attribute, OrtOpAttrType type) const;

  const OrtNode* node_;
  std::vector<const OrtValueInfo*> input_values_;
};

class KernelNodeInfo : public NodeInfoBase {
 public:
  KernelNodeInfo(const OrtKernelInfo* info, int device);

  bool is_constant(int i) const;
  const ops::Tensor* constant_input(int i) const override;
  std::optional<int64_t> find_int(const char* attribute) const override;
  std::optional<float> find_float(const char* attribute) const override;
  std::optional<std::string> find_string(const char* attribute) const override;
  std::optional<std::vector<int64_t>> find_ints(const char* attribute) const override;
  std::optional<std::vector<float>> find_floats(const char* attribute) const override;
  const ops::Tensor* find_tensor(const char* attribute) const override;
  std::optional<std::vector<std::string>> find_strings(const char* attribute) const override;

 private:
  const OrtValue* find_constant(int i) const;

  const OrtKernelInfo* info_;
  int device_;
};

}  // namespace encore::plugin
