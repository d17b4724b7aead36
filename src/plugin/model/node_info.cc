#include "plugin/model/node_info.h"

#include <algorithm>

#include "device/device.h"
#include "device/memory.h"
#include "plugin/host/fence.h"
#include "plugin/host/memory_kind.h"

namespace encore::plugin {

using ops::Tensor;
using ops::Type;
using ops::Where;

Type type_of(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT2: return Type::u2;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT2: return Type::i2;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0: return Type::f8e8m0;
    default: return type <= ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT4E2M1 ? Type(int(type)) : Type::undefined;
  }
}

namespace {

constexpr std::string_view kUnnamed = "(unnamed, makes ";

}  // namespace

bool is_unnamed(std::string_view name) { return name.empty() || name.starts_with(kUnnamed); }

void NodeInfoBase::name_if_unnamed() {
  const auto first = std::ranges::find_if(outputs_, &Slot::present);
  if (name_.empty() && first != outputs_.end()) name_ = text(kUnnamed, first->value, ")");
}
bool NodeInfoBase::kernel_has_strings() const { return ort().version >= 25; }

Tensor tensor_of(const OrtValue* value, Where where) {
  const TensorView view = view_of(value);
  return {type_of(view.type), where, ops::Shape(view.dims), view.data};
}

namespace {

ValueType read_type(const OrtTypeInfo* type) {
  ValueType read;
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  if (!type) return read;
  ONNXType kind;
  check(ort().api->GetOnnxTypeFromTypeInfo(type, &kind));
  if (kind != ONNX_TYPE_TENSOR) return read;
  check(ort().api->CastTypeInfoToTensorInfo(type, &tensor));
  if (!tensor) return read;
  ONNXTensorElementDataType element;
  check(ort().api->GetTensorElementType(tensor, &element));
  read.type = type_of(element);
  size_t rank;
  check(ort().api->GetDimensionsCount(tensor, &rank));
  std::vector<int64_t> dims(rank);
  check(ort().api->GetDimensions(tensor, dims.data(), rank));
  // An unknown rank reads like a scalar here, so no rank at all tells nothing.
  if (rank > 0) read.dims = std::move(dims);
  return read;
}

}  // namespace

ValueType type_of(const OrtValueInfo* value) {
  const OrtTypeInfo* type = nullptr;
  check(ort().api->GetValueInfoTypeInfo(value, &type));
  return read_type(type);
}

NodeInfoBase::Slot NodeInfoBase::slot_of(const OrtTypeInfo* type) {
  ValueType read = read_type(type);
  return {.present = true, .value = {}, .type = read.type, .dims = std::move(read.dims)};
}

// ---- from the graph

GraphNodeInfo::GraphNodeInfo(const OrtNode* node) : node_(node) {
  const OrtApi& api = *ort().api;
  const char* text;
  check(api.Node_GetName(node, &text));
  name_ = text;
  check(api.Node_GetDomain(node, &text));
  domain_ = text == std::string_view("ai.onnx") ? "" : text;
  check(api.Node_GetOperatorType(node, &text));
  op_type_ = text;
  check(api.Node_GetSinceVersion(node, &since_version_));
  size_t count;
  const auto read = [&](std::vector<const OrtValueInfo*>& values, std::vector<Slot>& slots) {
    for (const OrtValueInfo* value : values) {
      const OrtTypeInfo* type = nullptr;
      // Where onnxruntime has changed a node's layout, an output that nobody wants is a value without a type.
      OrtStatus* const status = value ? api.GetValueInfoTypeInfo(value, &type) : nullptr;
      if (status) api.ReleaseStatus(status);
      if (!value || status) {
        slots.emplace_back();
        continue;
      }
      slots.push_back(slot_of(type));
      check(api.GetValueInfoName(value, &text));
      slots.back().value = text;
    }
  };
  check(api.Node_GetNumInputs(node, &count));
  input_values_.resize(count);
  check(api.Node_GetInputs(node, input_values_.data(), count));
  read(input_values_, inputs_);
  check(api.Node_GetNumOutputs(node, &count));
  std::vector<const OrtValueInfo*> outputs(count);
  check(api.Node_GetOutputs(node, outputs.data(), count));
  read(outputs, outputs_);
  name_if_unnamed();
}

bool GraphNodeInfo::is_constant(int i) const {
  bool constant = false;
  if (has_input(i)) check(ort().api->ValueInfo_IsConstantInitializer(input_values_[size_t(i)], &constant));
  return constant;
}

const Tensor* GraphNodeInfo::constant_input(int i) const {
  if (!is_constant(i)) return nullptr;
  const OrtValue* value = nullptr;
  check(ort().api->ValueInfo_GetInitializerValue(input_values_[size_t(i)], &value));
  if (!value) return nullptr;
  return &tensors_.emplace_back(tensor_of(value, Where::host));
}

const OrtOpAttr* GraphNodeInfo::find(const char* attribute, OrtOpAttrType wanted) const {
  const OrtOpAttr* found = nullptr;
  if (OrtStatus* status = ort().api->Node_GetAttributeByName(node_, attribute, &found)) {  // "not found" is an answer
    ort().api->ReleaseStatus(status);
    return nullptr;
  }
  if (!found) return nullptr;
  OrtOpAttrType type;
  check(ort().api->OpAttr_GetType(found, &type));
  if (type == ORT_OP_ATTR_UNDEFINED) return nullptr;
  require(type == wanted, "attribute '", attribute, "' has an unexpected type");
  return found;
}

template <class T>
std::vector<T> GraphNodeInfo::read_array(const OrtOpAttr* attribute, OrtOpAttrType type) const {
  size_t bytes = 0;
  if (OrtStatus* status = ort().api->ReadOpAttr(attribute, type, nullptr, 0, &bytes)) ort().api->ReleaseStatus(status);
  std::vector<T> values(bytes / sizeof(T));
  if (!values.empty()) check(ort().api->ReadOpAttr(attribute, type, values.data(), bytes, &bytes));
  return values;
}

std::optional<int64_t> GraphNodeInfo::find_int(const char* name) const {
  const OrtOpAttr* attribute = find(name, ORT_OP_ATTR_INT);
  if (!attribute) return std::nullopt;
  int64_t value;
  size_t bytes;
  check(ort().api->ReadOpAttr(attribute, ORT_OP_ATTR_INT, &value, sizeof value, &bytes));
  return value;
}

std::optional<float> GraphNodeInfo::find_float(const char* name) const {
  const OrtOpAttr* attribute = find(name, ORT_OP_ATTR_FLOAT);
  if (!attribute) return std::nullopt;
  float value;
  size_t bytes;
  check(ort().api->ReadOpAttr(attribute, ORT_OP_ATTR_FLOAT, &value, sizeof value, &bytes));
  return value;
}

std::optional<std::string> GraphNodeInfo::find_string(const char* name) const {
  const OrtOpAttr* attribute = find(name, ORT_OP_ATTR_STRING);
  if (!attribute) return std::nullopt;
  const std::vector<char> chars = read_array<char>(attribute, ORT_OP_ATTR_STRING);
  return std::string(chars.begin(), std::find(chars.begin(), chars.end(), '\0'));
}

std::optional<std::vector<int64_t>> GraphNodeInfo::find_ints(const char* name) const {
  const OrtOpAttr* attribute = find(name, ORT_OP_ATTR_INTS);
  if (!attribute) return std::nullopt;
  return read_array<int64_t>(attribute, ORT_OP_ATTR_INTS);
}

std::optional<std::vector<float>> GraphNodeInfo::find_floats(const char* name) const {
  const OrtOpAttr* attribute = find(name, ORT_OP_ATTR_FLOATS);
  if (!attribute) return std::nullopt;
  return read_array<float>(attribute, ORT_OP_ATTR_FLOATS);
}

const Tensor* GraphNodeInfo::find_tensor(const char* name) const {
  const OrtOpAttr* attribute = find(name, ORT_OP_ATTR_TENSOR);
  if (!attribute) return nullptr;
  OrtValue* value = nullptr;
  check(ort().api->OpAttr_GetTensorAttributeAsOrtValue(attribute, &value));
  owned_values_.emplace_back(value, [](void* p) { ort().api->ReleaseValue(static_cast<OrtValue*>(p)); });
  return &tensors_.emplace_back(tensor_of(value, Where::host));
}

std::optional<std::vector<std::string>> GraphNodeInfo::find_strings(const char* name) const {
  const OrtOpAttr* attribute = find(name, ORT_OP_ATTR_STRINGS);
  if (!attribute) return std::nullopt;
  const std::vector<char> chars = read_array<char>(attribute, ORT_OP_ATTR_STRINGS);  // each ends with a zero
  std::vector<std::string> strings;
  for (auto from = chars.begin(); from != chars.end();) {
    const auto end = std::find(from, chars.end(), '\0');
    strings.emplace_back(from, end);
    from = end == chars.end() ? end : end + 1;
  }
  return strings;
}

ops::Attributes GraphNodeInfo::attributes() const {
  const OrtApi& api = *ort().api;
  size_t count = 0;
  check(api.Node_GetNumAttributes(node_, &count));
  std::vector<const OrtOpAttr*> list(count);
  if (count) check(api.Node_GetAttributes(node_, list.data(), count));
  ops::Attributes all;
  for (const OrtOpAttr* attribute : list) {
    const char* name = nullptr;
    OrtOpAttrType type;
    check(api.OpAttr_GetName(attribute, &name));
    check(api.OpAttr_GetType(attribute, &type));
    ops::Attribute& value = all[name];
    switch (type) {
      case ORT_OP_ATTR_INT: value = *find_int(name); break;
      case ORT_OP_ATTR_FLOAT: value = *find_float(name); break;
      case ORT_OP_ATTR_STRING: value = *find_string(name); break;
      case ORT_OP_ATTR_INTS: value = *find_ints(name); break;
      case ORT_OP_ATTR_FLOATS: value = *find_floats(name); break;
      case ORT_OP_ATTR_TENSOR: value = find_tensor(name); break;
      default: break;
    }
  }
  return all;
}

// ---- from a kernel's info

namespace {

// Reads a string which the API hands out in two calls.
template <class Get>
std::optional<std::string> read_string(Get get) {
  size_t size = 0;
  if (OrtStatus* status = get(nullptr, &size)) {
    ort().api->ReleaseStatus(status);
    return std::nullopt;
  }
  std::string text(size, '\0');
  check(get(text.data(), &size));
  text.resize(size ? size - 1 : 0);  // the terminator is counted
  return text;
}

template <class T, class Get>
std::optional<std::vector<T>> read_attribute_array(Get get) {
  size_t size = 0;
  if (OrtStatus* status = get(nullptr, &size)) {
    ort().api->ReleaseStatus(status);
    return std::nullopt;
  }
  std::vector<T> values(size);
  if (size) check(get(values.data(), &size));
  return values;
}

bool ok(OrtStatus* status) {
  if (!status) return true;
  ort().api->ReleaseStatus(status);
  return false;
}

}  // namespace

KernelNodeInfo::KernelNodeInfo(const OrtKernelInfo* info, int device) : info_(info), device_(device) {
  const OrtApi& api = *ort().api;
  name_ =
      read_string([&](char* out, size_t* size) { return api.KernelInfo_GetNodeName(info, out, size); }).value_or("");
  domain_ = read_string([&](char* out, size_t* size) {
              return api.KernelInfo_GetOperatorDomain(info, out, size);
            }).value_or("");
  if (domain_ == "ai.onnx") domain_.clear();
  op_type_ = read_string([&](char* out, size_t* size) {
               return api.KernelInfo_GetOperatorType(info, out, size);
             }).value_or("");
  check(api.KernelInfo_GetOperatorSinceVersion(info, &since_version_));
  const auto read = [&](auto count_of, auto name_of, auto type_of, std::vector<Slot>& slots) {
    size_t count;
    check(count_of(info, &count));
    for (size_t i = 0; i < count; ++i) {
      const auto value = read_string([&](char* out, size_t* size) { return name_of(info, i, out, size); });
      OrtTypeInfo* type = nullptr;
      if (!value || value->empty() || !ok(type_of(info, i, &type))) {
        slots.emplace_back();
        continue;
      }
      std::unique_ptr<OrtTypeInfo, void (*)(OrtTypeInfo*)> owned(type,
                                                                 [](OrtTypeInfo* p) { ort().api->ReleaseTypeInfo(p); });
      slots.push_back(slot_of(type));
      slots.back().value = *value;
    }
  };
  read(api.KernelInfo_GetInputCount, api.KernelInfo_GetInputName, api.KernelInfo_GetInputTypeInfo, inputs_);
  read(api.KernelInfo_GetOutputCount, api.KernelInfo_GetOutputName, api.KernelInfo_GetOutputTypeInfo, outputs_);
  name_if_unnamed();
}

const OrtValue* KernelNodeInfo::find_constant(int i) const {
  if (!has_input(i)) return nullptr;
  int constant = 0;
  const OrtValue* value = nullptr;
  check(ort().api->KernelInfoGetConstantInput_tensor(info_, size_t(i), &constant, &value));
  return constant ? value : nullptr;
}

bool KernelNodeInfo::is_constant(int i) const { return find_constant(i); }

const Tensor* KernelNodeInfo::constant_input(int i) const {
  const OrtValue* const value = find_constant(i);
  if (!value) return nullptr;
  Tensor tensor = tensor_of(value, Where::host);
  if (!is_host_memory(ort().ep->Value_GetMemoryDevice(value)) && tensor.bytes()) {
    auto copy = std::make_shared<std::vector<char>>(tensor.bytes());
    device::Current current(device_);
    device::Stream stream(device_);
    device::copy(stream, copy->data(), tensor.data, copy->size());
    stream.ref().synchronize();
    tensor.data = copy->data();
    owned_values_.push_back(copy);
  }
  return &tensors_.emplace_back(tensor);
}

std::optional<int64_t> KernelNodeInfo::find_int(const char* name) const {
  int64_t value;
  return ok(ort().api->KernelInfoGetAttribute_int64(info_, name, &value)) ? std::optional(value) : std::nullopt;
}
std::optional<float> KernelNodeInfo::find_float(const char* name) const {
  float value;
  return ok(ort().api->KernelInfoGetAttribute_float(info_, name, &value)) ? std::optional(value) : std::nullopt;
}
std::optional<std::string> KernelNodeInfo::find_string(const char* name) const {
  return read_string(
      [&](char* out, size_t* size) { return ort().api->KernelInfoGetAttribute_string(info_, name, out, size); });
}
std::optional<std::vector<int64_t>> KernelNodeInfo::find_ints(const char* name) const {
  return read_attribute_array<int64_t>(
      [&](int64_t* out, size_t* size) { return ort().api->KernelInfoGetAttributeArray_int64(info_, name, out, size); });
}
std::optional<std::vector<float>> KernelNodeInfo::find_floats(const char* name) const {
  return read_attribute_array<float>(
      [&](float* out, size_t* size) { return ort().api->KernelInfoGetAttributeArray_float(info_, name, out, size); });
}
const Tensor* KernelNodeInfo::find_tensor(const char* name) const {
  OrtAllocator* allocator;
  check(ort().api->GetAllocatorWithDefaultOptions(&allocator));
  OrtValue* value = nullptr;
  if (!ok(ort().api->KernelInfoGetAttribute_tensor(info_, name, allocator, &value))) return nullptr;
  owned_values_.emplace_back(value, [](void* p) { ort().api->ReleaseValue(static_cast<OrtValue*>(p)); });
  return &tensors_.emplace_back(tensor_of(value, Where::host));
}

std::optional<std::vector<std::string>> KernelNodeInfo::find_strings(const char* name) const {
  if (!kernel_has_strings()) return std::nullopt;
  OrtAllocator* allocator;
  check(ort().api->GetAllocatorWithDefaultOptions(&allocator));
  char** list = nullptr;
  size_t count = 0;
  if (!ok(ort().api->KernelInfoGetAttributeArray_string(info_, name, allocator, &list, &count))) return std::nullopt;
  std::vector<std::string> strings;
  for (size_t i = 0; i < count; ++i) {
    strings.emplace_back(list[i]);
    check(ort().api->AllocatorFree(allocator, list[i]));
  }
  if (list) check(ort().api->AllocatorFree(allocator, list));
  return strings;
}

}  // namespace encore::plugin
