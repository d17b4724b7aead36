#include "fuse/padding.h"

#include <algorithm>

#include "fuse/row_rules.h"

namespace encore::fuse {
namespace {

// The dimension's symbol, if an input has it.
std::optional<int64_t> symbol_of(const Plan& plan, const std::string& dim) {
  for (int input : plan.inputs)
    for (const int64_t symbol : plan.values[size_t(input)].dims.value_or(Dims()))
      if (plan.symbols->has_name(symbol) && plan.symbols->name(symbol) == dim) return symbol;
  return std::nullopt;
}

class Walk {
 public:
  Walk(Plan plan, std::string name, int64_t dim)
      : plan_(std::move(plan)), name_(std::move(name)), dim_(dim), match_(plan_, nullptr) {
    for (int s = 0; s < match_.size(); ++s) infer_dims(match_, s);
    rows_.resize(plan_.values.size());
  }

  PaddedAxes run() {
    for (int input : plan_.inputs) set(input, axis_of(input));
    for (size_t v = 0; v < plan_.values.size(); ++v)
      if (plan_.values[v].is_constant) set(int(v), kUnpadded);
    for (const Step& step : plan_.steps) follow(step);
    return {axes_of(plan_.inputs), axes_of(plan_.outputs)};
  }

 private:
  int axis_of(int input) const {
    const Value& value = plan_.values[size_t(input)];
    if (!value.dims) return kUnpadded;
    const auto found = std::ranges::find(*value.dims, dim_);
    if (found == value.dims->end()) return kUnpadded;
    if (std::ranges::count(*value.dims, dim_) > 1)
      fail(Code::not_supported, "'", value.name, "' has the dimension '", name_, "' twice");
    check_is_whole(value);
    return int(found - value.dims->begin());
  }
  static void check_is_whole(const Value& value) {
    if (device::is_packed(value.type)) fail(Code::not_supported, "'", value.name, "' has several elements in a byte");
  }

  // What is not padded of a value is as long as ever.
  void set(int value, Rows rows) {
    const int axis = rows.axis;
    if (!rows.outside) rows.outside.emplace();
    rows_[size_t(value)] = std::move(rows);
    if (const auto& dims = plan_.values[size_t(value)].dims; dims && axis != kSized)
      for (int i = 0; i < int(dims->size()); ++i)
        if (i != axis && (*dims)[size_t(i)] < -1 && (*dims)[size_t(i)] != dim_) fixed_.insert((*dims)[size_t(i)]);
  }

  void follow(const Step& step) {
    const auto any = [&](auto is) {
      return std::ranges::any_of(step.inputs, [&](int v) { return v >= 0 && is(rows_[size_t(v)].axis); });
    };
    const bool has_rows = any([](int axis) { return axis >= 0; });
    const bool is_sized = any([](int axis) { return axis == kSized; });
    const PaddedStep seen(match_, step, rows_, dim_, fixed_);
    const RowRule rule = has_rows || (is_sized && makes_rows(*step.node)) ? find_row_rule(*step.node) : nullptr;
    if (has_rows && !rule) seen.refuse("may bring its rows together, for all that is known of this operator");
    for (size_t i = 0; i < step.outputs.size(); ++i)
      if (const int output = step.outputs[i]; output >= 0) {
        Rows rows = rule ? rule(seen, i) : is_sized ? kSized : kUnpadded;
        if (rows.axis >= 0 && !rows.outside) rows.outside = seen.outside();
        if (rows.axis == kSized && is_fixed_list(output)) rows = kUnpadded;
        set(output, std::move(rows));
      }
  }
  // Of computed integers: all are dimensions that are not padded.
  bool is_fixed_list(int value) const {
    std::vector<int> steps;
    const auto held = ShapeSymbols(match_).contents(value, steps);
    return held && std::ranges::all_of(*held, [&](int64_t symbol) { return symbol >= 0 || fixed_.contains(symbol); });
  }

  std::vector<int> axes_of(const std::vector<int>& values) const {
    std::vector<int> axes;
    for (int v : values) {
      const Rows& rows = rows_[size_t(v)];
      const std::string& name = plan_.values[size_t(v)].name;
      if (rows.axis == kSized)
        fail(Code::not_supported, "the output '", name, "' depends on how long '", name_, "' is");
      if (rows.axis >= 0) check_is_whole(plan_.values[size_t(v)]);
      if (rows.axis >= 0 && *rows.outside != Volume())
        fail(Code::not_supported, "the output '", name, "' has '", name_, "' inside of an axis");
      axes.push_back(rows.axis);
    }
    return axes;
  }

  Plan plan_;
  const std::string name_;
  const int64_t dim_;
  Match match_;
  std::vector<Rows> rows_;   // by value
  std::set<int64_t> fixed_;  // symbols of dimensions that padding leaves alone
};

}  // namespace

bool PaddedAxes::any() const {
  return std::ranges::any_of(inputs, [](int axis) { return axis >= 0; });
}

PaddedAxes padded_axes(Plan plan, const std::string& dim) {
  const auto symbol = symbol_of(plan, dim);
  if (!symbol) return {std::vector<int>(plan.inputs.size(), -1), std::vector<int>(plan.outputs.size(), -1)};
  return Walk(std::move(plan), dim, *symbol).run();
}

}  // namespace encore::fuse
