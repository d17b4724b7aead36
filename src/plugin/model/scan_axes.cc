#include "plugin/model/scan_axes.h"

#include <algorithm>
#include <numeric>

#include "plugin/model/bodies.h"
#include "plugin/model/graph_reading.h"
#include "plugin/model/node_info.h"

namespace encore::plugin {
namespace {

// Of a tensor, or of its parts, which have a dimension less.
std::optional<int64_t> find_rank(const std::optional<std::vector<int64_t>>& whole, const OrtValueInfo* part) {
  if (whole) return int64_t(whole->size());
  const auto dims = type_of(part).dims;
  return dims ? std::optional(int64_t(dims->size()) + 1) : std::nullopt;
}

ScanAxis axis_of(size_t slot, int64_t axis, int64_t rank) {
  ScanAxis made{slot, std::vector<int64_t>(size_t(rank)), {}};
  std::iota(made.to_front.begin(), made.to_front.end(), 0);
  made.from_front = made.to_front;
  const auto first = made.to_front.begin(), begin = made.from_front.begin();
  std::rotate(first, first + axis, first + axis + 1);
  std::rotate(begin, begin + 1, begin + axis + 1);
  return made;
}

}  // namespace

std::optional<ScanAxes> scan_axes(const OrtNode* node) {
  const GraphNodeInfo scan(node);
  ScanAxes axes;
  if (scan.op_type() != "Scan") return axes;
  const OrtGraph* const body = bodies_of(node)[0].graph;
  const auto parts = input_values_of(body), made = output_values_of(body);
  const int64_t scanned = scan.get_int("num_scan_inputs", 0), carried = scan.input_count() - scanned;
  const auto along_inputs = scan.find_ints("scan_input_axes"), along_outputs = scan.find_ints("scan_output_axes");
  if (scanned < 0 || carried < 0 || (along_inputs && int64_t(along_inputs->size()) != scanned) ||
      (along_outputs && int64_t(along_outputs->size()) != scan.output_count() - carried))
    return std::nullopt;
  const auto add = [&](std::vector<ScanAxis>& to, size_t slot, int64_t axis, ops::Type type,
                       std::optional<int64_t> rank) {
    if (axis == 0) return true;
    if (!rank || axis < -*rank || axis >= *rank || device::is_packed(type)) return false;
    if (axis != -*rank) to.push_back(axis_of(slot, axis < 0 ? axis + *rank : axis, *rank));
    return true;
  };
  for (size_t i = 0; along_inputs && i < along_inputs->size(); ++i) {
    const size_t slot = size_t(carried) + i;
    const auto rank = slot < parts.size() ? find_rank(scan.input_dims(int(slot)), parts[slot]) : std::nullopt;
    if (!add(axes.inputs, slot, (*along_inputs)[i], scan.input_type(int(slot)), rank)) return std::nullopt;
  }
  for (size_t i = 0; along_outputs && i < along_outputs->size(); ++i) {
    const size_t slot = size_t(carried) + i;
    const auto rank = slot < made.size() ? find_rank(scan.output_dims(int(slot)), made[slot]) : std::nullopt;
    if (!add(axes.outputs, slot, (*along_outputs)[i], scan.output_type(int(slot)), rank)) return std::nullopt;
  }
  return axes;
}

}  // namespace encore::plugin
