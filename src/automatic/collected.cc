#include "automatic/collected.h"

#include <algorithm>
#include <bit>

#include "ops/shape/strided.h"

namespace encore::automatic {

namespace {

constexpr int64_t kLeastRoom = 16, kMostForSure = 1024;

ops::Tensor room_of(const Record& record, const Collected& output, void* at) {
  return {record.types[output.output], ops::Where::device, *record.outputs[output.output], at};
}

}  // namespace

int64_t room_for(int64_t count, int64_t most) {
  return most <= kMostForSure ? most : std::min(most, int64_t(std::bit_ceil(uint64_t(std::max(count, kLeastRoom)))));
}

size_t bytes_of_room(const Record& record, const Collected& output) { return room_of(record, output, nullptr).bytes(); }

bool give_out(ops::Context& run, const Record& record, std::span<void* const> at, const int64_t* counts) {
  std::vector<int64_t> found(record.collected.size());
  run.read_back(found.data(), counts, found.size() * sizeof(int64_t));
  for (size_t c = 0; c < found.size(); ++c)
    if (found[c] < 0 || found[c] > (*record.outputs[record.collected[c].output])[0]) return false;
  for (size_t c = 0; c < found.size(); ++c) {
    const Collected& output = record.collected[c];
    const ops::Tensor room = room_of(record, output, at[output.output]);
    const ops::Tensor to = run.output(int(output.output), found[c] ? room.shape.with(0, found[c]) : output.of_none);
    ops::copy_bytes(run.stream(), room.data, to.data, int64_t(to.bytes()));
  }
  return true;
}

bool may_be_lost(const Record& record, std::span<void* const> at, const std::vector<size_t>& bytes, size_t inputs) {
  if (std::ranges::all_of(record.collected, &Collected::is_enough)) return false;
  const auto begin = [&](size_t i) { return static_cast<const char*>(at[i]); };
  for (size_t in = 0; in < inputs; ++in)
    for (size_t out = inputs; out < at.size(); ++out)
      if (bytes[in] && bytes[out] && begin(in) < begin(out) + bytes[out] && begin(out) < begin(in) + bytes[in])
        return true;
  return false;
}

}  // namespace encore::automatic
