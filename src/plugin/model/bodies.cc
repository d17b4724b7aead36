#include "plugin/model/bodies.h"

#include <algorithm>
#include <unordered_map>

#include "ops/registry.h"
#include "plugin/host/fence.h"
#include "plugin/model/few_numbers.h"
#include "plugin/model/graph_reading.h"
#include "plugin/model/placement.h"

namespace encore::plugin {
namespace {

class Examination {
 public:
  Examination(const OrtNode* node, const NamedBody& body, const Compiled& compiled, const ops::Settings& settings)
      : compiled_(compiled), settings_(settings), place_(text(" in the ", body.name, " of ", label_of(node))) {
    for (const std::string& input : inputs_of(body.graph)) values_[size_t(number(input))].is_inside = true;
    for (const OrtNode* inner : nodes_of(body.graph)) add(inner);
    for (const OrtValueInfo* output : output_values_of(body.graph))
      if (is_constant(output)) values_[size_t(number(names_of({output})[0]))].is_constant = true;
    if (GraphNodeInfo(node).op_type() != "Loop") return;
    // The number of the iteration and the condition are on the host, and the next condition is wanted there.
    values_[0].is_on_host = values_[1].is_on_host = true;
    const int condition = number(outputs_of(body.graph).at(0));
    graph_.nodes.push_back({"the next condition", {condition}, {}, {true}, {}});
    graph_.nodes.back().claimable = true;
  }

  BodyClaim run() {
    BodyClaim claim{why_not_, {}, {}};
    if (!claim.why_not.empty()) return claim;
    graph_.from_outside.resize(values_.size());
    for (size_t v = 0; v < values_.size(); ++v) graph_.from_outside[v] = values_[v].is_inside && !values_[v].is_on_host;
    const std::vector<int> whole(graph_.nodes.size());
    // At first what comes from outside is on the host wherever it is wanted there, and nothing else is computed there.
    PlacementGraph wanting = graph_;
    for (PlacementNode& node : wanting.nodes) node.is_small = false;
    const HostPart wanted = host_part(wanting, whole);
    if (!wanted.lacking.empty()) {
      claim.why_not =
          text(graph_.nodes[size_t(wanted.lacking[0])].name, place_, " reads on the host what is not there");
      return claim;
    }
    const auto wants = [&](int value) {
      if (value >= 0 && values_[size_t(value)].is_outer()) claim.host_reads.insert(values_[size_t(value)].name);
    };
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const PlacementNode& node = graph_.nodes[n];
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (wanted.nodes[n] || node.host_inputs[i]) wants(node.inputs[i]);
      for (int value : node.host_reads) wants(value);
    }
    for (size_t v = 0; v < values_.size(); ++v)
      if (values_[v].is_outer() && !claim.host_reads.contains(values_[v].name)) graph_.from_outside[v] = true;
    const HostPart part = host_part(graph_, whole);
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      for (int value : graph_.nodes[n].outputs)
        if (part.nodes[n] && value >= 0) claim.made_on_host.insert(values_[size_t(value)].name);
    return claim;
  }

 private:
  struct Value {
    std::string name;
    bool is_constant = false, is_inside = false;  // the latter: it is an input of the body, or made there
    bool is_on_host = false;
    bool is_outer() const { return !is_constant && !is_inside; }
  };

  void add(const OrtNode* inner) {
    GraphNodeInfo info(inner);
    info.settings = settings_;
    const ops::OpRow* const row = ops::find_row(info.domain(), info.op_type(), info.since_version());
    const bool is_compiled = !row && ep_of(inner) == compiled_.ep;
    PlacementNode node;
    node.name = ops::label_of(info);
    for (int i = 0; i < info.input_count(); ++i) {
      node.inputs.push_back(info.has_input(i) ? number(info.input_value(i)) : -1);
      if (info.is_constant(i)) values_[size_t(node.inputs.back())].is_constant = true;
    }
    for (int i = 0; i < info.output_count(); ++i) {
      node.outputs.push_back(info.has_output(i) ? number(info.output_value(i)) : -1);
      if (info.has_output(i)) values_[size_t(node.outputs.back())].is_inside = true;
    }
    node.host_inputs = flags(node.inputs.size(), row ? row->host_inputs : std::vector<int>());
    node.host_outputs = flags(node.outputs.size(), row ? row->host_outputs : std::vector<int>());
    std::string why;
    if (!is_compiled) {
      node.is_host_op = is_host_op(info);
      node.is_small = node.is_host_op && makes_few(info);
      why = why_not(row, info, inner, node);
    }
    node.claimable = why.empty();
    if (!node.claimable && !node.is_host_op && why_not_.empty()) why_not_ = std::move(why);
    graph_.nodes.push_back(std::move(node));
  }

  std::string why_not(const ops::OpRow* row, const GraphNodeInfo& info, const OrtNode* inner, PlacementNode& node) {
    const std::string_view ep = ep_of(inner);
    if (!row || (!ep.empty() && ep != compiled_.ep)) return text(node.name, place_, " is not Encore's");
    if (const std::string why = ops::why_declined(*row, info); !why.empty()) return text(node.name, place_, ": ", why);
    if (row->reads_back) return text(node.name, place_, " has an output whose size depends on data");
    if (row->make) return {};
    const BodyClaim claim = examine_bodies(inner, compiled_, settings_);
    for (const std::string& name : names_of(read_inside(inner))) node.read_inside.push_back(number(name));
    for (const std::string& name : claim.host_reads) node.host_reads.push_back(number(name));
    return claim.why_not;
  }

  int number(const std::string& name) {
    const auto [known, is_new] = numbers_.try_emplace(name, int(values_.size()));
    if (is_new) values_.push_back({name});
    return known->second;
  }

  const Compiled& compiled_;
  const ops::Settings& settings_;
  const std::string place_;
  std::string why_not_;  // the first reason
  PlacementGraph graph_;
  std::vector<Value> values_;
  std::unordered_map<std::string, int> numbers_;
};

int64_t nodes_in(const OrtGraph* body, const Compiled& compiled) {
  int64_t count = 0;
  for (const OrtNode* node : nodes_of(body)) {
    const GraphNodeInfo info(node);
    count += std::max<int64_t>(1, int64_t(compiled.size(info.name())));
    for (const NamedBody& inner : bodies_of(node)) count += nodes_in(inner.graph, compiled);
  }
  return count;
}

// Whatever the bodies have.
std::string why_not_run(const OrtNode* node, const Compiled& compiled) {
  const GraphNodeInfo info(node);
  const bool is_loop = info.op_type() == "Loop";
  for (const NamedBody& body : bodies_of(node))
    if (outputs_of(body.graph).size() != size_t(info.output_count()) + is_loop)
      return text(ops::label_of(info), " has other outputs than its ", body.name);
  if (is_loop) {
    const ops::Tensor* const count = info.constant_input(0);
    const int64_t steps = nodes_in(bodies_of(node)[0].graph, compiled);
    if (count && count->count() == 1 && *count->as<const int64_t>() > kMostUnrolled / std::max<int64_t>(steps, 1))
      return text(ops::label_of(info), " has too many iterations");
  }
  for (const char* axes : {"scan_input_axes", "scan_output_axes"})
    for (int64_t axis : info.find_ints(axes).value_or(std::vector<int64_t>()))
      if (axis != 0) return text(ops::label_of(info), " scans along another dimension than the first");
  return {};
}

}  // namespace

std::vector<NamedBody> bodies_of(const OrtNode* node) {
  size_t count = 0;
  check(ort().api->Node_GetNumSubgraphs(node, &count));
  std::vector<const OrtGraph*> graphs(count);
  std::vector<const char*> names(count);
  if (count) check(ort().api->Node_GetSubgraphs(node, graphs.data(), count, names.data()));
  std::vector<NamedBody> bodies;
  for (size_t i = 0; i < count; ++i) bodies.push_back({names[i], graphs[i]});
  return bodies;
}

std::vector<const OrtValueInfo*> read_inside(const OrtNode* node) {
  const OrtApi& api = *ort().api;
  size_t count = 0;
  check(api.Node_GetNumImplicitInputs(node, &count));
  std::vector<const OrtValueInfo*> values(count);
  if (count) check(api.Node_GetImplicitInputs(node, values.data(), count));
  std::erase_if(values, is_constant);
  return values;
}

BodyClaim examine_body(const OrtNode* node, const NamedBody& body, const Compiled& compiled,
                       const ops::Settings& settings) {
  return Examination(node, body, compiled, settings).run();
}

BodyClaim examine_bodies(const OrtNode* node, const Compiled& compiled, const ops::Settings& settings) {
  BodyClaim all;
  all.why_not = why_not_run(node, compiled);
  for (const NamedBody& body : bodies_of(node)) {
    BodyClaim claim = examine_body(node, body, compiled, settings);
    if (all.why_not.empty()) all.why_not = std::move(claim.why_not);
    all.host_reads.merge(claim.host_reads);
  }
  const std::vector<std::string> read = names_of(read_inside(node));
  for (const std::string& value : all.host_reads)
    if (std::ranges::find(read, value) == read.end() && all.why_not.empty())
      all.why_not = text("onnxruntime does not tell that bodies of ", label_of(node), " read '", value, "'");
  return all;
}

}  // namespace encore::plugin
