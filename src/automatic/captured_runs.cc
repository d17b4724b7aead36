#include "automatic/captured_runs.h"

#include <algorithm>

#include "automatic/collected.h"
#include "device/error.h"

namespace encore::automatic {

template <class Run>
const ops::Tensor* OnCapture<Run>::find_input(int i) {
  const Longer* const longer = find_longer(longer_, i);
  const ops::Tensor* const input = longer ? &longer->tensor : Run::find_input(i);
  if (!input) return nullptr;
  if (inputs_.empty()) inputs_.resize(size_t(Run::input_count()));
  std::optional<ops::Tensor>& moved = inputs_[size_t(i)];
  if (!moved) moved.emplace(*input).data = at_[size_t(i)];
  return &*moved;
}

template <class Run>
void OnCapture<Run>::read_back(void*, const void*, size_t) {
  waits_ = true;
  fail(Code::capture_forbidden, "the size of an output depends on data, for which the host has to wait");
}

template class OnCapture<PlannedRun>;
template class OnCapture<RecordedRun>;

ops::Tensor CapturedRun::output(int i, const ops::Shape& shape) {
  const auto& recorded = record().outputs[size_t(i)];
  if (!recorded || *recorded != shape) fail(Code::internal, "an output's shape is not the one of the first run");
  ops::Tensor made = PlannedRun::output(i, shape);
  made.data = at_[size_t(input_count() + i)];
  return made;
}

ops::Room CapturedRun::room(int i, const ops::Parts& parts) {
  const auto& collected = record().collected;
  const auto known = std::ranges::find(collected, size_t(i), &Collected::output);
  const auto& room = record().outputs[size_t(i)];
  if (known == collected.end() || ops::Shape(room->dims().subspan(1)) != parts.each)
    fail(Code::internal, "it collects something else than when it was rehearsed");
  return {{record().types[size_t(i)], ops::Where::device, *room, at_[size_t(input_count() + i)]},
          counts_ + (known - collected.begin())};
}

Rehearsal::Rehearsal(ops::Context& outer, const std::vector<Longer>& longer, const std::vector<void*>& at,
                     device::StreamRef stream, const Record& one_way, size_t most)
    : OnCapture(stream, longer, at, outer, most, true), one_way_(one_way) {
  record().of = Record::Of::all_ways;
  record().outputs = one_way.outputs;
  record().types = one_way.types;
  record().output_bytes = one_way.output_bytes;
}

Rehearsal::~Rehearsal() {
  for (void* const count : counts_) outer_.give_back(count);
  for (const auto& output : outputs_)
    if (output && output->data) outer_.give_back(output->data);
}

ops::Tensor Rehearsal::output(int i, const ops::Shape& shape) {
  const auto& recorded = one_way_.outputs[size_t(i)];
  if (!recorded || *recorded != shape)
    fail(Code::capture_forbidden, "the shape of an output depends on data, by which the way to it is chosen");
  return make(i, shape);
}

// As much as the run before had is what the next ones are thought to need.
ops::Room Rehearsal::room(int i, const ops::Parts& parts) {
  const auto& recorded = one_way_.outputs[size_t(i)];
  if (!recorded || recorded->rank() == 0)
    fail(Code::capture_forbidden, "the first run has not collected an output that a graph would");
  const int64_t count = room_for((*recorded)[0], parts.most);
  std::vector<int64_t> dims(parts.each.dims().begin(), parts.each.dims().end());
  dims.insert(dims.begin(), count);
  const ops::Tensor made = make(i, ops::Shape(dims));
  record().outputs[size_t(i)] = made.shape;
  record().collected.push_back({size_t(i), parts.of_none, count == parts.most});
  record().output_bytes += made.bytes();
  counts_.push_back(outer_.scratch(sizeof(int64_t)));
  return {made, static_cast<int64_t*>(counts_.back())};
}

void* Rehearsal::scratch(size_t bytes) {
  if (record().is_too_long) fail(Code::capture_forbidden, "it takes as many steps as long loops do");
  return RecordedRun::scratch(bytes);
}

ops::Tensor Rehearsal::make(int i, const ops::Shape& shape) {
  outputs_.resize(size_t(output_count()));
  std::optional<ops::Tensor>& made = outputs_[size_t(i)];
  if (!made) {
    made.emplace(one_way_.types[size_t(i)], ops::Where::device, shape, nullptr);
    made->data = outer_.scratch(made->bytes());
  }
  return *made;
}

}  // namespace encore::automatic
