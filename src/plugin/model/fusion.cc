#include "plugin/model/fusion.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "fuse/control_flow.h"
#include "fuse/groups.h"
#include "fuse/shape_symbols.h"
#include "fuse/whole.h"
#include "ops/registry.h"
#include "plugin/host/fence.h"
#include "plugin/model/carried.h"
#include "plugin/model/graph_reading.h"

namespace encore::plugin {

using ops::Type;

namespace {

// Whether there is anything that groups begin with, or gates, or what a norm goes with.
bool has_beginning(const std::vector<const OrtNode*>& nodes) {
  return std::any_of(nodes.begin(), nodes.end(), [](const OrtNode* node) {
    const char* op = nullptr;
    check(ort().api->Node_GetOperatorType(node, &op));
    for (const std::string_view begins : {"Conv", "ConvTranspose", "Erf", "LayerNormalization", "MatMul", "MatMulNBits",
                                          "Sigmoid", "Softmax", "SwiGLU", "Swish"})
      if (op == begins) return true;
    return false;
  });
}

}  // namespace

FusedGraph::FusedGraph(const OrtGraph* graph, const ops::Settings& settings, const Compiled* compiled,
                       std::set<std::string> on_host, std::map<std::string, const OrtValueInfo*> outer_values)
    : settings_(settings), compiled_(compiled), on_host_(std::move(on_host)), outer_values_(std::move(outer_values)) {
  for (const OrtNode* node : compiled ? nodes_of(graph) : std::vector<const OrtNode*>()) {
    const GraphNodeInfo info(node);
    const ops::OpRow* const row = ops::find_row(info.domain(), info.op_type(), info.since_version());
    for (int i : row ? row->host_outputs : std::vector<int>())
      if (info.has_output(i)) on_host_.insert(info.output_value(i));
  }
  for (const OrtNode* node : nodes_of(graph)) add(node);
  std::ranges::move(beside_, std::back_inserter(graph_.nodes));
  sort();
}

int FusedGraph::number(const OrtValueInfo* value) {
  const char* name = nullptr;
  if (value) check(ort().api->GetValueInfoName(value, &name));
  if (!name || !*name) return -1;
  if (const auto outer = outer_values_.find(name); outer != outer_values_.end()) {
    const int at = number(outer->second);
    read_constant(at, outer->second);
    return at;
  }
  const auto [known, is_new] = numbers_.try_emplace(name, int(graph_.values.size()));
  if (is_new) {
    fuse::Value& made = graph_.values.emplace_back();
    made.name = name;
    made.is_constant = is_constant(value);
  }
  return known->second;
}

// Which no node inside knows for one.
void FusedGraph::read_constant(int at, const OrtValueInfo* value) {
  fuse::Value& known = graph_.values[size_t(at)];
  const OrtValue* constant = nullptr;
  if (known.is_constant && !known.constant) check(ort().api->ValueInfo_GetInitializerValue(value, &constant));
  if (constant) known.constant = &not_inside_.emplace_back(tensor_of(constant, ops::Where::host));
}

int FusedGraph::see(const OrtValueInfo* value, Type type, const std::optional<std::vector<int64_t>>& dims) {
  const int at = number(value);
  if (at < 0) return at;
  fuse::Value& known = graph_.values[size_t(at)];
  if (known.type != Type::undefined) return at;
  known.type = type;
  known.dims = dims;
  if (!dims || fuse::are_numbers(*dims)) return at;
  const std::vector<std::string> names = dimension_names(value);
  // onnxruntime tells of dimensions below zero where a Pad crops more than there is.
  for (size_t d = 0; d < names.size(); ++d)
    if ((*dims)[d] < 0) (*known.dims)[d] = names[d].empty() ? -1 : symbol(names[d]);
  return at;
}
int FusedGraph::see(const OrtValueInfo* value) {
  const ValueType known = type_of(value);
  return see(value, known.type, known.dims);
}

void FusedGraph::add(const OrtNode* node) {
  const OrtApi& api = *ort().api;
  GraphNodeInfo& info = infos_.emplace_back(node);
  info.settings = settings_;
  fuse::Node& made = graph_.nodes.emplace_back();
  made.info = &info;
  const auto list = [&](auto count_of, auto get) {
    size_t count = 0;
    check(count_of(node, &count));
    std::vector<const OrtValueInfo*> values(count);
    if (count) check(get(node, values.data(), count));
    return values;
  };
  const auto inputs = list(api.Node_GetNumInputs, api.Node_GetInputs);
  for (size_t i = 0; i < inputs.size(); ++i)
    made.inputs.push_back(see(inputs[i], info.input_type(int(i)), info.input_dims(int(i))));
  const auto outputs = list(api.Node_GetNumOutputs, api.Node_GetOutputs);
  for (size_t i = 0; i < outputs.size(); ++i)
    made.outputs.push_back(info.has_output(int(i)) ? see(outputs[i], info.output_type(int(i)), info.output_dims(int(i)))
                                                   : -1);
  if (compiled_) {
    if (ep_of(node) == compiled_->ep) made.compiled = compiled_->find(info.name());
    return add_bodies(node, made);
  }
  for (const OrtValueInfo* value : list(api.Node_GetNumImplicitInputs, api.Node_GetImplicitInputs))
    if (const int at = number(value); at >= 0) {
      graph_.values[size_t(at)].is_output = true;
      made.read_inside.push_back(at);
    }
}

void FusedGraph::add_bodies(const OrtNode* node, fuse::Node& made) {
  const std::vector<NamedBody> bodies = bodies_of(node);
  if (bodies.empty()) return;
  const ByData known =
      plugin::by_data(node, *compiled_, settings_, [&](const std::string& name) { return is_on_host(name); });
  struct Form {
    const NamedBody& body;
    ByData by_data;
    BodyClaim claim;
  };
  std::vector<Form> forms;
  std::set<std::string> host_reads;
  for (const NamedBody& body : bodies) {
    forms.push_back({body, known, examine_body(node, body, *compiled_, settings_, known)});
    host_reads.insert(forms.back().claim.host_reads.begin(), forms.back().claim.host_reads.end());
  }
  if (auto beyond = beyond_unrolled(node, *compiled_, settings_, known, forms[0].claim))
    forms.push_back({bodies[0], std::move(beyond->by_data), std::move(beyond->claim)});
  read_constants_of(made);
  const std::vector<CarriedValue> carried = carried_values(node);
  Order order{forms[0].claim.host_carried, forms[0].claim.host_carried.size()};
  for (size_t i = 0; i < carried.size(); ++i)
    if (!carried[i].is_unchanged && !std::ranges::count(forms[0].claim.host_carried, i)) order.carried.push_back(i);
  if (order.carried.size() < carried.size() || order.on_host > 0) arrange(made, order, carried.size());
  if (const auto axes = scan_axes(node); axes && (!axes->inputs.empty() || !axes->outputs.empty())) turn(made, *axes);
  const std::vector<const OrtValueInfo*> reads = read_by_bodies(node);
  for (const OrtValueInfo* value : reads) made.inputs.push_back(see(value));
  const auto is_unknown = [&](const std::string& value) { return !numbers_.contains(outer_name(value)); };
  std::erase_if(host_reads, is_unknown);  // of no part's node
  for (const std::string& value : host_reads) made.inputs.push_back(numbers_.at(outer_name(value)));
  for (const auto& [body, by_data, claim] : forms) {
    const bool is_loop = made.info->op_type() == "Loop";
    std::set<std::string> on_host = claim.made_on_host;
    on_host.insert(host_reads.begin(), host_reads.end());
    if (const auto inputs = inputs_of(body.graph); is_loop && !by_data.decides) {
      on_host.insert(inputs.begin(), inputs.begin() + 2);
      for (size_t i : claim.host_carried) on_host.insert(inputs[i + 2]);
    }
    FusedGraph& inside = *bodies_.emplace_back(
        std::make_unique<FusedGraph>(body.graph, settings_, compiled_, std::move(on_host), unchanged_values(node)));
    auto plan = std::make_shared<fuse::Plan>(inside.plan_of_body(body.graph, is_loop, is_loop && by_data.decides, order,
                                                                 reads, host_reads, claim.made_on_host));
    if (plan->by_data || is_once_beyond(node, *compiled_)) plan->beyond = most_unrolled(node, *compiled_);
    made.bodies.push_back({body.name, std::move(plan)});
  }
}

std::string FusedGraph::outer_name(const std::string& name) const {
  const auto outer = outer_values_.find(name);
  return outer == outer_values_.end() ? name : names_of({outer->second})[0];
}
bool FusedGraph::is_on_host(const std::string& name) const {
  const auto outer = outer_values_.find(name);
  return (outer != outer_values_.end() && is_constant(outer->second)) || on_host_.contains(outer_name(name));
}

// A Loop's inputs and outputs as its step has them. What it hands on unchanged is as it was before.
void FusedGraph::arrange(fuse::Node& loop, const Order& order, size_t carried) {
  loop.own = std::make_shared<const fuse::Operator>(fuse::operator_of(*loop.info));
  const auto inputs = std::exchange(loop.inputs, {loop.inputs[0], loop.inputs[1]}),
             outputs = std::exchange(loop.outputs, {});
  for (size_t i : order.carried) {
    loop.inputs.push_back(inputs[i + 2]);
    loop.outputs.push_back(outputs[i]);
  }
  loop.outputs.insert(loop.outputs.end(), outputs.begin() + ptrdiff_t(carried), outputs.end());
  for (size_t i = 0; i < carried; ++i)
    if (!std::ranges::count(order.carried, i) && is_read(infos_.back().node(), i))
      add_beside(loop, {ops::kOnnx, "Identity", 16}, inputs[i + 2], outputs[i]);
}

// A Scan goes along first dimensions: what it reads is turned before, and what it collects behind.
void FusedGraph::turn(fuse::Node& scan, const ScanAxes& axes) {
  fuse::Operator op = fuse::operator_of(*scan.info);
  for (const char* given : {"scan_input_axes", "scan_output_axes"}) op.attributes.erase(given);
  scan.own = std::make_shared<const fuse::Operator>(std::move(op));
  const auto transpose = [](const std::vector<int64_t>& order) {
    return fuse::Operator{ops::kOnnx, "Transpose", 13, {{"perm", order}}};
  };
  for (const ScanAxis& axis : axes.inputs) {
    int& input = scan.inputs[axis.slot];
    const int to = turned(input, axis.to_front);
    add_beside(scan, transpose(axis.to_front), std::exchange(input, to), to);
  }
  for (const ScanAxis& axis : axes.outputs) {
    int& output = scan.outputs[axis.slot];
    if (output < 0) continue;
    const int from = turned(output, axis.to_front);
    add_beside(scan, transpose(axis.from_front), from, std::exchange(output, from));
  }
}

int FusedGraph::turned(int value, const std::vector<int64_t>& order) {
  fuse::Value made = graph_.values[size_t(value)];
  made.name += " turned";
  made.is_constant = made.is_output = false;
  made.constant = nullptr;
  if (made.dims) made.dims = fuse::permuted(*made.dims, order);
  graph_.values.push_back(std::move(made));
  return int(graph_.values.size()) - 1;
}

void FusedGraph::add_beside(const fuse::Node& node, fuse::Operator op, int input, int output) {
  fuse::Node& made = beside_.emplace_back(fuse::Node{node.info, {input}, {output}});
  made.own = std::make_shared<const fuse::Operator>(std::move(op));
}

fuse::Plan FusedGraph::plan_of_body(const OrtGraph* body, bool is_loop, bool by_data, const Order& order,
                                    const std::vector<const OrtValueInfo*>& reads,
                                    const std::set<std::string>& host_reads,
                                    const std::set<std::string>& made_on_host) {
  std::vector<int> inputs, host_inputs, outputs;
  std::vector<const OrtValueInfo*> comes_in = input_values_of(body), goes_out = output_values_of(body);
  if (is_loop) {  // behind the iteration's number and the condition, or a condition
    const auto given = std::exchange(comes_in, {comes_in[0], comes_in[1]}),
               made = std::exchange(goes_out, {goes_out[0]});
    for (size_t i : order.carried) comes_in.push_back(given[i + 2]), goes_out.push_back(made[i + 1]);
    goes_out.insert(goes_out.end(), made.begin() + ptrdiff_t(given.size() - 1), made.end());
  }
  for (const OrtValueInfo* value : comes_in) inputs.push_back(see(value));
  const size_t host_carried = is_loop && !by_data ? order.on_host : 0;
  if (is_loop && !by_data) {
    const auto first = inputs.begin(), last = first + 2 + ptrdiff_t(host_carried);
    host_inputs.assign(first, last);
    inputs.erase(first, last);
  }
  for (const OrtValueInfo* value : reads) inputs.push_back(see(value));
  for (const std::string& value : host_reads) host_inputs.push_back(numbers_.at(outer_name(value)));
  for (const OrtValueInfo* value : goes_out) {
    outputs.push_back(see(value));
    read_constant(outputs.back(), value);
  }
  read_constants();
  for (fuse::Node& node : graph_.nodes)
    node.takable = std::ranges::none_of(node.outputs, [&](int value) {
      return value >= 0 && made_on_host.contains(graph_.values[size_t(value)].name);
    });
  const size_t host_outputs = is_loop && !by_data ? 1 + host_carried : 0;
  return fuse::plan_of_body(
      graph_, {std::move(inputs), std::move(host_inputs), std::move(outputs), host_outputs, host_carried, by_data},
      reads.size(), settings_);
}

int64_t FusedGraph::symbol(const std::string& name) {
  const auto [known, is_new] = symbols_.try_emplace(name, 0);
  if (is_new) known->second = graph_.symbols->add(name);
  return known->second;
}

// In an order in which they can run, whatever the order they came in.
void FusedGraph::sort() {
  std::vector<fuse::Node> sorted;
  for (int n : fuse::running_order(graph_.makers())) sorted.push_back(std::move(graph_.nodes[size_t(n)]));
  graph_.nodes = std::move(sorted);
}

void FusedGraph::read_constants() {
  for (const fuse::Node& node : graph_.nodes)
    if (!node.own) read_constants_of(node);
}
void FusedGraph::read_constants_of(const fuse::Node& node) {
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (node.inputs[i] >= 0)
      if (fuse::Value& value = graph_.values[size_t(node.inputs[i])]; value.is_constant && !value.constant)
        value.constant = node.info->constant_input(int(i));
}

FusedGraph::Ends FusedGraph::ends_of(const GraphNodeInfo& fused) {
  read_constants();
  const auto find = [&](const std::string& name) {
    const auto found = numbers_.find(name);
    if (found == numbers_.end()) fail(Code::internal, "no node inside knows of '", name, "'");
    return found->second;
  };
  Ends ends;
  for (int i = 0; i < fused.input_count(); ++i) ends.inputs.push_back(find(fused.input_value(i)));
  for (int i = 0; i < fused.output_count(); ++i) ends.outputs.push_back(find(fused.output_value(i)));
  return ends;
}

fuse::Plan FusedGraph::plan(const GraphNodeInfo& fused, const fuse::KnownDims& known, const fuse::Watch& watch) {
  Ends ends = ends_of(fused);
  return fuse::plan_of_group(graph_, std::move(ends.inputs), std::move(ends.outputs), known, watch);
}

fuse::Plan FusedGraph::plan_of_part(const GraphNodeInfo& fused, const std::set<std::string>& on_host,
                                    const std::vector<fuse::Padding>& paddings, const fuse::Compute& compute,
                                    const fuse::Watch& watch) {
  Ends ends = ends_of(fused);
  return fuse::plan_of_whole(graph_, std::move(ends.inputs), std::move(ends.outputs), on_host, paddings, compute,
                             watch);
}

fuse::PaddedAxes FusedGraph::padded_axes(const GraphNodeInfo& fused, const std::string& dim, int64_t longest) {
  Ends ends = ends_of(fused);
  return fuse::padded_axes(fuse::plan_of(graph_, std::move(ends.inputs), std::move(ends.outputs)), dim, longest);
}

std::map<const OrtNode*, std::string> FusedGraph::refused_bodies(const std::string& dim, int64_t longest) {
  read_constants();
  std::set<int> made;
  for (const fuse::Node& node : graph_.nodes) made.insert(node.outputs.begin(), node.outputs.end());
  std::vector<int> inputs;
  for (int value = 0; value < std::ssize(graph_.values); ++value)
    if (!graph_.values[size_t(value)].is_constant && !made.contains(value)) inputs.push_back(value);
  std::map<const OrtNode*, std::string> refused;
  for (auto& [step, why] : fuse::refused_bodies(fuse::plan_of(graph_, std::move(inputs), {}), dim, longest))
    refused.emplace(static_cast<const GraphNodeInfo*>(graph_.nodes[size_t(step)].info)->node(), std::move(why));
  return refused;
}

std::vector<ops::GrowingDim> FusedGraph::growing_dims(const GraphNodeInfo& fused) {
  Ends ends = ends_of(fused);
  return fuse::growing_dims(fuse::plan_of(graph_, std::move(ends.inputs), std::move(ends.outputs)));
}

std::vector<Group> find_groups(const OrtGraph* graph, const std::vector<const OrtNode*>& claimed,
                               const std::string& ep_name, const ops::Settings& settings, bool are_channels_last,
                               fuse::KnownDims& known) {
  std::vector<Group> groups;
  if (!has_beginning(claimed)) return groups;
  FusedGraph whole(graph, settings);
  const std::set<const OrtNode*> taken(claimed.begin(), claimed.end());
  for (const std::string& name : outputs_of(graph))
    if (const auto found = whole.numbers_.find(name); found != whole.numbers_.end())
      whole.graph_.values[size_t(found->second)].is_output = true;
  const auto node_of = [&](const fuse::Node& node) { return static_cast<const GraphNodeInfo*>(node.info)->node(); };
  for (fuse::Node& node : whole.graph_.nodes) {
    const std::string_view ep = ep_of(node_of(node));
    node.takable = taken.contains(node_of(node));
    node.is_free = ep.empty() || ep == ep_name;
  }
  for (const fuse::Group& found : fuse::find_groups(whole.graph_, {.are_channels_last = are_channels_last}, known)) {
    Group& group = groups.emplace_back();
    group.what = found.what;
    for (int n : found.nodes) group.nodes.push_back(node_of(whole.graph_.nodes[size_t(n)]));
  }
  return groups;
}

}  // namespace encore::plugin
