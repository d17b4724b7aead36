#include "fuse/graph.h"

namespace encore::fuse {

int64_t Symbols::times(int64_t symbol, int64_t count) {
  Multiple all = parts(symbol);
  if (count == 1) return symbol;
  if (__builtin_mul_overflow(all.count, count, &all.count)) return add("");
  const auto [known, is_new] = multiples_.try_emplace(all, 0);
  if (is_new) parts_.emplace(known->second = add(""), all);
  return known->second;
}

std::vector<int> Graph::producers() const {
  std::vector<int> of(values.size(), -1);
  for (size_t n = 0; n < nodes.size(); ++n)
    for (int value : nodes[n].outputs)
      if (value >= 0) of[size_t(value)] = int(n);
  return of;
}

std::vector<std::vector<int>> Graph::consumers() const {
  std::vector<std::vector<int>> of(values.size());
  for (size_t n = 0; n < nodes.size(); ++n)
    for (int value : nodes[n].inputs)
      if (value >= 0) of[size_t(value)].push_back(int(n));
  return of;
}

Makers Graph::makers() const {
  const std::vector<int> producers = this->producers();
  Makers of(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n)
    for (const auto* values : {&nodes[n].inputs, &nodes[n].read_inside})
      for (int value : *values)
        if (value >= 0 && producers[size_t(value)] >= 0) of[n].push_back(producers[size_t(value)]);
  return of;
}

}  // namespace encore::fuse
