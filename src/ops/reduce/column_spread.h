// How a reduction whose innermost run is kept is spread over threads, blocks and clusters.
#pragma once
#include <cstdint>

namespace encore::ops {

struct ColumnProblem {
  int64_t outer, packs, axis;  // kept; of a run; reduced into one
  int alike;                   // a thread takes rows that are a multiple of this apart
  bool shifted;                // packs do not begin where runs do
  int multiprocessors, most_threads;
  int most_in_cluster;
  bool splits;  // outputs may be split, for a second launch to merge
};

// Tiles are groups of packs that are side by side: a part of a run, or several runs as a whole.
struct ColumnSpread {
  int64_t groups_in_run, tiles;
  int of_group, groups_here, lanes, rows, threads;  // of a block
  int in_cluster;                                   // blocks that share the rows of a tile
  int64_t splits;                                   // clusters that do; a second launch merges what they have
};
ColumnSpread spread_columns(const ColumnProblem& p);

}  // namespace encore::ops
