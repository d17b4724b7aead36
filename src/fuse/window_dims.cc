#include "fuse/window_dims.h"

#include <algorithm>

namespace encore::fuse {
namespace {

constexpr int64_t kUnknown = -1;

// Stands for a dimension that is a symbol: large enough for any window.
constexpr int64_t kExample = 1 << 20;

bool is_one_of(const NodeInfo& node, std::initializer_list<const char*> names) {
  return std::ranges::any_of(names, [&](const char* name) { return is_onnx(node, name); });
}

}  // namespace

std::optional<ops::Window> slid(const NodeInfo& node, const Dims& x, std::span<const int64_t> kernel) try {
  Dims example{1, 1};  // windows don't see batch and channels
  for (const int64_t dim : std::span(x).subspan(2)) example.push_back(dim < 0 ? kExample : dim);
  return ops::WindowAttributes(node).slide(ops::Shape(example), kernel);
} catch (const Error&) {  // which a run will see
  return std::nullopt;
}

std::optional<Dims> window_dims(const NodeInfo& node, const Dims& x, const std::optional<Dims>& weights) {
  if (x.size() < 3 || x.size() > 2 + size_t(ops::kSpatial)) return std::nullopt;
  Dims made = x;
  const auto spatial = made.begin() + 2;
  if (is_one_of(node, {"GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"})) {
    std::fill(spatial, made.end(), 1);
    return made;
  }
  std::vector<int64_t> kernel = node.find_ints("kernel_shape").value_or(std::vector<int64_t>());
  const bool is_convolution = is_onnx(node, "Conv");
  if (!is_convolution && !is_one_of(node, {"MaxPool", "AveragePool", "LpPool"})) return std::nullopt;
  if (is_convolution) {
    if (!weights || weights->size() != x.size()) return std::nullopt;
    made[1] = weights->front();
    kernel.assign(weights->begin() + 2, weights->end());
  }
  std::fill(spatial, made.end(), kUnknown);
  if (kernel.size() + 2 != x.size() || std::ranges::any_of(kernel, [](int64_t dim) { return dim < 1; })) return made;
  const auto window = slid(node, x, kernel);
  for (size_t i = 0; window && i < kernel.size(); ++i) {
    const size_t d = size_t(ops::kSpatial) - kernel.size() + i;
    // A symbol stays what it was if the window stops at each place.
    if (x[2 + i] >= 0)
      made[2 + i] = window->out[d];
    else if (window->stride[d] == 1 && window->out[d] == kExample)
      made[2 + i] = x[2 + i];
  }
  return made;
}

}  // namespace encore::fuse
