#include "plugin/model/graph_reading.h"

#include <algorithm>

#include "device/error.h"
#include "ops/op.h"
#include "plugin/host/fence.h"
#include "plugin/model/node_info.h"

namespace encore::plugin {
namespace {

template <class Count, class Get>
std::vector<const OrtValueInfo*> values_of(const OrtGraph* graph, Count count_of, Get get) {
  size_t count = 0;
  check(count_of(graph, &count));
  std::vector<const OrtValueInfo*> values(count);
  if (count) check(get(graph, values.data(), count));
  return values;
}

}  // namespace

std::vector<std::string> names_of(const std::vector<const OrtValueInfo*>& values) {
  std::vector<std::string> names;
  for (const OrtValueInfo* value : values) {
    const char* name = nullptr;
    check(ort().api->GetValueInfoName(value, &name));
    names.emplace_back(name);
  }
  return names;
}

std::vector<const OrtNode*> nodes_of(const OrtGraph* graph) {
  size_t count = 0;
  check(ort().api->Graph_GetNumNodes(graph, &count));
  std::vector<const OrtNode*> nodes(count);
  check(ort().api->Graph_GetNodes(graph, nodes.data(), count));
  return nodes;
}

std::vector<const OrtValueInfo*> input_values_of(const OrtGraph* graph) {
  return values_of(graph, ort().api->Graph_GetNumInputs, ort().api->Graph_GetInputs);
}
std::vector<const OrtValueInfo*> output_values_of(const OrtGraph* graph) {
  return values_of(graph, ort().api->Graph_GetNumOutputs, ort().api->Graph_GetOutputs);
}

std::vector<std::string> inputs_of(const OrtGraph* graph) { return names_of(input_values_of(graph)); }
std::vector<std::string> outputs_of(const OrtGraph* graph) { return names_of(output_values_of(graph)); }

bool is_constant(const OrtValueInfo* value) {
  bool constant = false;
  check(ort().api->ValueInfo_IsConstantInitializer(value, &constant));
  return constant;
}

bool is_read(const OrtNode* node, size_t output) {
  const OrtApi& api = *ort().api;
  size_t count = 0, readers = 0;
  check(api.Node_GetNumOutputs(node, &count));
  std::vector<const OrtValueInfo*> outputs(count);
  if (count) check(api.Node_GetOutputs(node, outputs.data(), count));
  if (output >= count || !outputs[output]) return false;
  bool goes_out = false;
  check(api.ValueInfo_GetValueNumConsumers(outputs[output], &readers));
  check(api.ValueInfo_IsGraphOutput(outputs[output], &goes_out));
  return readers > 0 || goes_out;
}

std::vector<std::string> dimension_names(const OrtValueInfo* value) {
  const OrtApi& api = *ort().api;
  const OrtTypeInfo* type = nullptr;
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  check(api.GetValueInfoTypeInfo(value, &type));
  if (type) check(api.CastTypeInfoToTensorInfo(type, &tensor));
  if (!tensor) return {};
  size_t rank = 0;
  check(api.GetDimensionsCount(tensor, &rank));
  std::vector<const char*> names(rank);
  if (rank) check(api.GetSymbolicDimensions(tensor, names.data(), rank));
  return {names.begin(), names.end()};
}

std::string label_of(const OrtNode* node) {
  const char *op = nullptr, *name = nullptr;
  check(ort().api->Node_GetOperatorType(node, &op));
  check(ort().api->Node_GetName(node, &name));
  return is_unnamed(name) ? ops::label_of(GraphNodeInfo(node)) : ops::label_of(op, name);  // the former reads far more
}

std::string span_of(const std::vector<const OrtNode*>& nodes) {
  const std::string first = label_of(nodes.front());
  return nodes.size() == 1 ? first : text(first, " to ", label_of(nodes.back()));
}

std::string place_of(const OrtGraph* graph) {
  const OrtNode* parent = nullptr;
  check(ort().api->Graph_GetParentNode(graph, &parent));
  if (!parent) return {};
  const char* name = nullptr;
  check(ort().api->Graph_GetName(graph, &name));
  return text(label_of(parent), ", body '", name, "'");
}

bool is_of_others(const OrtGraph* graph) {
  const OrtApi& api = *ort().api;
  const OrtNode* parent = nullptr;
  check(api.Graph_GetParentNode(graph, &parent));
  if (!parent) return false;
  const char* op = nullptr;
  check(api.Node_GetOperatorType(parent, &op));
  constexpr std::string_view kControlFlow[] = {"If", "Loop", "Scan"};
  return !std::ranges::count(kControlFlow, op);
}

std::string_view ep_of(const OrtNode* node) {
  const char* ep = nullptr;
  check(ort().api->Node_GetEpName(node, &ep));
  return ep ? ep : "";
}

}  // namespace encore::plugin
