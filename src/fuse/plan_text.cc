#include "fuse/plan_text.h"

#include <algorithm>
#include <map>
#include <set>

#include "fuse/text_numbers.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr int kTelling = 13;          // versions before tell what broadcasting and axes mean
constexpr int64_t kMostElements = 8;  // of a constant whose values are written

bool is_plain(std::string_view name) {
  constexpr std::string_view kOthers = "_./-~'";
  return !name.empty() && name != "_" && std::ranges::all_of(name, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kOthers.find(c) != kOthers.npos;
  });
}

std::string quoted(std::string_view name) {
  std::string made = "\"";
  for (char c : name)
    if (c == '\n')
      made += "\\n";
    else
      made += (c == '"' || c == '\\') ? std::string{'\\', c} : std::string(1, c);
  return made + '"';
}
std::string word(std::string_view name) { return is_plain(name) ? std::string(name) : quoted(name); }

template <class List, class Text>
std::string joined(const List& list, Text text_of_one) {
  std::string made;
  for (const auto& one : list) made += (made.empty() ? "" : ", ") + text_of_one(one);
  return made;
}

// Nothing if there are too many elements, or no numbers.
std::optional<std::string> elements_of(const Tensor* tensor) {
  if (!tensor || tensor->count() > kMostElements) return std::nullopt;
  std::vector<std::string> list;
  for (int64_t i = 0; i < tensor->count(); ++i) {
    void* const at = tensor->as<char>() + size_t(i) * device::size_bytes(tensor->type);
    if (!visit_element(tensor->type, at, [&](auto* element) { list.push_back(number_text(*element)); }))
      return std::nullopt;
  }
  if (tensor->shape.rank() == 0) return list[0];
  return "[" + joined(list, [](const std::string& one) { return one; }) + "]";
}

class Writing {
 public:
  Writing(const Plan& plan, std::string indent) : plan_(plan), indent_(std::move(indent)), names_(plan.values.size()) {}

  std::string run() {
    if (plan_.by_data)
      line(plan_.beyond ? text("by data beyond ", plan_.beyond) : "by data");
    else if (plan_.beyond)
      line(text("beyond ", plan_.beyond));
    for (size_t i = 0; i < plan_.inputs.size(); ++i) {
      const int v = plan_.inputs[i];
      const bool is_outer = i + plan_.outer_inputs >= plan_.inputs.size();
      line(text(is_outer ? "in outer " : plan_.values[size_t(v)].is_constant ? "in const " : "in ", typed(v)));
      seen_.insert(v);
    }
    for (size_t i = 0; i < plan_.host_inputs.size(); ++i) {
      const int v = plan_.host_inputs[i];
      const bool is_carried = i >= 2 && i < 2 + plan_.host_carried;  // behind the iteration's number and the condition
      line(text("in host ", is_carried ? "carried " : "", seen_.insert(v).second ? typed(v) : name(v)));
    }
    for (const View& view : plan_.views) made_.insert(view.inner);
    for (const Step& step : plan_.steps)
      for (int v : step.outputs) made_.insert(v);
    for (const Step& step : plan_.steps) see_inputs(step);
    for (const View& view : plan_.views)
      if (seen_.contains(view.outer)) line(text("view ", typed(view.inner), " of ", name(view.outer)));
    for (const Step& step : plan_.steps) write(step);
    for (const View& view : plan_.views)
      if (!seen_.contains(view.outer)) line(text("view ", name(view.inner), " of ", typed(view.outer)));
    for (int v : plan_.outputs) line(text("out ", name(v)));
    return std::move(all_);
  }

 private:
  void line(const std::string& words) { all_ += indent_ + words + "\n"; }

  // Of constants, and of what comes from outside without being said to.
  void see_inputs(const Step& step) {
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      const int v = step.inputs[i];
      if (v < 0 || made_.contains(v) || !seen_.insert(v).second) continue;
      const auto elements = elements_of(plan_.constant(step, i));
      if (plan_.values[size_t(v)].is_constant)
        line(text("const ", typed(v), elements ? " = " + *elements : ""));
      else
        line(text("in ", typed(v)));
    }
  }

  void write(const Step& step) {
    std::string made = step.runs == Runs::on_host ? "host " : step.runs == Runs::elsewhere ? "elsewhere " : "";
    made += joined(step.outputs, [&](int v) { return v < 0 ? "_" : typed(v); }) + " = " + called(*step.node) + "(" +
            joined(step.inputs, [&](int v) { return v < 0 ? "_" : name(v); }) + ")";
    ops::Attributes attributes = step.node->attributes();
    for (const Body& body : step.bodies) attributes.erase(body.name);
    if (!attributes.empty())
      made +=
          " {" + joined(attributes, [](const auto& one) { return word(one.first) + " = " + told(one.second); }) + "}";
    for (const Body& body : step.bodies) {
      line(text(made, " ", word(body.name), " {"));
      all_ += Writing(*body.plan, indent_ + "  ").run();
      made = "}";
    }
    if (!step.node->name().empty()) made += "  # " + quoted(step.node->name());
    line(made);
  }

  static std::string called(const NodeInfo& node) {
    const std::string& domain = node.domain();
    const std::string full = domain.empty() ? node.op_type() : domain + "." + node.op_type();
    const int newest = newest_version(domain), own = node.since_version();
    const bool is_new = own == newest || (own >= kTelling && ops::find_row(domain, node.op_type(), own) ==
                                                                 ops::find_row(domain, node.op_type(), newest));
    return word(full) + (is_new ? "" : text("@", own));
  }

  static std::string told(const ops::Attribute& attribute) {
    if (const auto* one = std::get_if<int64_t>(&attribute)) return number_text(*one);
    if (const auto* one = std::get_if<float>(&attribute)) return number_text(*one);
    if (const auto* one = std::get_if<std::string>(&attribute)) return quoted(*one);
    if (const auto* list = std::get_if<std::vector<int64_t>>(&attribute))
      return "[" + joined(*list, number_text<int64_t>) + "]";
    if (const auto* list = std::get_if<std::vector<float>>(&attribute))
      return "[" + joined(*list, number_text<float>) + "]";
    return "...";
  }

  std::string typed(int v) {
    const Value& value = plan_.values[size_t(v)];
    if (value.type == Type::undefined) return name(v);
    return text(name(v), ": ", kTypeNames[size_t(value.type)],
                value.dims ? "[" + joined(*value.dims, [&](int64_t dim) { return told_dim(dim); }) + "]" : "");
  }
  std::string told_dim(int64_t dim) {
    if (dim >= 0) return number_text(dim);
    if (dim == -1) return "?";
    if (plan_.symbols->has_name(dim)) return word(plan_.symbols->name(dim));
    return text("?", own_.try_emplace(dim, own_.size() + 1).first->second);
  }

  // Those that several values have are told apart.
  const std::string& name(int v) {
    std::string& made = names_[size_t(v)];
    if (!made.empty()) return made;
    const std::string& own = plan_.values[size_t(v)].name;
    std::string found = own;
    for (int i = 2; found.empty() || !used_.insert(found).second; ++i) found = text(own, "~", i);
    return made = word(found);
  }

  const Plan& plan_;
  const std::string indent_;
  std::string all_;
  std::vector<std::string> names_;  // by value
  std::set<std::string> used_;
  std::set<int> seen_, made_;      // values
  std::map<int64_t, size_t> own_;  // symbols without a name
};

}  // namespace

std::string text_of(const Plan& plan) { return Writing(plan, "").run(); }

}  // namespace encore::fuse
