#include "plugin/session/fault_cells.h"

#include <atomic>
#include <memory>
#include <utility>

#include "device/device.h"
#include "device/error.h"
#include "device/gone.h"
#include "device/graph.h"
#include "device/memory.h"

namespace encore::plugin {
namespace {

using device::FaultCell;

constexpr size_t kCellsAPage = 4096 / sizeof(FaultCell);

std::string describe(const FaultCell& cell) {
  switch (static_cast<device::FaultKind>(cell.kind)) {
    case device::FaultKind::index_out_of_range: {
      const bool from_the_end = cell.value >= cell.limit || cell.value < -cell.limit;  // else none may be counted so
      return text("index ", cell.value, " is outside [", from_the_end ? -cell.limit : 0, ", ", cell.limit, ")");
    }
    case device::FaultKind::divide_by_zero: return "an integer was divided by zero";
    default: return text("a value is not allowed: ", cell.value, " (limit ", cell.limit, ")");
  }
}

}  // namespace

FaultCells::~FaultCells() {
  for (FaultCell* page : pages_) {
    try {
      const device::Current current(device_);
      const device::RelaxedCapture relaxed;
      device::free_pinned(page);
    } catch (const std::exception& error) {
      device::complain("pinned memory could not be freed", error);
    }
  }
}

FaultCells::OfStream& FaultCells::of_stream(device::StreamRef stream) {
  return streams_[{stream.native(), by_thread_ ? std::this_thread::get_id() : std::thread::id()}];
}

int FaultCells::number(std::string who) {
  const std::lock_guard lock(mutex_);
  names_.push_back(std::move(who));
  return int(names_.size());
}

FaultCell* FaultCells::of(device::StreamRef stream) {
  const std::lock_guard lock(mutex_);
  FaultCell*& cell = of_stream(stream).cell;
  if (cell) return cell;
  if (pages_.empty() || used_of_last_ == kCellsAPage) {
    const device::Current current(device_);
    const device::RelaxedCapture relaxed;
    auto* const page = static_cast<FaultCell*>(device::allocate_pinned(kCellsAPage * sizeof(FaultCell)));
    std::uninitialized_default_construct_n(page, kCellsAPage);
    pages_.push_back(page);
    used_of_last_ = 0;
  }
  return cell = pages_.back() + used_of_last_++;
}

void FaultCells::enter(device::StreamRef stream) {
  const std::lock_guard lock(mutex_);
  ++of_stream(stream).runs;
}
void FaultCells::leave(device::StreamRef stream) {
  const std::lock_guard lock(mutex_);
  --of_stream(stream).runs;
}

void FaultCells::check(device::StreamRef stream) {
  const std::lock_guard lock(mutex_);
  check(of_stream(stream));
}
void FaultCells::check_unless_in_run(device::StreamRef stream) {
  const std::lock_guard lock(mutex_);
  if (const OfStream& of = of_stream(stream); of.runs == 0) check(of);
}

bool FaultCells::take(device::StreamRef stream, FaultCell* into) {
  const std::lock_guard lock(mutex_);
  FaultCell* const cell = of_stream(stream).cell;
  if (cell) device::take_fault(stream, cell, into);
  return cell;
}

void FaultCells::raise(FaultCell& reported) {
  const std::lock_guard lock(mutex_);
  raise_locked(reported);
}

void FaultCells::check(const OfStream& of) {
  if (of.cell) raise_locked(*of.cell);
}

void FaultCells::raise_locked(FaultCell& reported) {
  const std::atomic_ref<int> node(reported.node);
  const int number = node.load(std::memory_order_acquire);
  if (number == 0) return;
  const FaultCell found = reported;
  reported.kind = 0;
  node.store(0, std::memory_order_release);
  const size_t index = size_t(number) - 1;
  fail(Code::invalid_input, index < names_.size() ? names_[index] : text("node ", number), ": ", describe(found));
}

}  // namespace encore::plugin
