// What only moves elements, step by step: one copy, or none.
#include <algorithm>

#include "fuse/links.h"
#include "fuse/passes.h"
#include "fuse/rolls.h"

namespace encore::fuse {

namespace {

// Others may read what is between, which stays then.
void join_above(Match& match, int last) {
  const bool rolls = is_roll(match.step(last));
  if (!(match.is_there(last) || rolls) || match.step(last).outputs.size() != 1) return;
  const int y = match.step(last).outputs[0];
  if (rolls && is_read_in_place(match, y)) return;
  if (y < 0 || device::size_bits(match.value(y).type) % 8 != 0) return;
  const ViewChain chain(match, y);
  if (chain.saved() <= 0) return;
  const std::vector<int> inputs = match.step(last).inputs;
  match.replace({last}, view(match, chain.steps(), match.node(last).name(), chain.from(), y));
  for (const int v : inputs)
    if (const int above = match.producer(v); above >= 0) drop_unread(match, above);
}

}  // namespace

// The last one of a chain first, which sees all of it.
void join_movements(Match& match) {
  for (int s = match.size() - 1; s >= 0; --s)
    if (match.step(s).node) join_above(match, s);
}

}  // namespace encore::fuse
