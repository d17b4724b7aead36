#include "plugin/model/bodies.h"

#include <algorithm>
#include <unordered_map>

#include "ops/bound_alone.h"
#include "ops/registry.h"
#include "plugin/host/fence.h"
#include "plugin/model/carried.h"
#include "plugin/model/few_numbers.h"
#include "plugin/model/graph_reading.h"
#include "plugin/model/placement.h"
#include "plugin/model/scan_axes.h"

namespace encore::plugin {
namespace {

class Examination {
 public:
  Examination(const OrtNode* node, const NamedBody& body, const Compiled& compiled, const ops::Settings& settings,
              const ByData& by_data)
      : compiled_{compiled.ep, compiled.find, compiled.size, compiled.why_not_by_data},  // inside nothing is fetched
        settings_(settings),
        by_data_(by_data),
        place_(text(" in the ", body.name, " of ", label_of(node))) {
    for (const auto& [name, begins] : unchanged_values(node)) outer_names_.emplace(name, names_of({begins})[0]);
    for (const std::string& input : inputs_of(body.graph))
      if (!outer_names_.contains(input)) values_[size_t(number(input))].is_inside = true;
    for (const auto& [name, begins] : unchanged_values(node))
      if (is_constant(begins)) values_[size_t(number(name))].is_constant = true;
    for (const OrtNode* inner : nodes_of(body.graph)) add(inner);
    for (const OrtValueInfo* output : output_values_of(body.graph))
      if (is_constant(output)) values_[size_t(number(names_of({output})[0]))].is_constant = true;
    if (GraphNodeInfo(node).op_type() != "Loop" || by_data.decides) return;
    // The number of the iteration and the condition are on the host, and the next condition is wanted there.
    values_[0].is_on_host = values_[1].is_on_host = true;
    const int condition = number(outputs_of(body.graph).at(0));
    want_on_host("the next condition", condition);
    const std::vector<CarriedValue> carried = carried_values(node);
    for (size_t i = 0; by_data.host_carries && i < carried.size(); ++i) {
      const CarriedValue& value = carried[i];
      if (value.is_unchanged || !value.may_be_number) continue;
      if (is_constant(value.begins) || !by_data.not_on_host.contains(names_of({value.begins})[0]))
        carried_.push_back({i, {number(value.name), number(value.next)}});
    }
  }

  BodyClaim run() {
    BodyClaim claim{why_not_, {}, {}, {}};
    if (!claim.why_not.empty()) return claim;
    see_what_is_lacking();
    claim.host_carried = carry_on_host();
    see_what_is_lacking();
    const std::vector<int> whole(graph_.nodes.size());
    // At first what comes from outside is on the host wherever it is wanted there, and nothing else is computed there.
    PlacementGraph wanting = graph_;
    for (PlacementNode& node : wanting.nodes) node.is_small = false;
    HostPart wanted;
    for (bool changed = true; changed;) {
      changed = false;
      wanted = host_part(wanting, whole);
      for (const auto& [n, values] : wanted.lacking) {
        PlacementNode& node = wanting.nodes[size_t(n)];
        if (!node.do_without || !node.do_without(node, values)) continue;
        graph_.nodes[size_t(n)] = node;
        changed = true;
      }
    }
    if (!wanted.lacking.empty()) {
      claim.why_not =
          text(graph_.nodes[size_t(wanted.lacking[0].node)].name, place_, " reads on the host what is not there");
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
  void see_what_is_lacking() {
    graph_.from_outside.resize(values_.size());
    for (size_t v = 0; v < values_.size(); ++v)
      graph_.from_outside[v] =
          values_[v].is_outer() ? by_data_.not_on_host.contains(values_[v].name) : values_[v].is_lacking();
  }

  // What the host has to hand on it has, and has to make anew.
  std::vector<size_t> carry_on_host() {
    std::vector<Carried> ends;
    for (const auto& [i, carried] : carried_) ends.push_back(carried);
    const HostCarried on_host = carried_on_host(graph_, ends);
    std::vector<size_t> chosen;
    for (size_t c = 0; c < carried_.size(); ++c) {
      if (!on_host.values[c]) continue;
      const auto& [i, carried] = carried_[c];
      values_[size_t(carried.value)].is_on_host = true;
      want_on_host("the next value of a loop", carried.next);
      chosen.push_back(i);
    }
    return chosen;
  }
  void want_on_host(const char* who, int value) {
    graph_.nodes.push_back({who, {value}, {}, {true}, {}});
    graph_.nodes.back().claimable = true;
  }

  struct Value {
    std::string name;
    bool is_constant = false, is_inside = false;  // the latter: it is an input of the body, or made there
    bool is_on_host = false;
    bool is_outer() const { return !is_constant && !is_inside; }
    bool is_lacking() const { return is_inside && !is_on_host; }
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
      go_without_bounds(node, info);
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
    for (const std::string& name : names_of(read_inside(inner))) node.read_inside.push_back(number(name));
    return place_bodies(
        node, inner, compiled_, settings_, [this](const std::string& name) { return number(name); },
        [this](int value) { return values_[size_t(value)].name; });
  }

  int number(const std::string& name) {
    const auto outer = outer_names_.find(name);
    if (outer != outer_names_.end()) return number(outer->second);
    const auto [known, is_new] = numbers_.try_emplace(name, int(values_.size()));
    if (is_new) values_.push_back({name});
    return known->second;
  }

  const Compiled compiled_;
  const ops::Settings& settings_;
  const ByData& by_data_;
  const std::string place_;
  std::string why_not_;  // the first reason
  PlacementGraph graph_;
  std::vector<Value> values_;
  std::unordered_map<std::string, int> numbers_;
  std::map<std::string, std::string> outer_names_;   // of what a Loop hands on unchanged
  std::vector<std::pair<size_t, Carried>> carried_;  // values that the host may hand on
};

// As often as a loop's body runs, as far as constants tell; once if they don't.
int64_t times_known(const GraphNodeInfo& loop) {
  if (loop.op_type() == "Scan") {
    const int last = loop.input_count() - 1;  // of what is scanned
    const auto dims = loop.input_dims(last);
    const auto axes = scan_axes(loop.node());
    size_t axis = 0;
    for (const ScanAxis& one : axes ? axes->inputs : std::vector<ScanAxis>())
      if (one.slot == size_t(last)) axis = size_t(one.to_front[0]);
    return dims && !dims->empty() ? std::max<int64_t>((*dims)[axis], 1) : 1;
  }
  const ops::Tensor* const trips = loop.op_type() == "Loop" ? loop.constant_input(0) : nullptr;
  return trips && trips->count() == 1 ? *trips->as<const int64_t>() : 1;
}

// That run; of loops inside whose count is constant as often as that says, unless they are too long themselves.
int64_t nodes_in(const OrtGraph* body, const Compiled& compiled) {
  int64_t count = 0;
  for (const OrtNode* node : nodes_of(body)) {
    const GraphNodeInfo info(node);
    const int64_t times = times_known(info);
    count += std::max<int64_t>(1, int64_t(compiled.size(info.name())));
    for (const NamedBody& inner : bodies_of(node)) {
      const int64_t once = nodes_in(inner.graph, compiled);
      count += times > 1 && times <= kMostUnrolled / std::max<int64_t>(once, 1) ? times * once : once;
    }
  }
  return count;
}

// As far as the model tells, which may be nothing of some dimensions.
bool have_same_shape(const OrtValueInfo* one, const OrtValueInfo* other, bool if_unknown) {
  const auto dims = type_of(one).dims, other_dims = type_of(other).dims;
  if (!dims || !other_dims) return if_unknown;
  if (dims->size() != other_dims->size()) return false;
  const std::vector<std::string> names = dimension_names(one), other_names = dimension_names(other);
  for (size_t d = 0; d < dims->size(); ++d) {
    const bool is_known = (*dims)[d] >= 0 || !names[d].empty(),
               is_other = (*other_dims)[d] >= 0 || !other_names[d].empty();
    if (is_known && is_other ? (*dims)[d] != (*other_dims)[d] || names[d] != other_names[d] : !if_unknown) return false;
  }
  return true;
}

// What the model calls dimensions aside.
bool may_have_same_shape(const OrtValueInfo* one, const OrtValueInfo* other) {
  const auto dims = type_of(one).dims, other_dims = type_of(other).dims;
  return !dims || !other_dims ||
         std::ranges::equal(*dims, *other_dims, [](int64_t a, int64_t b) { return a < 0 || b < 0 || a == b; });
}

size_t carried_by(const NamedBody& loop) { return input_values_of(loop.graph).size() - 2; }

bool holds(const OrtValueInfo* constant) {
  const OrtValue* value = nullptr;
  check(ort().api->ValueInfo_GetInitializerValue(constant, &value));
  if (!value) return false;
  const ops::Tensor tensor = tensor_of(value, ops::Where::host);
  return tensor.type == ops::Type::boolean && tensor.count() == 1 && *tensor.as<const bool>();
}

// Whether no condition ends a loop that it has begun.
bool hands_on_condition(const OrtNode* loop) {
  const OrtGraph* const body = bodies_of(loop)[0].graph;
  const OrtValueInfo* const condition = output_values_of(body).at(0);
  if (is_constant(condition)) return holds(condition);
  const std::string given = inputs_of(body).at(1), name = names_of({condition})[0];
  return name == given || std::ranges::any_of(nodes_of(body), [&](const OrtNode* node) {
           const GraphNodeInfo inner(node);
           return inner.op_type() == "Identity" && inner.output_value(0) == name && inner.input_value(0) == given;
         });
}

// Whether a loop runs as often as a constant says.
bool is_counted(const OrtNode* loop) {
  const GraphNodeInfo info(loop);
  const ops::Tensor* const begins = info.constant_input(1);
  return info.constant_input(0) && (!info.has_input(1) || (begins && *begins->as<const bool>())) &&
         hands_on_condition(loop);
}

// What a loop collects is as long as data says if that decides about it.
bool collects_by_data(const OrtNode* node) {
  const GraphNodeInfo info(node);
  return info.op_type() == "Loop" && size_t(info.output_count()) > carried_by(bodies_of(node)[0]) && !is_counted(node);
}

// Whether a graph may have all iterations one by one, as many as a constant allows.
bool is_short(const OrtNode* loop, const Compiled& compiled) {
  const ops::Tensor* const most = GraphNodeInfo(loop).constant_input(0);
  return most && most->count() == 1 && *most->as<const int64_t>() <= most_unrolled(loop, compiled);
}

// All shapes are to be known before data on the device decides; exporters tell few of a loop's values, which most often
// keep theirs, and where one does not, no graph is captured.
std::string why_not_by_data(const OrtNode* node, const Compiled& compiled, const ByData& by_data) {
  const GraphNodeInfo info(node);
  const std::string label = label_of(info);
  const std::vector<NamedBody> bodies = bodies_of(node);
  if (!compiled.why_not_by_data.empty()) return compiled.why_not_by_data;
  const auto made = output_values_of(bodies[0].graph);
  if (info.op_type() == "If") {
    const auto others = output_values_of(bodies.at(1).graph);
    for (size_t i = 0; i < made.size(); ++i)
      if (!have_same_shape(made[i], others[i], false))
        return text("data decides between the branches of ", label, ", whose outputs ", i,
                    " may not have the same shape");
    return {};
  }
  const std::vector<CarriedValue> carried = carried_values(node);
  const auto begins = input_values_of(bodies[0].graph);
  if (!compiled.fetches && !by_data.has_count && collects_by_data(node))
    return text("data decides how often ", label, " runs, which collects outputs");
  for (size_t i = 0; i < carried.size(); ++i)  // behind the iteration's number and the condition; or a condition
    if (!carried[i].is_unchanged && !have_same_shape(begins[i + 2], made[i + 1], true) &&
        !(by_data.host_carries && may_have_same_shape(begins[i + 2], made[i + 1])) &&
        (is_read(node, i) || !is_short(node, compiled)))
      return text("data decides how often ", label, " runs, whose value '", names_of({begins[i + 2]})[0],
                  "' may change its shape; a buffer of the most that there will be, of which a part is written, keeps ",
                  "it");
  return {};
}

// Whatever the bodies have.
std::string why_not_run(const OrtNode* node, const Compiled& compiled, bool by_data) {
  const GraphNodeInfo info(node);
  const bool is_loop = info.op_type() == "Loop";
  for (const NamedBody& body : bodies_of(node))
    if (outputs_of(body.graph).size() != size_t(info.output_count()) + is_loop)
      return text(ops::label_of(info), " has other outputs than its ", body.name);
  if (is_loop && !by_data) {
    const ops::Tensor* const count = info.constant_input(0);
    if (count && count->count() == 1 && *count->as<const int64_t>() > most_unrolled(node, compiled))
      return text(ops::label_of(info), " has too many iterations");
  }
  if (!scan_axes(node))
    return text(ops::label_of(info), " scans along a dimension of which the model does not tell that it is there");
  return {};
}

// How the node runs, and what can be told of its bodies then.
struct Way {
  ByData by_data;
  BodyClaim claim;
};

// The host decides if it has all that it takes. If not, data does; and where a Loop collects, which is as long as data
// says then, or where that can't be, the host does by values that it hands on.
Way find_way(const OrtNode* node, const Compiled& compiled, const ops::Settings& settings, ByData known) {
  known.host_carries = false;
  Way way{known, examine_bodies(node, compiled, settings, known)};
  if (way.claim.why_not.empty() || known.decides || GraphNodeInfo(node).op_type() != "Loop") return way;
  Way data{known, {}}, host{known, {}};
  data.by_data.decides = host.by_data.host_carries = true;
  data.claim = examine_bodies(node, compiled, settings, data.by_data);
  if (data.claim.why_not.empty() && !collects_by_data(node)) return data;
  host.claim = examine_bodies(node, compiled, settings, host.by_data);
  if (host.claim.why_not.empty()) return host;
  return data.claim.why_not.empty() || compiled.why_not_by_data.empty() ? data : way;
}

}  // namespace

void go_without_bounds(PlacementNode& place, const ops::NodeInfo& info) {
  std::vector<bool> bounds;
  for (int i = 0; i < info.input_count(); ++i) bounds.push_back(info.has_input(i) && ops::is_bound_alone(info, i));
  if (std::ranges::count(bounds, true) == 0) return;
  place.do_without = [=](PlacementNode& to, const std::vector<int>& lacking) {
    bool is_new = false;
    for (size_t i = 0; i < bounds.size(); ++i) {
      if (!bounds[i] || !to.host_inputs[i] || !std::ranges::count(lacking, to.inputs[i])) continue;
      to.host_inputs[i] = false;
      is_new = true;
    }
    return is_new;
  };
}

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

std::vector<const OrtValueInfo*> read_by_bodies(const OrtNode* node) {
  std::vector<const OrtValueInfo*> values = read_inside(node);
  std::vector<std::string> names = names_of(values);
  for (const auto& [inside, begins] : unchanged_values(node)) {
    const std::string name = names_of({begins})[0];
    if (is_constant(begins) || std::ranges::find(names, name) != names.end()) continue;
    names.push_back(name);
    values.push_back(begins);
  }
  return values;
}

BodyClaim examine_body(const OrtNode* node, const NamedBody& body, const Compiled& compiled,
                       const ops::Settings& settings, const ByData& by_data) {
  return Examination(node, body, compiled, settings, by_data).run();
}

BodyClaim examine_bodies(const OrtNode* node, const Compiled& compiled, const ops::Settings& settings,
                         const ByData& by_data) {
  BodyClaim all;
  all.why_not = why_not_run(node, compiled, by_data.decides);
  if (all.why_not.empty() && by_data.decides) all.why_not = why_not_by_data(node, compiled, by_data);
  for (const NamedBody& body : bodies_of(node)) {
    BodyClaim claim = examine_body(node, body, compiled, settings, by_data);
    if (all.why_not.empty()) all.why_not = std::move(claim.why_not);
    all.host_reads.merge(claim.host_reads);
    all.host_carried = std::move(claim.host_carried);
  }
  const std::vector<std::string> read = names_of(read_by_bodies(node));
  for (const std::string& value : all.host_reads)
    if (std::ranges::find(read, value) == read.end() && all.why_not.empty())
      all.why_not = text("onnxruntime does not tell that bodies of ", label_of(node), " read '", value, "'");
  return all;
}

bool may_go_by_data(const OrtNode* loop, const Compiled& compiled) {
  const NamedBody body = bodies_of(loop)[0];
  const auto begins = input_values_of(body.graph), made = output_values_of(body.graph);
  const std::vector<CarriedValue> carried = carried_values(loop);
  if (!compiled.why_not_by_data.empty() || made.size() > carried.size() + 1) return false;
  for (size_t i = 0; i < carried.size(); ++i)
    if (!carried[i].is_unchanged && !have_same_shape(begins[i + 2], made[i + 1], true)) return false;
  return true;
}

ByData by_data(const OrtNode* node, const Compiled& compiled, const ops::Settings& settings,
               const std::function<bool(const std::string&)>& is_on_host) {
  ByData found;
  std::vector<std::string> names = names_of(read_by_bodies(node));
  for (const CarriedValue& value : carried_values(node))
    if (value.may_be_number && !is_constant(value.begins)) names.push_back(names_of({value.begins})[0]);
  for (const std::string& name : names)
    if (!is_on_host(name)) found.not_on_host.insert(name);
  const GraphNodeInfo info(node);
  const bool is_loop = info.op_type() == "Loop";
  for (int i = 0; i < (is_loop ? 2 : info.op_type() == "If"); ++i)
    found.decides |= info.has_input(i) && !info.is_constant(i) && !is_on_host(info.input_value(i));
  if (!is_loop || found.decides) return found;
  const Way way = find_way(node, compiled, settings, found);
  found = way.by_data;
  found.decides |= !way.claim.why_not.empty();
  return found;
}

int64_t most_unrolled(const OrtNode* loop, const Compiled& compiled) {
  return kMostUnrolled / std::max<int64_t>(nodes_in(bodies_of(loop)[0].graph, compiled), 1);
}

bool is_once_beyond(const OrtNode* node, const Compiled& compiled) {
  const GraphNodeInfo info(node);
  if (info.op_type() != "Scan" || !compiled.why_not_by_data.empty()) return false;
  return times_known(info) == 1 || times_known(info) > most_unrolled(node, compiled);
}

std::optional<Beyond> beyond_unrolled(const OrtNode* node, const Compiled& compiled, const ops::Settings& settings,
                                      const ByData& known, const BodyClaim& claim) {
  const GraphNodeInfo info(node);
  if (info.op_type() != "Loop" || known.decides || info.constant_input(0)) return std::nullopt;
  if (!info.has_input(0) && hands_on_condition(node)) return std::nullopt;
  Beyond beyond{known, {}};
  beyond.by_data.decides = beyond.by_data.has_count = true;
  beyond.claim = examine_bodies(node, compiled, settings, beyond.by_data);
  if (!beyond.claim.why_not.empty() || !std::ranges::includes(claim.host_reads, beyond.claim.host_reads))
    return std::nullopt;
  return beyond;
}

std::string place_bodies(PlacementNode& place, const OrtNode* node, const Compiled& compiled,
                         const ops::Settings& settings, const std::function<int(const std::string&)>& number,
                         const std::function<std::string(int)>& name_of) {
  const bool is_loop = GraphNodeInfo(node).op_type() == "Loop";
  const auto take = [=](PlacementNode& to, const BodyClaim& claim, bool decides) {
    if (decides) to.host_inputs.assign(to.inputs.size(), false);
    for (size_t i = 0; is_loop && i + 2 < to.inputs.size(); ++i)
      to.host_inputs[i + 2] = std::ranges::count(claim.host_carried, i) > 0;
    to.fetched.clear();
    if (decides && collects_by_data(node))
      to.fetched.assign(to.outputs.begin() + ptrdiff_t(carried_by(bodies_of(node)[0])), to.outputs.end());
    std::erase(to.fetched, -1);
    to.host_reads.clear();
    for (const std::string& name : claim.host_reads) to.host_reads.push_back(number(name));
  };
  if (const auto refused = compiled.refused.find(node); refused != compiled.refused.end()) return refused->second;
  const Way way = find_way(node, compiled, settings, {});  // the condition that a body makes may be what the host lacks
  if (!way.claim.why_not.empty()) return way.claim.why_not;
  ByData known = way.by_data;
  place.has_bodies = true;
  if (known.decides || known.host_carries) place.outside = std::make_shared<const PlacementNode>(place);
  take(place, way.claim, known.decides);
  place.do_without = [=, &compiled, &settings](PlacementNode& to, const std::vector<int>& lacking) mutable {
    ByData wanted = known;
    for (int value : lacking) {
      wanted.not_on_host.insert(name_of(value));
      for (size_t i = 0; i < std::min<size_t>(to.inputs.size(), 2); ++i)  // not what the host hands on
        wanted.decides |= to.host_inputs[i] && to.inputs[i] == value;
    }
    if (wanted.decides == known.decides && wanted.not_on_host == known.not_on_host) {
      to.why_outside.clear();
      return false;
    }
    const Way less = find_way(node, compiled, settings, wanted);
    to.why_outside = less.claim.why_not;
    if (!less.claim.why_not.empty()) return false;
    known = less.by_data;
    take(to, less.claim, known.decides);
    return true;
  };
  return {};
}

}  // namespace encore::plugin
