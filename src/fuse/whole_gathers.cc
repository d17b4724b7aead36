// A gathering, by a constant, of all that there is in its order: nothing moves. PyTorch's newer exporter reads masks of
// attention so, an index for each key. One of places that follow each other is a Slice, as Falcon's of keys and values.
#include <optional>
#include <span>

#include "fuse/links.h"
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

// Where indices begin that follow each other, each of a place of so many; none if they do not.
template <class I>
std::optional<int64_t> begin_of(std::span<const I> indices, int64_t dim) {
  if (indices.empty()) return std::nullopt;
  const int64_t begin = indices[0] < 0 ? indices[0] + dim : indices[0];
  if (begin < 0 || begin > dim - std::ssize(indices)) return std::nullopt;
  for (size_t i = 0; i < indices.size(); ++i) {
    const int64_t place = indices[i] < 0 ? indices[i] + dim : indices[i];
    if (place != begin + int64_t(i)) return std::nullopt;
  }
  return begin;
}
std::optional<int64_t> begin_of(const Tensor& indices, int64_t dim) {
  const int64_t count = indices.count();
  if (count > kMostIndices) return std::nullopt;
  if (indices.type == Type::i64) return begin_of(std::span(indices.as<const int64_t>(), size_t(count)), dim);
  if (indices.type == Type::i32) return begin_of(std::span(indices.as<const int32_t>(), size_t(count)), dim);
  return std::nullopt;
}

// One that keeps all dimensions, the places along one of them.
void slice(Match& match, int s, const Tensor& indices, const Dims& dims, std::span<const int64_t> by) {
  const bool is_one_each =
      is_onnx(match.node(s), "Gather") ? indices.shape.rank() == 1 : indices.shape.rank() == 2 && by.size() == 1;
  if (!is_one_each || by.front() < 0) return;
  const auto begin = begin_of(indices, by.front());
  if (!begin) return;
  match.replace({s}, slice(match, *begin, *begin + indices.count(), by.data() - dims.data(), match.node(s).name(),
                           match.step(s).inputs[0], match.step(s).outputs[0]));
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
  if (!by) return;
  if (!counts(*indices, *by)) return slice(match, s, *indices, *dims, *by);
  const std::string name = match.node(s).name();
  if (dims == made) return match.replace({s}, {match.plan().step({ops::kOnnx, "Identity", 16}, name, {x}, {y})});
  if (!are_numbers(*dims) || !are_numbers(*made) || std::ranges::count(*made, 0)) return;  // to Reshape 0 is another's
  const int shape = match.add_constant(name + "'s shape", own_ints(*made));
  match.replace({s}, {match.plan().step({ops::kOnnx, "Reshape", 13}, name, {x, shape}, {y})});
}

}  // namespace encore::fuse
