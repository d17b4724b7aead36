#include "plugin/capability.h"

#include <algorithm>
#include <unordered_map>

#include "ops/registry.h"
#include "plugin/fence.h"
#include "plugin/node_info.h"
#include "plugin/placement.h"

namespace encore::plugin {
namespace {

// Larger tensors are data, whatever their type.
constexpr int64_t kMostShapeElements = 256;

bool is_small(const std::optional<std::vector<int64_t>>& dims) {
  int64_t count = 1;
  for (int64_t dim : dims.value_or(std::vector<int64_t>()))
    if (dim > 0 && (count *= dim) > kMostShapeElements) return false;
  return true;
}

// What shapes are computed with; anything onnxruntime's CPU provider has kernels for.
constexpr ops::Types kShapeTypes{ops::Type::i64, ops::Type::i32, ops::Type::boolean, ops::Type::f32, ops::Type::f64};

bool is_shape_like(const ops::NodeInfo& node) {
  if (!node.domain().empty()) return false;
  for (int i = 0; i < node.input_count(); ++i)
    if (node.has_input(i) && !(kShapeTypes.has(node.input_type(i)) && is_small(node.input_dims(i)))) return false;
  for (int i = 0; i < node.output_count(); ++i)
    if (node.has_output(i) && !kShapeTypes.has(node.output_type(i))) return false;
  return true;
}

class Examination {
 public:
  Examination(const OrtGraph* graph, OrtEpGraphSupportInfo* support, const std::string& ep_name,
              const ops::Settings& settings)
      : support_(support), ep_name_(ep_name), settings_(settings) {
    size_t count = 0;
    check(api_.Graph_GetNumNodes(graph, &count));
    nodes_.resize(count);
    check(api_.Graph_GetNodes(graph, nodes_.data(), count));
  }

  Claim run() {
    Claim claim;
    claim.node_count = nodes_.size();
    for (const OrtNode* node : nodes_) add(node, claim);
    const std::vector<bool> on_cpu = shape_arithmetic(placement_);
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (!placement_.nodes[n].claimable) continue;
      if (on_cpu[n])
        claim.shape_arithmetic.push_back({placement_.nodes[n].name, "shape arithmetic; it stays on the CPU"});
      else
        claim.nodes.push_back(nodes_[n]);
    }
    claim.crossings = crossings(placement_, on_cpu);
    return claim;
  }

 private:
  void add(const OrtNode* node, Claim& claim) {
    GraphNodeInfo info(node);
    info.settings = settings_;
    const ops::OpRow* const row = ops::find_row(info.domain(), info.op_type(), info.since_version());
    PlacementNode place;
    place.name = text(info.op_type(), " node '", info.name(), "'");
    if (!is_taken_by_another(node)) {
      std::string why = why_not(row, info, node);
      place.claimable = why.empty();
      if (!why.empty()) claim.declined.push_back({place.name, std::move(why)});
    }
    place.shape_like = is_shape_like(info);
    place.inputs = number(node, api_.Node_GetNumInputs, api_.Node_GetInputs, &info);
    place.outputs = number(node, api_.Node_GetNumOutputs, api_.Node_GetOutputs, nullptr);
    place.host_inputs = flags(place.inputs.size(), row ? row->host_inputs : std::vector<int>());
    place.host_outputs = flags(place.outputs.size(), row ? row->host_outputs : std::vector<int>());
    placement_.nodes.push_back(std::move(place));
  }

  bool is_taken_by_another(const OrtNode* node) const {
    const char* ep = nullptr;
    check(api_.Node_GetEpName(node, &ep));
    return ep != nullptr && *ep != 0 && ep_name_ != ep;
  }

  std::string why_not(const ops::OpRow* row, const GraphNodeInfo& info, const OrtNode* node) const {
    const std::string op = (info.domain().empty() ? "" : info.domain() + ".") + info.op_type();
    if (!row) return text("Encore has no kernel for ", op, " of version ", info.since_version());
    std::string why = ops::why_declined(*row, info);
    if (!why.empty()) return why;
    const OrtKernelDef* kernel = nullptr;
    check(ort().ep->EpGraphSupportInfo_LookUpKernel(support_, node, &kernel));
    return kernel ? "" : text("onnxruntime finds no kernel of Encore's for ", op, " of version ", info.since_version());
  }

  // The numbers of a node's values. New ones are looked at: `info` is the node that reads them.
  template <class Count, class Get>
  std::vector<int> number(const OrtNode* node, Count count_of, Get get, const GraphNodeInfo* info) {
    size_t count = 0;
    check(count_of(node, &count));
    std::vector<const OrtValueInfo*> values(count);
    check(get(node, values.data(), count));
    std::vector<int> numbers;
    for (size_t i = 0; i < count; ++i) {
      const char* name = nullptr;
      if (values[i]) check(api_.GetValueInfoName(values[i], &name));
      if (!name || !*name) {
        numbers.push_back(-1);
        continue;
      }
      const auto [known, is_new] = numbers_.try_emplace(name, int(placement_.host_friendly.size()));
      numbers.push_back(known->second);
      if (is_new) {
        bool constant = false, required = false, optional = false;
        check(api_.ValueInfo_IsConstantInitializer(values[i], &constant));
        check(api_.ValueInfo_IsRequiredGraphInput(values[i], &required));
        check(api_.ValueInfo_IsOptionalGraphInput(values[i], &optional));
        const bool input = required || optional;
        placement_.host_friendly.push_back(info && is_host_friendly(*info, int(i), constant, input));
        placement_.from_outside.push_back(input && !constant);
      }
    }
    return numbers;
  }

  static bool is_host_friendly(const GraphNodeInfo& info, int i, bool constant, bool input) {
    if (!is_small(info.input_dims(i))) return false;
    if (constant) return true;
    const bool one_dimension = !info.input_dims(i) || info.input_dims(i)->size() == 1;
    return input && one_dimension && ops::kIndices.has(info.input_type(i));
  }

  static std::vector<bool> flags(size_t count, const std::vector<int>& set) {
    std::vector<bool> flags(count);
    for (int i : set)
      if (size_t(i) < count) flags[size_t(i)] = true;
    return flags;
  }

  const OrtApi& api_ = *ort().api;
  OrtEpGraphSupportInfo* support_;
  const std::string& ep_name_;
  const ops::Settings& settings_;
  std::vector<const OrtNode*> nodes_;
  PlacementGraph placement_;
  std::unordered_map<std::string, int> numbers_;
};

}  // namespace

Claim examine(const OrtGraph* graph, OrtEpGraphSupportInfo* support, const std::string& ep_name,
              const ops::Settings& settings) {
  return Examination(graph, support, ep_name, settings).run();
}

}  // namespace encore::plugin
