#include "fuse/growing.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "fuse/shape_symbols.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

using ops::GrowingDim;

bool is_one_of(const NodeInfo& node, std::span<const char* const> names) {
  return std::ranges::any_of(names, [&](const char* op) { return is_onnx(node, op); });
}

// What may read a mask, and what computes with a length.
constexpr std::array kOfMasks{"Cast", "Identity", "ReduceSum", "Shape"};
constexpr std::array kOfLengths{"Cast", "Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"};
constexpr std::array kSameNumber{"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"};

// Attention over a cache, for which the length of the longest sequence is a bound: how long each is, it reads on the
// device, and launches are sized by the cache.
struct CacheAttention {
  const char* op;
  size_t past, total, cos;
};
constexpr CacheAttention kCacheAttentions[] = {{"GroupQueryAttention", 3, 6, 7}, {"SparseAttention", 3, 7, 9}};
constexpr size_t kPositions = 9, kBias = 10;  // GroupQueryAttention's
constexpr size_t kLayout = 5;                 // SparseAttention's
constexpr int kScores = 3;                    // an output

const CacheAttention* find_cache_attention(const NodeInfo& node) {
  if (node.domain() != ops::kMicrosoft) return nullptr;
  const auto found = std::ranges::find(kCacheAttentions, std::string_view(node.op_type()), &CacheAttention::op);
  return found == std::end(kCacheAttentions) ? nullptr : found;
}

class Search {
 public:
  explicit Search(Plan plan) : plan_(std::move(plan)), match_(plan_, nullptr) {}

  std::vector<GrowingDim> run() {
    std::vector<GrowingDim> found;
    if (std::ranges::none_of(plan_.inputs, [&](int input) { return may_be_mask(input); })) return found;
    for (int step = 0; step < match_.size(); ++step) infer_dims(match_, step);
    std::set<int64_t> seen;
    for (int input : plan_.inputs)
      for (const int64_t dim : may_be_mask(input) ? *match_.value(input).dims : Dims())
        if (dim < -1 && seen.insert(dim).second)
          if (auto grows = follow(dim)) found.push_back(std::move(*grows));
    return found;
  }

 private:
  // Along which axis a value has the dimension, with zeros behind what there is; or else:
  static constexpr int kNone = -1, kLength = -2;  // numbers that depend on how long it is

  bool may_be_mask(int input) const {
    const Value& value = match_.value(input);
    const auto& readers = match_.readers(input);
    return value.dims && !value.is_constant && !device::is_packed(value.type) && !readers.empty() &&
           std::ranges::all_of(readers, [&](int step) { return is_one_of(match_.node(step), kOfMasks); });
  }

  std::optional<GrowingDim> follow(int64_t dim) {
    dim_ = dim, grows_ = {}, axes_.assign(plan_.values.size(), kNone);
    for (size_t i = 0; i < plan_.inputs.size(); ++i) {
      const int value = plan_.inputs[i];
      const Dims dims = match_.value(value).dims.value_or(Dims());
      const auto count = std::ranges::count(dims, dim);
      if (count == 0) continue;
      if (count > 1 || !may_be_mask(value)) return std::nullopt;
      const int axis = int(std::ranges::find(dims, dim) - dims.begin());
      if (grows_.masks.empty())
        grows_.name =
            plan_.symbols->has_name(dim) ? plan_.symbols->name(dim) : text(match_.value(value).name, "[", axis, "]");
      grows_.masks.push_back({int(i), axis});
      axes_[size_t(value)] = axis;
    }
    for (int step = 0; step < match_.size(); ++step)
      if (!passes(match_.step(step))) return std::nullopt;
    if (std::ranges::any_of(plan_.outputs, [&](int value) { return axes_[size_t(value)] != kNone; }))
      return std::nullopt;
    for (auto* const list : {&grows_.rooms, &grows_.news}) {
      std::ranges::sort(*list);
      list->erase(std::ranges::unique(*list).begin(), list->end());
    }
    return std::move(grows_);
  }

  // Whether it is known what the step makes of the dimension.
  bool passes(const Step& step) {
    std::vector<size_t> reads;
    for (size_t i = 0; i < step.inputs.size(); ++i)
      if (step.inputs[i] >= 0 && axes_[size_t(step.inputs[i])] != kNone) reads.push_back(i);
    if (reads.empty()) return true;
    if (const CacheAttention* const attention = find_cache_attention(*step.node))
      return reads == std::vector{attention->total} && is_bound(step, *attention);
    const bool is_length =
        std::ranges::all_of(reads, [&](size_t i) { return axes_[size_t(step.inputs[i])] == kLength; });
    if (is_length && !is_one_of(*step.node, kOfLengths)) return false;
    const std::optional<int> made = is_length ? std::optional(kLength) : of_mask(step, reads);
    if (!made || step.outputs.size() != 1) return false;
    axes_[size_t(step.outputs[0])] = *made == kLength && is_other(step.outputs[0]) ? kNone : *made;
    return true;
  }

  std::optional<int> of_mask(const Step& step, const std::vector<size_t>& reads) const {
    if (reads != std::vector<size_t>{0}) return std::nullopt;
    const int axis = axes_[size_t(step.inputs[0])];
    if (is_onnx(*step.node, "Shape")) return kLength;
    if (is_onnx(*step.node, "Cast") || is_onnx(*step.node, "Identity")) return axis;
    if (!is_onnx(*step.node, "ReduceSum")) return std::nullopt;
    // In integers more zeros change nothing.
    const Type type = step.node->input_type(0);
    const auto along = ShapeSymbols(match_).axes(step);
    const auto rank = int64_t(match_.value(step.inputs[0]).dims->size());
    const bool sums = along && std::ranges::any_of(*along, [&](int64_t a) { return a == axis || a + rank == axis; });
    return sums && (type == Type::i32 || type == Type::i64) ? std::optional(kNone) : std::nullopt;
  }

  // Numbers none of which is the length.
  bool is_other(int value) const {
    std::vector<int> steps;
    const auto held = ShapeSymbols(match_).contents(value, steps);
    return held && std::ranges::find(*held, dim_) == held->end();
  }
  bool is_length(int value) const {
    for (int from = match_.producer(value); from >= 0; from = match_.producer(value)) {
      std::vector<int> steps;
      if (const auto held = ShapeSymbols(match_).contents(value, steps)) return *held == Dims{dim_};
      if (!is_one_of(match_.node(from), kSameNumber)) return false;
      value = match_.step(from).inputs[0];
    }
    return false;
  }

  // Whether the step does the same for any longer length, as long as there is room. Without room in the past the
  // present has the length, and a table of angles has to have as many rows. That all keys are new is told by the
  // length, too.
  bool is_bound(const Step& step, const CacheAttention& attention) {
    const NodeInfo& node = *step.node;
    const auto has = [&](size_t input) { return step.inputs.size() > input && step.inputs[input] >= 0; };
    if (!is_length(step.inputs[attention.total]) || !has(attention.past) || !find_news(step.inputs[0])) return false;
    const bool is_grouped = attention.op == std::string_view("GroupQueryAttention");
    if (is_grouped && (has(kBias) || (step.outputs.size() > kScores && step.outputs[kScores] >= 0))) return false;
    if (!is_grouped && !has_layout(step)) return false;
    const bool is_window = is_grouped && node.get_int("sliding_window_cache", 0) != 0;
    const bool is_table = node.get_int("do_rotary", 0) == 1 && !(is_grouped && has(kPositions));
    return (is_window || find_room(past_of(step, attention), 2)) &&
           (!is_table || (has(attention.cos) && find_room(step.inputs[attention.cos], 0)));
  }
  // It has to have blocks for all keys.
  bool has_layout(const Step& step) {
    const int64_t begins = dim_of(step.inputs[kLayout], 1), block = step.node->get_int("sparse_block_size", 0);
    if (begins < 1 || begins > INT32_MAX || block < 1 || block > INT32_MAX) return false;
    grows_.room = std::min(grows_.room, (begins - 1) * block);
    return true;
  }
  // The past that layers with a cache in common begin with.
  int past_of(const Step& step, const CacheAttention& attention) const {
    int past = step.inputs[attention.past];
    for (int from = match_.producer(past); from >= 0; from = match_.producer(past)) {
      const CacheAttention* const maker = find_cache_attention(match_.node(from));
      const Step& made = match_.step(from);
      if (!maker || made.inputs.size() <= maker->past || made.inputs[maker->past] < 0 || made.outputs.size() < 2 ||
          made.outputs[1] != past)
        break;
      past = made.inputs[maker->past];
    }
    return past;
  }

  // Below zero if it is not known.
  int64_t dim_of(int value, size_t axis) const {
    const Value& of = match_.value(value);
    if (of.constant && size_t(of.constant->shape.rank()) > axis) return of.constant->shape[int(axis)];
    return of.dims && of.dims->size() > axis ? (*of.dims)[axis] : -1;
  }
  bool find_room(int value, size_t axis) {
    const int64_t room = dim_of(value, axis);
    if (room >= 0) return grows_.room = std::min(grows_.room, room), true;
    const auto at = std::ranges::find(plan_.inputs, value);
    if (at == plan_.inputs.end()) return false;
    grows_.rooms.push_back({int(at - plan_.inputs.begin()), int(axis)});
    return true;
  }
  // Queries are [batch, new, ...].
  bool find_news(int queries) {
    const auto& dims = match_.value(queries).dims;
    if (!dims || dims->size() != 3) return false;
    const int64_t fresh = (*dims)[1];
    if (fresh >= 0) return grows_.fresh = std::max(grows_.fresh, fresh), true;
    for (size_t i = 0; i < plan_.inputs.size(); ++i) {
      const Dims own = match_.value(plan_.inputs[i]).dims.value_or(Dims());
      const auto found = std::ranges::find(own, fresh);
      if (found == own.end()) continue;
      grows_.news.push_back({int(i), int(found - own.begin())});
      return true;
    }
    return false;
  }

  Plan plan_;
  Match match_;
  int64_t dim_ = 0;
  GrowingDim grows_;
  std::vector<int> axes_;  // by value
};

}  // namespace

std::vector<GrowingDim> growing_dims(Plan plan) { return Search(std::move(plan)).run(); }

}  // namespace encore::fuse
