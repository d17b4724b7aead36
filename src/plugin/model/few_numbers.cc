#include "plugin/model/few_numbers.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "ops/host_arithmetic.h"

namespace encore::plugin {

constexpr int64_t kMostShapeElements = 256;

bool is_small(const std::optional<std::vector<int64_t>>& dims) {
  int64_t count = 1;
  for (int64_t dim : dims.value_or(std::vector<int64_t>()))
    if (dim > kMostShapeElements || (dim > 0 && (count *= dim) > kMostShapeElements)) return false;
  return true;
}

// A scalar's dimensions are told as unknown ones. What is computed from few numbers are few, but where these are sizes.
bool makes_few(const GraphNodeInfo& info) {
  constexpr std::array<std::string_view, 5> kSized{"ConstantOfShape", "Expand", "OneHot", "Range", "Tile"};
  const bool is_sized = std::find(kSized.begin(), kSized.end(), info.op_type()) != kSized.end();
  for (int i = 0; i < info.output_count(); ++i) {
    const auto dims = info.output_dims(i);
    if (dims ? !is_small(dims) || std::count(dims->begin(), dims->end(), -1) > 0 : is_sized) return false;
  }
  return true;
}

bool is_host_op(const GraphNodeInfo& info) {
  try {
    return ops::make_host_op(info) != nullptr;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace encore::plugin
