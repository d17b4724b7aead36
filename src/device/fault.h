// Bad values found inside a kernel: an index out of range cannot throw there, so the kernel uses a safe value and
// reports here; the host reads the cell after it has waited, and fails the run with the node's name.
#pragma once
#include <cstdint>

#include "device/launch.h"

namespace encore::device {

// In pinned memory; the first report wins.
struct FaultCell {
  int node = 0;  // zero: nothing reported
  int kind = 0;
  int64_t value = 0, limit = 0;
};
enum class FaultKind : int { none = 0, index_out_of_range = 1, divide_by_zero = 2, bad_value = 3 };

// Passed to kernels by value.
struct FaultRef {
  FaultCell* cell = nullptr;
  int node = 0;
  DEVICE_FN void report(FaultKind kind, int64_t value, int64_t limit) const {
    if (!cell || atomic_exchange_if(&cell->node, 0, node) != 0) return;
    cell->kind = int(kind);
    cell->value = value;
    cell->limit = limit;
  }
  // The index made non-negative and safe: a value outside [-limit, limit) is reported and becomes 0.
  DEVICE_FN int64_t checked_index(int64_t index, int64_t limit) const {
    if (index >= -limit && index < limit) return index < 0 ? index + limit : index;
    report(FaultKind::index_out_of_range, index, limit);
    return 0;
  }
};

// Moves what was reported, in the stream's order: whoever reports next finds an empty cell.
void take_fault(StreamRef stream, FaultCell* from, FaultCell* to);

}  // namespace encore::device
