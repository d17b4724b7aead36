#include "plugin/model/signature.h"

#include <algorithm>

#include "plugin/host/fence.h"
#include "plugin/model/graph_reading.h"
#include "plugin/model/node_info.h"

namespace encore::plugin {
namespace {

Signature::Border border_of(const OrtValueInfo* value) {
  const OrtApi& api = *ort().api;
  Signature::Border border;
  const char* name = nullptr;
  check(api.GetValueInfoName(value, &name));
  border.name = name;
  const OrtTypeInfo* type = nullptr;
  check(api.GetValueInfoTypeInfo(value, &type));
  ONNXType kind = ONNX_TYPE_UNKNOWN;
  if (type) check(api.GetOnnxTypeFromTypeInfo(type, &kind));
  if (kind != ONNX_TYPE_TENSOR) return border;
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  check(api.CastTypeInfoToTensorInfo(type, &tensor));
  if (!tensor) return border;
  ONNXTensorElementDataType element;
  check(api.GetTensorElementType(tensor, &element));
  border.type = type_of(element);
  size_t rank = 0;
  check(api.GetDimensionsCount(tensor, &rank));
  if (rank == 0) return border;  // an unknown rank reads like a scalar
  border.dims.emplace(rank);
  check(api.GetDimensions(tensor, border.dims->data(), rank));
  border.dim_names = dimension_names(value);
  return border;
}

std::string maker_of(const OrtValueInfo* output) {
  const OrtApi& api = *ort().api;
  const OrtNode* node = nullptr;
  size_t slot = 0;
  check(api.ValueInfo_GetValueProducer(output, &node, &slot));
  if (!node) return is_constant(output) ? "as an initializer" : "";
  return "by " + label_of(node);
}

bool fits(const Signature::Border& border, device::Type type, const std::vector<int64_t>& dims) {
  if (border.type != type) return false;
  if (!border.dims) return true;
  if (border.dims->size() != dims.size()) return false;
  for (size_t i = 0; i < dims.size(); ++i)
    if ((*border.dims)[i] >= 0 && (*border.dims)[i] != dims[i]) return false;
  return true;
}

std::string describe(const char* kind, const std::vector<Signature::Border>& borders, device::Type type,
                     const std::vector<int64_t>& dims) {
  std::string shape = device::name(type) + std::string("[");
  for (size_t i = 0; i < dims.size(); ++i) shape += text(i ? "," : "", dims[i]);
  shape += "]";
  std::vector<std::string> names;
  for (const Signature::Border& border : borders)
    if (fits(border, type, dims)) names.push_back("'" + border.name + "'");
  if (names.empty()) return text("a tensor ", shape);
  if (names.size() == 1) return text(kind, " ", names[0], " (", shape, ")");
  std::string all = names[0];
  for (size_t i = 1; i < names.size(); ++i) all += (i + 1 < names.size() ? ", " : " or ") + names[i];
  return text(kind, " ", all, " (", shape, ")");
}

}  // namespace

Signature::Signature(const OrtGraph* graph) {
  const OrtApi& api = *ort().api;
  size_t count = 0;
  std::vector<const OrtValueInfo*> values;
  check(api.Graph_GetNumInputs(graph, &count));
  values.resize(count);
  check(api.Graph_GetInputs(graph, values.data(), count));
  for (const OrtValueInfo* value : values) inputs_.push_back(border_of(value));
  check(api.Graph_GetNumOutputs(graph, &count));
  values.resize(count);
  check(api.Graph_GetOutputs(graph, values.data(), count));
  for (const OrtValueInfo* value : values) {
    outputs_.push_back(border_of(value));
    outputs_.back().maker = maker_of(value);
  }
}

bool Signature::has_input(const std::string& name) const {
  return std::ranges::find(inputs_, name, &Border::name) != inputs_.end();
}
bool Signature::has_output(const std::string& name) const {
  return std::ranges::find(outputs_, name, &Border::name) != outputs_.end();
}

std::set<std::string> Signature::dimensions() const {
  std::set<std::string> names;
  for (const Border& input : inputs_) names.insert(input.dim_names.begin(), input.dim_names.end());
  names.erase("");
  return names;
}

std::string Signature::describe_input(device::Type type, const std::vector<int64_t>& dims) const {
  return describe("input", inputs_, type, dims);
}
std::string Signature::describe_output(device::Type type, const std::vector<int64_t>& dims) const {
  return describe("output", outputs_, type, dims);
}

std::string Signature::makers(device::Type type, const std::vector<int64_t>& dims) const {
  std::string found;
  for (const Border& border : outputs_) {
    if (!fits(border, type, dims)) continue;
    if (!found.empty() || border.maker.empty()) return {};
    found = ", " + border.maker;
  }
  return found;
}

}  // namespace encore::plugin
