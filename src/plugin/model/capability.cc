#include "plugin/model/capability.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>

#include "ops/registry.h"
#include "plugin/host/fence.h"
#include "plugin/model/bodies.h"
#include "plugin/model/carried.h"
#include "plugin/model/few_numbers.h"
#include "plugin/model/graph_reading.h"
#include "plugin/model/node_info.h"
#include "plugin/model/placement.h"

namespace encore::plugin {
namespace {

// What shapes are computed with; anything onnxruntime's CPU provider has kernels for.
constexpr ops::Types kShapeTypes{ops::Type::i64, ops::Type::i32, ops::Type::boolean, ops::Type::f32, ops::Type::f64};

// Why a node can't be claimed that reads one value both on the host and on the device: onnxruntime puts a value in one
// place. (What a body reads of the values outside is copied to where it is read.)
std::string read_in_two_places(const ops::OpRow& row, const GraphNodeInfo& node) {
  for (int host : row.host_inputs)
    for (int i = 0; i < node.input_count() && node.has_input(host); ++i)
      if (node.has_input(i) && node.input_value(i) == node.input_value(host) &&
          std::find(row.host_inputs.begin(), row.host_inputs.end(), i) == row.host_inputs.end())
        return text(
            "'", node.input_value(i), "' is its input ", i, ", read on the device, and its input ", host,
            ", read on the host, and onnxruntime puts a value in one place; an Identity before one of them helps");
  return {};
}

// Whether Encore lacks kernels for all of a body that was claimed before its node: what goes from iteration to
// iteration would only travel to the device and back.
bool runs_elsewhere(const OrtGraph* body, const std::string& ep_name) {
  bool lacking = false;
  for (const OrtNode* node : nodes_of(body)) {
    if (ep_of(node) == ep_name) return false;
    const GraphNodeInfo info(node);
    const ops::OpRow* const row = ops::find_row(info.domain(), info.op_type(), info.since_version());
    lacking |= !row || !ops::why_declined(*row, info).empty() || !read_in_two_places(*row, info).empty();
  }
  return lacking;
}

// If and Scan give each output of a body its memory beforehand. What no node of the body writes there, since the value
// is an input of Scan's body or another output too, is left as it was. Loop's outputs have memory of their own.
std::string lost_output(const std::string& op, const OrtGraph* body) {
  std::vector<std::string> taken;
  if (op == "Scan") taken = inputs_of(body);
  for (const std::string& name : outputs_of(body)) {
    if (std::find(taken.begin(), taken.end(), name) != taken.end()) return name;
    taken.push_back(name);
  }
  return {};
}

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
              const ops::Settings& settings, const Compiled* compiled)
      : support_(support), ep_name_(ep_name), settings_(settings), compiled_(compiled), nodes_(nodes_of(graph)) {
    const OrtNode* parent = nullptr;
    check(api_.Graph_GetParentNode(graph, &parent));
    is_body_ = parent;
    if (!parent || GraphNodeInfo(parent).op_type() != "Loop") return;
    loop_ = parent;
    on_host_ = inputs_of(graph);  // the iteration number and the condition are the first two
    on_host_.resize(std::min<size_t>(on_host_.size(), 2));
    wanted_on_host_ = outputs_of(graph).at(0);  // the condition
  }

  Claim run(Parts parts) {
    Claim claim;
    for (const OrtNode* node : nodes_) add(node, claim);
    claim.node_count = size_t(std::ranges::count(is_fused_, false));
    std::vector<bool> on_cpu = shape_arithmetic(placement_);
    claim.crossings = crossings(placement_, on_cpu);
    if (const std::vector<int> part_of = find_parts(parts, claim, on_cpu); !part_of.empty()) {
      take(part_of, claim);
      on_cpu = shape_arithmetic(placement_);
      claim.crossings = crossings(placement_, on_cpu);
    }
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (!placement_.nodes[n].claimable || is_fused_[n]) continue;
      if (on_cpu[n])
        claim.shape_arithmetic.push_back(
            {placement_.nodes[n].name, "shape arithmetic; it stays on the CPU", nodes_[n]});
      else {
        claim.nodes.push_back(nodes_[n]);
        if (sized_by_data_[n]) claim.sized_by_data.push_back(placement_.nodes[n].name);
      }
    }
    for (Claim::Declined& left : claim.declined) left.only_shapes = on_cpu[places_.at(left.at)];
    return claim;
  }

 private:
  // By node the part that it belongs to, or one below zero; empty if there are none.
  std::vector<int> find_parts(Parts parts, Claim& claim, const std::vector<bool>& on_cpu) {
    if (parts == Parts::none) return {};
    if (parts == Parts::whole &&
        (is_body_ || claim.crossings.empty() || !claim.control_flow.empty() ||
         std::ranges::count(sized_by_data_, true) || std::ranges::count(is_fused_, true) ||
         std::ranges::any_of(nodes_, [&](const OrtNode* node) { return is_taken_by_another(node); })))
      return {};
    for (size_t n = 0; n < nodes_.size(); ++n) see_as_a_part(n);
    placement_.is_alone = !is_body_ && claim.control_flow.empty();
    placement_.hands_on_read_inside = ort().minor >= kReadInsideHost;
    placement_.has_lone_parts = parts == Parts::all_regions;
    if (parts != Parts::whole) {
      for (Claim::Declined& node : claim.control_flow) see_bodies(node);
      let_data_decide(placement_, loop_ ? leave_what_the_host_makes(on_cpu) : on_cpu);
      std::map<size_t, int> lost;
      std::vector<int> part_of = regions(placement_, on_cpu, &lost);
      for (Claim::Declined& node : claim.control_flow) {
        if (const std::string& why = placement_.nodes[places_.at(node.at)].why_outside; !why.empty()) node.why = why;
        if (const auto found = lost.find(places_.at(node.at)); found != lost.end())
          node.why = text("its bodies read '", name_of(found->second), "', which onnxruntime before 1.",
                          kReadInsideHost, " hands on to no node that is made of several");
      }
      return part_of;
    }
    std::vector<int> whole(nodes_.size());
    return host_part(placement_, whole).lacking.empty() ? whole : std::vector<int>();
  }

  // What computes a loop's next condition by itself, with numbers that the host may have, is in no region of the
  // body's. Were it in one, only the device would have what it makes. Nor is what hands a value on as it is. Of what
  // the loop begins with onnxruntime tells nothing here. Gives all that may be made on the host.
  std::vector<bool> leave_what_the_host_makes(const std::vector<bool>& on_cpu) {
    const std::vector<CarriedValue> values = carried_values(loop_);
    std::set<int> unchanged;
    for (const CarriedValue& value : values)
      if (const auto next = numbers_.find(value.next); value.is_unchanged && next != numbers_.end())
        unchanged.insert(next->second);
    for (PlacementNode& node : placement_.nodes)
      if (std::ranges::any_of(node.outputs, [&](int value) { return unchanged.contains(value); }))
        node.may_join = false;
    if (may_go_by_data(loop_, *compiled_)) return on_cpu;
    PlacementGraph body = placement_;
    std::vector<Carried> carried;
    for (size_t value = 0; value < body.from_outside.size(); ++value)
      if (body.from_around[value] || body.on_host[value]) body.from_outside[value] = false;
    for (const CarriedValue& value : values) {
      const auto known = numbers_.find(value.name), next = numbers_.find(value.next);
      if (known == numbers_.end() || !value.may_be_number) continue;
      if (value.is_unchanged)
        body.from_outside[size_t(known->second)] = false;
      else if (next != numbers_.end())
        carried.push_back({known->second, next->second});
    }
    const auto condition = numbers_.find(wanted_on_host_);
    if (condition == numbers_.end()) return on_cpu;
    body.nodes.push_back({"the next condition", {condition->second}, {}, {true}, {}});
    body.nodes.back().claimable = true;
    std::vector<bool> on_host = carried_on_host(body, carried).nodes;
    for (size_t n = 0; n < nodes_.size(); ++n)  // unless data makes the condition
      if (!on_host[n] && std::ranges::count(body.nodes[n].outputs, condition->second)) return on_cpu;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (on_host[n] && !on_cpu[n]) placement_.nodes[n].may_join = false;
      if (on_cpu[n]) on_host[n] = true;
    }
    return on_host;
  }

  void see_as_a_part(size_t n) {
    if (is_taken_by_another(nodes_[n])) return;
    GraphNodeInfo info(nodes_[n]);
    info.settings = settings_;
    PlacementNode& place = placement_.nodes[n];
    place.is_host_op = is_host_op(info);
    place.is_small = place.is_host_op && makes_few(info);
    place.may_join = place.claimable ? has_op_[n] && !sized_by_data_[n] : place.is_host_op;
    if (place.may_join && place.claimable) go_without_bounds(place, info);
  }

  // A node with bodies joins as one that has an op does.
  void see_bodies(Claim::Declined& node) {
    const size_t n = places_.at(node.at);
    PlacementNode& place = placement_.nodes[n];
    if (!compiled_ || !place.claimable || has_op_[n]) return;
    node.why = place_bodies(
        place, node.at, *compiled_, settings_, [this](const std::string& name) { return numbers_.at(name); },
        [this](int value) { return name_of(value); });
    place.may_join = node.why.empty();
    if (place.may_join) node.why = "what it does is not known from shapes";
  }
  std::string name_of(int value) const {
    return std::ranges::find(numbers_, value, [](const auto& one) { return one.second; })->first;
  }

  void take(const std::vector<int>& part_of, Claim& claim) {
    const HostPart on_host = host_part(placement_, part_of);
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (part_of[n] == kInSmallRegion) claim.in_small_regions.insert(nodes_[n]);
      if (part_of[n] < 0) continue;
      claim.parts.resize(std::max(claim.parts.size(), size_t(part_of[n]) + 1));
      claim.parts[size_t(part_of[n])].push_back(nodes_[n]);
      if (!on_host.nodes[n]) continue;
      const GraphNodeInfo info(nodes_[n]);
      for (int i = 0; i < info.output_count(); ++i)
        if (info.has_output(i)) claim.on_host.insert(info.output_value(i));
    }
    for (auto* left : {&claim.declined, &claim.control_flow})
      std::erase_if(*left, [&](const Claim::Declined& one) { return part_of[places_.at(one.at)] >= 0; });
    placement_ = with_parts(std::move(placement_), part_of);
  }

  void add(const OrtNode* node, Claim& claim) {
    places_.emplace(node, places_.size());
    GraphNodeInfo info(node);
    info.settings = settings_;
    const ops::OpRow* const row = ops::find_row(info.domain(), info.op_type(), info.since_version());
    PlacementNode place;
    place.name = ops::label_of(info);
    place.inputs = number(node, api_.Node_GetNumInputs, api_.Node_GetInputs, &info);
    place.outputs = number(node, api_.Node_GetNumOutputs, api_.Node_GetOutputs, nullptr);
    place.host_inputs = flags(place.inputs.size(), row ? row->host_inputs : std::vector<int>());
    place.host_outputs = flags(place.outputs.size(), row ? row->host_outputs : std::vector<int>());
    // Of a graph that was looked at before, in which onnxruntime has put functions' nodes since.
    is_fused_.push_back(!row && ep_of(node) == ep_name_);
    if (is_fused_.back()) {
      place.claimable = true;
    } else if (!is_taken_by_another(node)) {
      std::string why = why_not(row, info, node);
      place.claimable = why.empty();
      if (place.claimable && !fits_channels_last(info)) claim.fixed_layout.insert(info.op_type());
      if (!why.empty())
        claim.declined.push_back({.node = place.name,
                                  .why = std::move(why),
                                  .at = node,
                                  .seldom_elsewhere = row && info.domain() == ops::kMicrosoft});
    }
    const std::vector<NamedBody> bodies = bodies_of(node);
    if (!bodies.empty()) claim.control_flow.push_back({place.name, "", node});
    if (info.op_type() == "If" || info.op_type() == "Scan")
      for (const NamedBody& body : bodies)
        if (const std::string lost = lost_output(info.op_type(), body.graph); !lost.empty())
          claim.ill_formed.push_back(text(place.name, " hands on '", lost, "', an output of its body that is ",
                                          "another output too, or an input, and onnxruntime loses such values; ",
                                          "put an Identity between"));
    place.shape_like = bodies.empty() && is_shape_like(info) && !divides_by_a_constant_around(info, place);
    sized_by_data_.push_back(row && row->reads_back);
    has_op_.push_back(row && row->make);
    for (int value : number(node, api_.Node_GetNumImplicitInputs, api_.Node_GetImplicitInputs, nullptr))
      if (value >= 0) place.read_inside.push_back(value);
    placement_.nodes.push_back(std::move(place));
  }

  // From 1.30 on onnxruntime's CPU provider looks for a constant divisor that is zero when it makes the kernel,
  // wherever the constant is: on the device, if it is of a graph around where a node there reads it.
  bool divides_by_a_constant_around(const GraphNodeInfo& info, const PlacementNode& place) const {
    const bool divides = info.op_type() == "Div" || info.op_type() == "Mod";
    return divides && ops::kIndices.has(info.input_type(1)) && constants_around_[size_t(place.inputs.at(1))];
  }

  static bool fits_channels_last(const GraphNodeInfo& info) {
    if (info.domain() == ops::kChannelsLast) return true;
    const ops::OpRow* const row = ops::find_row(ops::kChannelsLast, info.op_type(), info.since_version());
    return row && info.domain().empty() && ops::why_declined(*row, info).empty();
  }

  bool is_taken_by_another(const OrtNode* node) const {
    const std::string_view ep = ep_of(node);
    return !ep.empty() && ep != ep_name_;
  }

  std::string why_not(const ops::OpRow* row, const GraphNodeInfo& info, const OrtNode* node) const {
    const std::string op = (info.domain().empty() ? "" : info.domain() + ".") + info.op_type();
    if (!row && op == "Scan")  // the first one, of opset 8
      return "Encore has no kernel for Scan of version 8, for onnxruntime lets plugins have those from version 9 on";
    if (!row) return text("Encore has no kernel for ", op, " of version ", info.since_version());
    std::string why = ops::why_declined(*row, info);
    if (why.empty()) why = read_in_two_places(*row, info);
    if (!why.empty()) return why;
    if (info.op_type() == "Loop" || info.op_type() == "Scan")
      for (const NamedBody& body : bodies_of(node))
        if (runs_elsewhere(body.graph, ep_name_))
          return "no node of its body is on Encore, so each iteration would copy to the device and back";
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
        const bool constant = is_constant(values[i]);
        bool required = false, optional = false, outer = false;
        check(api_.ValueInfo_IsRequiredGraphInput(values[i], &required));
        check(api_.ValueInfo_IsOptionalGraphInput(values[i], &optional));
        check(api_.ValueInfo_IsFromOuterScope(values[i], &outer));
        const bool input = required || optional;
        // A body's are where its node puts them.
        placement_.host_friendly.push_back(info && is_host_friendly(*info, int(i), constant, input && !is_body_));
        placement_.from_outside.push_back((input || outer) && !constant);
        placement_.from_around.push_back(outer && !constant);
        constants_around_.push_back(outer && constant);
        placement_.wanted_on_host.push_back(name == wanted_on_host_);
        placement_.large_constants.push_back(constant && !(info && is_small(info->input_dims(int(i)))));
        placement_.on_host.push_back(std::find(on_host_.begin(), on_host_.end(), name) != on_host_.end());
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

  const OrtApi& api_ = *ort().api;
  OrtEpGraphSupportInfo* support_;
  const std::string& ep_name_;
  const ops::Settings& settings_;
  const Compiled* const compiled_;
  std::vector<const OrtNode*> nodes_;
  bool is_body_ = false;
  const OrtNode* loop_ = nullptr;     // whose body it is
  std::vector<std::string> on_host_;  // values by name
  std::string wanted_on_host_;        // likewise
  std::unordered_map<const OrtNode*, size_t> places_;
  std::vector<bool> sized_by_data_, has_op_, is_fused_;  // nodes
  std::vector<bool> constants_around_;                   // values
  PlacementGraph placement_;
  std::unordered_map<std::string, int> numbers_;
};

}  // namespace

Claim examine(const OrtGraph* graph, OrtEpGraphSupportInfo* support, const std::string& ep_name,
              const ops::Settings& settings, Parts parts, const Compiled* compiled) {
  return Examination(graph, support, ep_name, settings, compiled).run(parts);
}

}  // namespace encore::plugin
