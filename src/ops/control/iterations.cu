#include "ops/control/iterations.h"

#include "device/launch.h"

namespace encore::ops {
namespace {

struct Begin {
  IterationCells cells;
  IterationLimits limits;
  DEVICE_FN void operator()(int64_t) const {
    *cells.number = 0;
    *cells.goes_on = (limits.condition ? *limits.condition : limits.condition_on_host) &&
                     (limits.count ? *limits.count : limits.count_on_host) > 0;
  }
};

DEVICE_FN bool is_wanted(const IterationCells& cells, const IterationLimits& limits, int64_t number) {
  return *cells.next && number < (limits.count ? *limits.count : limits.count_on_host);
}

struct End {
  IterationCells cells;
  IterationLimits limits;
  DEVICE_FN void operator()(int64_t) const {
    const int64_t number = *cells.number + 1;
    *cells.number = number;
    *cells.goes_on = number < limits.room && is_wanted(cells, limits, number);
  }
};

template <class Word>
struct Collect {
  const int64_t* number;
  const Word* part;
  Word* parts;
  int64_t words, reversed;
  DEVICE_FN void operator()(int64_t i) const {
    const int64_t at = reversed ? reversed - 1 - *number : *number;
    parts[at * words + i] = part[i];
  }
};

struct TellCount {
  IterationCells cells;
  IterationLimits limits;
  int64_t* count;
  DEVICE_FN void operator()(int64_t) const {
    const int64_t number = *cells.number;
    *count = number < limits.room || !is_wanted(cells, limits, number) ? number : -1;
  }
};

}  // namespace

void begin_iterations(device::StreamRef stream, const IterationCells& cells, const IterationLimits& limits) {
  device::for_each_index(stream, 1, Begin{cells, limits});
}

void collect(device::StreamRef stream, const IterationCells& cells, const void* part, void* parts, size_t bytes,
             int64_t reversed) {
  const auto by = [&]<class Word>(Word) {
    const auto words = int64_t(bytes / sizeof(Word));
    device::for_each_index(
        stream, words,
        Collect<Word>{cells.number, static_cast<const Word*>(part), static_cast<Word*>(parts), words, reversed});
  };
  if (bytes == 0) return;
  if (bytes % sizeof(uint64_t) == 0) return by(uint64_t());
  if (bytes % sizeof(uint32_t) == 0) return by(uint32_t());
  by(uint8_t());
}

void end_iteration(device::StreamRef stream, const IterationCells& cells, const IterationLimits& limits) {
  device::for_each_index(stream, 1, End{cells, limits});
}

void tell_count(device::StreamRef stream, const IterationCells& cells, const IterationLimits& limits, int64_t* count) {
  device::for_each_index(stream, 1, TellCount{cells, limits, count});
}

}  // namespace encore::ops
