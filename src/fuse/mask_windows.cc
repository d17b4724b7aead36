#include "fuse/mask_windows.h"

#include <algorithm>
#include <vector>

#include "fuse/own_tensor.h"

namespace encore::fuse {
namespace {

constexpr int64_t kMostNumbers = int64_t(1) << 22;
constexpr double kUnseen = -65504;  // halves add no less, but for infinity

// The keys that a row sees, side by side; there is at least one.
struct Seen {
  int64_t first, end;
};
std::optional<Seen> seen_in(const Tensor& row) {
  const std::vector<double> numbers = numbers_of(row);
  const auto is_seen = [](double number) { return number == 0; };
  const auto first = std::ranges::find_if(numbers, is_seen), end = std::find_if_not(first, numbers.end(), is_seen);
  const auto is_unseen = [](double number) { return number <= kUnseen; };
  if (first == numbers.end() || !std::all_of(numbers.begin(), first, is_unseen) ||
      !std::all_of(end, numbers.end(), is_unseen))
    return std::nullopt;
  return Seen{first - numbers.begin(), end - numbers.begin()};
}

// Takes up that a bound is `now` from a position, or that it is no nearer than that, as there are no more keys.
bool agrees(std::optional<int64_t>& exact, int64_t& least, int64_t now, bool is_cut) {
  if (is_cut) {
    least = std::max(least, now);
    return true;
  }
  if (now < 0 || exact.value_or(now) != now) return false;
  exact = now;
  return true;
}

}  // namespace

std::optional<MaskWindow> window_of(const Tensor& mask, int64_t queries, int64_t keys) {
  const int rank = mask.shape.rank();
  if (rank < 2 || queries < 1 || keys < queries || mask.shape[rank - 2] != queries || mask.shape[rank - 1] != keys ||
      mask.count() > kMostNumbers || mask.count() != queries * keys)
    return std::nullopt;
  Tensor row = mask;
  row.shape = ops::Shape{keys};
  std::optional<int64_t> before, after;
  int64_t least_before = 0, least_after = 0;
  for (int64_t query = 0; query < queries; ++query) {
    const int64_t position = query + keys - queries;
    row.data = static_cast<char*>(mask.data) + query * int64_t(row.bytes());
    const auto seen = seen_in(row);
    if (!seen || !agrees(before, least_before, position - seen->first, seen->first == 0) ||
        !agrees(after, least_after, seen->end - 1 - position, seen->end == keys))
      return std::nullopt;
  }
  if ((before && *before < least_before) || (after && *after < least_after)) return std::nullopt;
  return MaskWindow{before.value_or(-1), after.value_or(-1)};
}

}  // namespace encore::fuse
