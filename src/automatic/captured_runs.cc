#include "automatic/captured_runs.h"

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

Rehearsal::~Rehearsal() {
  for (const auto& output : outputs_)
    if (output && output->data) outer_.give_back(output->data);
}

ops::Tensor Rehearsal::output(int i, const ops::Shape& shape) {
  const auto& recorded = one_way_.outputs[size_t(i)];
  if (!recorded || *recorded != shape)
    fail(Code::capture_forbidden, "the shape of an output depends on data, by which the way to it is chosen");
  outputs_.resize(size_t(output_count()));
  std::optional<ops::Tensor>& made = outputs_[size_t(i)];
  if (!made) {
    made.emplace(one_way_.types[size_t(i)], ops::Where::device, shape, nullptr);
    made->data = outer_.scratch(made->bytes());
  }
  return *made;
}

}  // namespace encore::automatic
