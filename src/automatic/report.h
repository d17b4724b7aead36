// What has become of a region's runs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace encore::automatic {

struct RegionReport {
  std::string name;
  size_t keys = 0, graphs = 0;                    // sets of shapes that are known; graphs that are kept
  int64_t captures = 0, replays = 0, staged = 0;  // staged: tensors copied to where a graph has them, or from there
  int64_t first_runs = 0, eager = 0;              // runs with shapes that were not known; others that were not replayed
  std::string refusal;                            // the latest reason for which there is no graph
};

}  // namespace encore::automatic
