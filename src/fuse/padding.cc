#include "fuse/padding.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "fuse/row_rules.h"

namespace encore::fuse {
namespace {

constexpr size_t kMostPicks = 8;  // of axes that are divided into groups

class Walk {
 public:
  Walk(Plan plan, std::string name, int64_t dim, int64_t longest)
      : plan_(std::move(plan)), name_(std::move(name)), known_{dim, longest, {}, {}, {}}, match_(plan_, nullptr) {
    known_.rows.resize(plan_.values.size());
  }

  PaddedAxes run() {
    std::vector<Axes> inputs;
    for (int input : plan_.inputs) inputs.push_back(rows_of(input));
    follow_all(inputs);
    return {axes_of(plan_.inputs), axes_of(plan_.outputs), std::move(masked_), std::move(lookups_)};
  }

  // What others make has the dimension where its dimensions have the name.
  std::map<int, std::string> refused() {
    std::map<int, std::string> refused;
    std::vector<Axes> inputs;
    for (int input : plan_.inputs) inputs.push_back(named_rows_of(input));
    follow_all(inputs, [&](int step, const Error& error) {
      if (!match_.step(step).bodies.empty()) refused[step] = error.what();
      for (int output : match_.step(step).outputs)
        if (output >= 0) set(output, named_rows_of(output));
    });
    return refused;
  }

 private:
  using Axes = std::vector<Rows>;  // of a value: each is for itself
  using Refused = std::function<void(int step, const Error& error)>;

  // From what the inputs have, those in host memory behind the others.
  void follow_all(const std::vector<Axes>& inputs, const Refused& refused = {}) {
    for (size_t v = 0; v < plan_.values.size(); ++v)
      if (plan_.values[v].is_constant) set(int(v), {});
    const size_t count = plan_.inputs.size();
    for (size_t i = 0; i < inputs.size(); ++i)
      set(i < count ? plan_.inputs[i] : plan_.host_inputs[i - count], inputs[i]);
    for (int step = 0; step < match_.size(); ++step) try {
        follow(step);
      } catch (const Error& error) {
        if (!refused) throw;
        refused(step, error);
      }
  }
  void follow(int step) {
    infer_dims(match_, step);
    const Step& one = match_.step(step);
    if (one.compiled) return follow_compiled(one);
    if (!one.bodies.empty()) return follow_bodies(one);
    note_volumes(one);
    follow_operator(step);
  }

  static bool is_sized(const Axes& axes) { return !axes.empty() && axes[0].axis == kSized; }
  struct Made {
    Axes axes;
    std::vector<PaddingMask> masks;
    std::optional<Lookup> lookup;
  };

  Axes rows_of(int v) const {
    const Value& value = plan_.values[size_t(v)];
    Axes axes;
    for (size_t i = 0; value.dims && i < value.dims->size(); ++i)
      if ((*value.dims)[i] == known_.dim) axes.emplace_back(int(i), Beside());
    if (axes.size() > 1) fail(Code::not_supported, "'", value.name, "' has the dimension '", name_, "' twice");
    if (!axes.empty()) check_is_whole(value);
    return axes;
  }
  Axes named_rows_of(int value) const {
    try {
      return rows_of(value);
    } catch (const Error&) {
      return {};
    }
  }
  static void check_is_whole(const Value& value) {
    if (device::is_packed(value.type)) fail(Code::not_supported, "'", value.name, "' has several elements in a byte");
  }

  // What is not padded of a value is as long as ever, and what has all the rows and nothing else is as long as they
  // are.
  void set(int value, Axes axes) {
    auto& dims = plan_.values[size_t(value)].dims;
    for (const Rows& rows : axes)
      if (dims && rows.axis >= 0 && size_t(rows.axis) < dims->size() && rows.beside == Beside())
        (*dims)[size_t(rows.axis)] = known_.dim;
    for (int i = 0; dims && !is_sized(axes) && i < int(dims->size()); ++i)
      if (const int64_t dim = (*dims)[size_t(i)];
          dim < -1 && dim != known_.dim && std::ranges::find(axes, i, &Rows::axis) == axes.end())
        known_.fixed.insert(dim);
    known_.rows[size_t(value)] = std::move(axes);
  }

  // Of what a Reshape merges.
  void note_volumes(const Step& step) {
    if (!is_onnx(*step.node, "Reshape")) return;
    const auto target = ShapeSymbols(match_).target(step);
    const auto &before = plan_.values[size_t(step.inputs[0])].dims, &made = plan_.values[size_t(step.outputs[0])].dims;
    if (!target || !before || !made || made->size() != target->size()) return;
    const auto whole = volume_of(*before, 0, before->size(), known_.volumes);
    const Volumes volumes = volumes_of(*target, whole, known_.volumes);
    for (size_t i = 0; i < made->size(); ++i)
      if (const int64_t dim = (*made)[i]; (*target)[i] == -1 && dim < -1 && volumes[i])
        known_.volumes[dim] = *volumes[i];
  }

  void follow_operator(int at) {
    const Step& step = match_.step(at);
    bool is_sized_one = false, has_rows = false;
    for (int v : step.inputs)
      if (v >= 0 && !known_.rows[size_t(v)].empty())
        (is_sized(known_.rows[size_t(v)]) ? is_sized_one : has_rows) = true;
    const RowRule rule = has_rows || (is_sized_one && makes_rows(*step.node)) ? find_row_rule(*step.node) : nullptr;
    if (has_rows && !rule) seen(step, {}).refuse("may bring its rows together, for all that is known of this operator");
    for (size_t i = 0; i < step.outputs.size(); ++i) {
      const int output = step.outputs[i];
      if (output < 0) continue;
      Made made = rule ? made_by(step, rule, i) : Made{is_sized_one ? Axes{kSized} : Axes(), {}, {}};
      if (is_sized(made.axes) && is_fixed_list(output)) made.axes.clear();
      for (const PaddingMask& mask : made.masks) masked_[mask].push_back(at);
      if (made.lookup) lookups_[at] = *made.lookup;
      set(output, std::move(made.axes));
    }
  }

  // Nothing else is along the axes.
  static bool are_whole(const Axes& axes) {
    return is_sized(axes) || std::ranges::all_of(axes, [](const Rows& rows) { return rows.beside == Beside(); });
  }
  static bool are_same(const Axes& one, const Axes& other) {
    return is_sized(one) == is_sized(other) && std::ranges::is_permutation(one, other, {}, &Rows::axis, &Rows::axis);
  }
  const Axes& axes(int value) const {
    static const Axes none;
    return value < 0 ? none : known_.rows[size_t(value)];
  }

  void follow_compiled(const Step& step) {
    const auto* const part = dynamic_cast<const CompiledPart*>(step.compiled.get());
    const PaddedAxes* const own = part ? part->padded_axes(name_) : nullptr;
    bool is_sized_one = false;
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      const Axes& found = axes(step.inputs[i]);
      const int wanted = own ? own->inputs[i] : kUnpadded;
      const bool fits = wanted >= 0       ? found.size() == 1 && found[0].axis == wanted && are_whole(found)
                        : is_sized(found) ? own == nullptr
                                          : found.empty();
      if (!fits) fail(Code::not_supported, part ? part->nodes() : "a part", " has it otherwise than its inputs tell");
      is_sized_one |= is_sized(found);
    }
    for (size_t i = 0; i < step.outputs.size(); ++i)
      if (step.outputs[i] >= 0)
        set(step.outputs[i], own && own->outputs[i] >= 0 ? Axes{Rows(own->outputs[i], Beside())}
                             : is_sized_one              ? Axes{kSized}
                                                         : Axes());
  }

  // Both branches have the rows where the other one has them, and a loop has them where it had them before.
  void follow_bodies(const Step& step) {
    const auto refuse = [&](const std::string& why) { seen(step, {}).refuse(why); };
    const bool is_loop = is_onnx(*step.node, "Loop"), is_scan = is_onnx(*step.node, "Scan");
    const size_t own = is_scan ? 0 : is_loop ? 2 : 1;
    for (size_t i = 0; i < own; ++i)
      if (const Axes& told = axes(step.inputs[i]); !told.empty())
        refuse(is_sized(told) ? "goes by its length" : "goes by its rows");
    std::vector<Axes> inputs;
    for (size_t i = own; i < step.inputs.size(); ++i) {
      inputs.push_back(axes(step.inputs[i]));
      if (!are_whole(inputs.back())) refuse("has it inside of an axis");
    }
    const Plan& first = *step.bodies[0].plan;
    const size_t scanned = size_t(is_scan ? step.node->get_int("num_scan_inputs", 0) : 0);
    const size_t told = is_loop && first.by_data ? 2 : 0;  // on the device: the iteration's number and the condition
    const size_t on_host = first.host_carried;
    const size_t carried = own == 1 ? 0 : on_host + first.inputs.size() - first.outer_inputs - scanned - told;
    for (size_t i = 0; i < carried + scanned; ++i) move(inputs[i], i < carried ? 0 : -1, step);
    const std::vector<Axes> begins(inputs.begin(), inputs.begin() + ptrdiff_t(carried));
    if (on_host > 0)
      std::rotate(inputs.begin(), inputs.begin() + ptrdiff_t(on_host),
                  inputs.begin() + ptrdiff_t(on_host + first.inputs.size()));
    if (is_loop) inputs.insert(inputs.begin() + ptrdiff_t(told ? 0 : first.inputs.size()), 2, Axes());
    std::vector<Outgoing> made = through(step.bodies[0], inputs);
    if (is_loop && !made[0].axes.empty()) refuse("may end by its length, or by its rows");
    if (is_loop) made.erase(made.begin());
    for (size_t i = 0; i < carried; ++i)
      if (!are_same(begins[i], made[i].axes)) refuse(text("hands on its value ", i, " otherwise than it begins"));
    for (size_t i = 0; i < made.size(); ++i) {
      const bool is_collected = own != 1 && i >= carried;
      move(made[i].axes, is_collected, step);
      if (is_collected && made[i].rank) ++*made[i].rank;
    }
    for (size_t b = 1; b < step.bodies.size() && !is_loop; ++b) {  // a loop's second one does the same
      std::vector<Outgoing> others = through(step.bodies[b], inputs);
      for (size_t i = 0; i < made.size(); ++i) {
        move(others[i].axes, 0, step);
        if (!are_same(made[i].axes, others[i].axes))
          refuse(text("has it otherwise in output ", i, " of one branch than of the other"));
        if (made[i].rank != others[i].rank) made[i].rank.reset();
      }
    }
    for (size_t i = 0; i < step.outputs.size(); ++i)
      if (const int output = step.outputs[i]; output >= 0) {
        tell_rank(plan_.values[size_t(output)], made[i].rank);
        set(output, std::move(made[i].axes));
      }
  }
  // onnxruntime often knows nothing of what comes out of a node with bodies.
  void tell_rank(Value& value, std::optional<size_t> rank) {
    if (value.dims || !rank) return;
    value.dims.emplace(*rank);
    for (int64_t& dim : *value.dims) dim = plan_.symbols->add("");
  }
  // Of their values nothing is known that may be otherwise in another iteration or branch.
  void move(Axes& axes, int by, const Step& step) const {
    for (Rows& rows : axes) {
      if (rows.axis == kSized) continue;
      if (rows.count && rows.first == 0) seen(step, {}).refuse("hands on the numbers of its rows");
      rows = {rows.axis + by, Beside()};
      if (rows.axis < 0) seen(step, {}).refuse("goes along it");
    }
  }

  struct Outgoing {
    Axes axes;
    std::optional<size_t> rank;
  };
  // What comes out of a body. Masks are inputs of the plan, and come to none.
  std::vector<Outgoing> through(const Body& body, const std::vector<Axes>& inputs) const {
    Plan plan = *body.plan;
    forget(plan, name_);
    const int64_t dim = plan.symbols->add(name_);
    Walk inside(std::move(plan), name_, dim, known_.longest);
    inside.follow_all(inputs);
    for (const auto& [mask, steps] : inside.masked_)
      inside.seen(inside.match_.step(steps[0]), {}).refuse("brings its rows together in a body");
    std::vector<Outgoing> made;
    for (int output : inside.plan_.outputs) {
      const Value& value = inside.plan_.values[size_t(output)];
      made.push_back({inside.axes(output), value.dims ? std::optional(value.dims->size()) : std::nullopt});
      if (!are_whole(made.back().axes))
        fail(Code::not_supported, "the output '", value.name, "' of a body has '", name_, "' inside of an axis");
    }
    return made;
  }
  // A body may have the name for something else.
  static void forget(Plan& plan, const std::string& name) {
    for (Value& value : plan.values)
      for (size_t i = 0; value.dims && i < value.dims->size(); ++i)
        if (int64_t& dim = (*value.dims)[i]; plan.symbols->has_name(dim) && plan.symbols->name(dim) == name)
          dim = plan.symbols->add("");
  }

  // An axis of an input, by its place among that one's.
  struct Pick {
    size_t input, place;
  };
  using Picks = std::vector<Pick>;

  PaddedStep seen(const Step& step, const Picks& picks) const {
    std::vector<Rows> rows(step.inputs.size());
    for (size_t i = 0; i < rows.size(); ++i)
      if (const int v = step.inputs[i]; v >= 0 && is_sized(known_.rows[size_t(v)])) rows[i] = kSized;
    for (const Pick& pick : picks) rows[pick.input] = known_.rows[size_t(step.inputs[pick.input])][pick.place];
    return {match_, step, std::move(rows), known_};
  }

  // Axes that go together are padded together, and others could as well be of another dimension: so what the step makes
  // of them is found for some at a time, the others being as they are.
  Made made_by(const Step& step, RowRule rule, size_t output) const {
    Picks all;
    bool has_several = false;
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      if (step.inputs[i] < 0 || is_sized(known_.rows[size_t(step.inputs[i])])) continue;
      const Axes& axes = known_.rows[size_t(step.inputs[i])];
      for (size_t place = 0; place < axes.size(); ++place) all.push_back({i, place});
      has_several |= axes.size() > 1;
    }
    Made found = has_several ? Made() : made_together(step, rule, output, all);
    if (has_several) {
      std::optional<Error> why;
      if (all.size() > kMostPicks) seen(step, {}).refuse("has it along many axes");
      if (!divide(step, rule, output, all, found, why)) throw *why;
    }
    if (!is_sized(found.axes) && makes_rows(*step.node))
      for (int axis : added_axes(seen(step, {}))) found.axes.emplace_back(axis, Beside());
    return found;
  }
  // If it can't be, they may come apart, each with an axis of its own.
  Made made_together(const Step& step, RowRule rule, size_t output, const Picks& all) const {
    Made found;
    try {
      add(seen(step, all), rule, output, found);
    } catch (const Error&) {
      std::optional<Error> why;
      if (all.size() < 2 || all.size() > kMostPicks || !divide(step, rule, output, all, found, why)) throw;
    }
    return found;
  }
  static void add(const PaddedStep& step, RowRule rule, size_t output, Made& found) {
    Rows rows = rule(step, output);
    const auto masks = std::exchange(rows.masks, {});
    found.masks.insert(found.masks.end(), masks.begin(), masks.end());
    if (rows.lookup) found.lookup = rows.lookup;
    if (rows.axis == kUnpadded || is_sized(found.axes)) return;
    if (rows.axis == kSized) found.axes.clear();
    if (rows.axis >= 0 && !rows.beside) rows.beside = step.beside();
    if (std::ranges::find(found.axes, rows.axis, &Rows::axis) != found.axes.end())
      step.refuse("has it along one axis twice");
    found.axes.push_back(std::move(rows));
  }

  // Finds groups that the rule lets through, the first of which has the first of what is left; or why there are none.
  bool divide(const Step& step, RowRule rule, size_t output, const Picks& left, Made& found,
              std::optional<Error>& why) const {
    if (left.empty()) return true;
    for (size_t others = size_t(1) << (left.size() - 1); others-- > 0;) {
      Picks group{left[0]}, rest;
      for (size_t i = 1; i < left.size(); ++i) (others >> (i - 1) & 1 ? group : rest).push_back(left[i]);
      const auto is_twice = [&](const Pick& pick) { return std::ranges::count(group, pick.input, &Pick::input) > 1; };
      if (std::ranges::any_of(group, is_twice)) continue;
      Made with = found;
      try {
        add(seen(step, group), rule, output, with);
      } catch (const Error& error) {
        why = error;
        continue;
      }
      if (!divide(step, rule, output, rest, with, why)) continue;
      found = std::move(with);
      return true;
    }
    return false;
  }

  // Of computed integers: all are dimensions that are not padded.
  bool is_fixed_list(int value) const {
    std::vector<int> steps;
    const auto held = ShapeSymbols(match_).contents(value, steps);
    return held &&
           std::ranges::all_of(*held, [&](int64_t symbol) { return symbol >= 0 || known_.fixed.contains(symbol); });
  }

  std::vector<int> axes_of(const std::vector<int>& values) const {
    std::vector<int> axes;
    for (int v : values) {
      const Axes& rows = known_.rows[size_t(v)];
      const auto refuse = [&](const auto&... why) {
        fail(Code::not_supported, "the output '", plan_.values[size_t(v)].name, "' ", why...);
      };
      if (is_sized(rows)) refuse("depends on how long '", name_, "' is");
      if (rows.size() > 1) refuse("has '", name_, "' along two axes");
      if (!rows.empty()) check_is_whole(plan_.values[size_t(v)]);
      if (!rows.empty() && rows[0].beside->outside != Volume()) refuse("has '", name_, "' inside of an axis");
      axes.push_back(rows.empty() ? kUnpadded : rows[0].axis);
    }
    return axes;
  }

  Plan plan_;
  const std::string name_;
  PaddedStep::Known known_;
  Match match_;
  std::map<PaddingMask, std::vector<int>> masked_;
  std::map<int, Lookup> lookups_;
};

// What has been compiled with masks runs by itself alone.
void check_bodies(const Step& step) {
  for (const Body& body : step.bodies)
    for (const Step& inner : body.plan->steps) {
      check_bodies(inner);
      if (const auto* const part = dynamic_cast<const CompiledPart*>(inner.compiled.get()); part && part->has_masks())
        fail(Code::not_supported, part->nodes(), ", in a body of ", ops::label_of(*step.node),
             ", brings rows together, which masks keep apart there");
    }
}

}  // namespace

bool PaddedAxes::any() const {
  return std::ranges::any_of(inputs, [](int axis) { return axis >= 0; });
}

std::optional<int64_t> find_dim(const Plan& plan, const std::string& name) {
  for (int input : plan.inputs)
    for (const int64_t symbol : plan.values[size_t(input)].dims.value_or(Dims()))
      if (plan.symbols->has_name(symbol) && plan.symbols->name(symbol) == name) return symbol;
  return std::nullopt;
}

PaddedAxes padded_axes(Plan plan, const std::string& dim, int64_t longest) {
  for (const Step& step : plan.steps) check_bodies(step);
  const auto symbol = find_dim(plan, dim);
  if (!symbol) return {std::vector<int>(plan.inputs.size(), -1), std::vector<int>(plan.outputs.size(), -1), {}, {}};
  return Walk(std::move(plan), dim, *symbol, longest).run();
}

std::map<int, std::string> refused_bodies(Plan plan, const std::string& dim, int64_t longest) {
  std::map<int, std::string> refused;
  const auto symbol = find_dim(plan, dim);
  if (symbol) refused = Walk(plan, dim, *symbol, longest).refused();
  for (size_t step = 0; step < plan.steps.size(); ++step) try {
      check_bodies(plan.steps[step]);
    } catch (const Error& error) {
      refused.emplace(int(step), error.what());
    }
  return refused;
}

}  // namespace encore::fuse
