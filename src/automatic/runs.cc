#include "automatic/runs.h"

#include <algorithm>

#include "memory/meter.h"

namespace encore::automatic {

int LiveBlocks::remove(const void* at) {
  const auto found = std::find_if(live_.rbegin(), live_.rend(), [&](const Live& live) { return live.at == at; });
  if (found == live_.rend()) return -1;
  const int block = found->block;
  live_.erase(std::next(found).base());
  return block;
}

ops::Tensor RecordedRun::output(int i, const ops::Shape& shape) {
  record_.outputs[size_t(i)] = shape;
  const memory::Meter meter;
  const ops::Tensor made = outer_.output(i, shape);
  record_.output_bytes += meter.peak_bytes();
  record_.types[size_t(i)] = made.type;
  return made;
}

void RecordedRun::note(const ScratchEvent& event) {
  record_.is_too_long |= record_.scratch.size() == most_;
  if (!record_.is_too_long) record_.scratch.push_back(event);
}

void* RecordedRun::scratch(size_t bytes) {
  if (bytes == 0) return nullptr;
  note({live_.count(), bytes});
  return live_.add(outer_.scratch(bytes));
}

void RecordedRun::give_back(void* scratch) {
  if (!scratch) return;
  note({live_.remove(scratch), 0});
  outer_.give_back(scratch);
}

void RecordedRun::keep_apart(int block, int from) {
  if (!record_.is_too_long) record_.apart.push_back({block, from});
}

void RecordedRun::read_back(void* host, const void* device, size_t bytes) {
  record_.of = Record::Of::one_way;
  outer_.read_back(host, device, bytes);
}

bool PlannedRun::goes_on(const ScratchEvent& event) {
  if (!went_otherwise_ && next_ < record_.scratch.size() && record_.scratch[next_] == event) return ++next_;
  went_otherwise_ = true;
  return false;
}

void* PlannedRun::scratch(size_t bytes) {
  if (bytes == 0) return nullptr;
  const int block = live_.count();
  return goes_on({block, bytes}) ? live_.add(memory_ + plan_.offset(block)) : unplanned(bytes);
}

// A block of the plan stays where it is once the run goes otherwise, for nothing else will be put there.
void PlannedRun::give_back(void* scratch) {
  if (!scratch) return;
  if (const int block = live_.remove(scratch); block >= 0)
    goes_on({block, 0});
  else
    outer_.give_back(scratch);
}

}  // namespace encore::automatic
