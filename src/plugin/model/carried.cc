#include "plugin/model/carried.h"

#include <algorithm>
#include <set>

#include "ops/registry.h"
#include "plugin/model/bodies.h"
#include "plugin/model/graph_reading.h"
#include "plugin/model/node_info.h"

namespace encore::plugin {
namespace {

bool is_number(const OrtValueInfo* value) {
  const ValueType known = type_of(value);
  const bool is_one =
      !known.dims || std::ranges::all_of(*known.dims, [](int64_t dim) { return dim == 1; });  // or of unknown rank
  return is_one && (ops::kIndices.has(known.type) || known.type == ops::Type::boolean);
}

}  // namespace

std::vector<CarriedValue> carried_values(const OrtNode* node) {
  const GraphNodeInfo loop(node);
  if (loop.op_type() != "Loop") return {};
  const OrtGraph* const body = bodies_of(node)[0].graph;
  constexpr size_t kOwn = 2;  // the iteration's number and the condition
  const auto inputs = input_values_of(body), outputs = output_values_of(body);
  const std::vector<std::string> names = names_of(inputs), made = names_of(outputs);
  std::set<std::string> inside(names.begin(), names.end());
  std::map<std::string, std::string> handed_on;  // what an Identity makes, and of what
  for (const OrtNode* inner : nodes_of(body)) {
    const GraphNodeInfo info(inner);
    for (int i = 0; i < info.output_count(); ++i) inside.insert(info.output_value(i));
    if (info.op_type() == "Identity") handed_on.emplace(info.output_value(0), info.input_value(0));
  }
  std::vector<CarriedValue> carried;
  for (size_t i = kOwn; i < std::min(names.size(), made.size() + 1); ++i) {
    CarriedValue& value = carried.emplace_back(CarriedValue{names[i], made[i - 1], loop.input_info(int(i))});
    std::string from = value.next;
    for (auto at = handed_on.find(from); at != handed_on.end(); at = handed_on.find(from)) from = at->second;
    // Unless the body has the name for something of its own.
    value.is_unchanged = value.begins && from == value.name && !inside.contains(names_of({value.begins})[0]);
    value.may_be_number = value.begins && is_number(inputs[i]) && is_number(outputs[i - 1]);
  }
  return carried;
}

std::map<std::string, const OrtValueInfo*> unchanged_values(const OrtNode* node) {
  std::map<std::string, const OrtValueInfo*> unchanged;
  for (const CarriedValue& value : carried_values(node))
    if (value.is_unchanged) unchanged.emplace(value.name, value.begins);
  return unchanged;
}

}  // namespace encore::plugin
