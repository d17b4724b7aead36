// Constants that hold the same, as each layer's tables of cosines and sines do where these were computed ahead: they
// are one, and so may be what reads them.
#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "fuse/passes.h"
#include "fuse/shape_symbols.h"

namespace encore::fuse {
namespace {

// What tells most of them apart.
using Look = std::tuple<Type, std::vector<int64_t>, std::string>;
constexpr size_t kLookedAt = 64;  // bytes

Look look_of(const Tensor& constant) {
  const size_t bytes = std::min(kLookedAt, constant.bytes());
  const auto dims = constant.shape.dims();
  return {constant.type, {dims.begin(), dims.end()}, std::string(static_cast<const char*>(constant.data), bytes)};
}

// Other steps' weights are theirs to change. Single numbers are no matter.
bool is_table(const Match& match, int v) {
  const Value& value = match.value(v);
  return value.constant && !value.is_output && value.constant->count() > 1 &&
         device::size_bits(value.constant->type) % 8 == 0 && !match.readers(v).empty() &&
         std::ranges::all_of(match.readers(v), [&](int s) { return match.is_there(s) && broadcasts(match.node(s)); });
}

}  // namespace

void share_constants(Match& match) {
  std::map<Look, std::vector<int>> known;
  for (int v = 0; v < int(match.plan().values.size()); ++v) {
    if (!is_table(match, v)) continue;
    const Tensor& own = *match.value(v).constant;
    std::vector<int>& alike = known[look_of(own)];
    const auto is_same = [&](int other) {
      const void* const data = match.value(other).constant->data;
      return data == own.data || std::memcmp(data, own.data, own.bytes()) == 0;
    };
    if (const auto same = std::ranges::find_if(alike, is_same); same != alike.end())
      match.substitute(v, *same);
    else
      alike.push_back(v);
  }
}

}  // namespace encore::fuse
