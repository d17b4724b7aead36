// A gathering, by a constant, of all that there is in its order: nothing moves. PyTorch's newer exporter reads masks of
// attention so, an index for each key.
#include <optional>
#include <span>

#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr int64_t kMostIndices = int64_t(1) << 20;

// Whether index i of `dims`, an index for each dimension in a row, is that of the i-th place.
template <class I>
bool counts(std::span<const I> indices, std::span<const int64_t> dims) {
  for (size_t i = 0; i * dims.size() < indices.size(); ++i) {
    int64_t place = 0;
    for (size_t d = 0; d < dims.size(); ++d) {
      const int64_t index = indices[i * dims.size() + d];
      if (index < 0 || index >= dims[d]) return false;
      place = place * dims[d] + index;
    }
    if (place != int64_t(i)) return false;
  }
  return true;
}
bool counts(const Tensor& indices, std::span<const int64_t> dims) {
  int64_t places = std::ssize(dims);
  for (const int64_t dim : dims) {
    if (dim < 0 || dim > kMostIndices || (dim > 0 && places > kMostIndices / dim)) return false;
    places *= dim;
  }
  if (dims.empty() || indices.count() != places) return false;
  const size_t count = size_t(places);
  if (indices.type == Type::i64) return counts(std::span(indices.as<const int64_t>(), count), dims);
  return indices.type == Type::i32 && counts(std::span(indices.as<const int32_t>(), count), dims);
}

// The dimensions that a step counts out by the indices, which are the first or a single one.
std::optional<std::span<const int64_t>> counted(const NodeInfo& node, const Tensor& indices, const Dims& dims) {
  if (is_onnx(node, "Gather")) {
    const auto axis = counted_from_first(node.get_int("axis", 0), dims.size());
    if (!axis) return std::nullopt;
    return std::span(dims).subspan(*axis, 1);
  }
  if (!is_onnx(node, "GatherND") || node.get_int("batch_dims", 0) != 0 || indices.shape.rank() == 0)
    return std::nullopt;
  const int64_t length = indices.shape.back();
  if (length < 1 || length > std::ssize(dims)) return std::nullopt;
  return std::span(dims).first(size_t(length));
}

}  // namespace

void open_gather(Match& match, int s) {
  if (!match.is(s, "Gather") && !match.is(s, "GatherND")) return;
  const Step& step = match.step(s);
  const Tensor* const indices = match.plan().constant(step, 1);
  const int x = step.inputs[0], y = step.outputs[0];
  const std::optional<Dims> dims = match.value(x).dims, made = match.value(y).dims;
  if (!indices || !dims || !made) return;
  const auto by = counted(match.node(s), *indices, *dims);
  if (!by || !counts(*indices, *by)) return;
  const std::string name = match.node(s).name();
  if (dims == made) return match.replace({s}, {match.plan().step({ops::kOnnx, "Identity", 16}, name, {x}, {y})});
  if (!are_numbers(*dims) || !are_numbers(*made)) return;
  const int shape = match.add_constant(name + "'s shape", own_ints(*made));
  match.replace({s}, {match.plan().step({ops::kOnnx, "Reshape", 13}, name, {x, shape}, {y})});
}

}  // namespace encore::fuse
