#include "automatic/longer.h"

#include <algorithm>
#include <bit>
#include <optional>

namespace encore::automatic {
namespace {

using ops::InputAxis;
using ops::Tensor;

// Powers of two: few, and what is added up in vain is no more than there is, but for what is next to nothing.
constexpr int64_t kShortest = 256;
constexpr size_t kLittleBytes = size_t(64) << 10;
int64_t longer_length(int64_t length, size_t bytes) {
  const auto next = int64_t(std::bit_ceil(uint64_t(length)));
  return bytes / size_t(length) <= kLittleBytes / kShortest ? std::max(next, kShortest) : next;
}

// Of an input's axis; none if it isn't there.
std::optional<int64_t> length_of(const Outlines& inputs, const InputAxis& at) {
  const auto& input = inputs[size_t(at.input)];
  return input && at.axis < std::ssize(input->dims) ? std::optional(input->dims[size_t(at.axis)]) : std::nullopt;
}

Longer longer_input(const Tensor& input, const InputAxis& at, int64_t length) {
  Longer made{at.input, input, 0, 0, 1};
  made.tensor.shape = input.shape.with(at.axis, length);
  made.rows = size_t(input.shape.count(0, at.axis));
  made.row_bytes = input.bytes() / made.rows;
  made.pitch = made.tensor.bytes() / made.rows;
  return made;
}

}  // namespace

const Longer* find_longer(const std::vector<Longer>& longer, int input) {
  const auto found = std::ranges::find(longer, input, &Longer::input);
  return found == longer.end() ? nullptr : &*found;
}

int64_t Growth::length_in(const Outlines& inputs) const {
  const auto length = length_of(inputs, dim_.masks[0]);
  const auto is_same = [&](const InputAxis& mask) { return length_of(inputs, mask) == length; };
  return length && std::ranges::all_of(dim_.masks, is_same) ? *length : 0;
}

int64_t Growth::room_in(const Outlines& inputs) const {
  int64_t room = dim_.room;
  for (const InputAxis& at : dim_.rooms) room = std::min(room, length_of(inputs, at).value_or(0));
  return room;
}

bool Growth::is_prompt(const Outlines& inputs, int64_t length) const {
  return length <= dim_.fresh || std::ranges::any_of(dim_.news, [&](const InputAxis& at) {
           return length <= length_of(inputs, at).value_or(length);
         });
}

void Growth::lengthen(ops::Context& run, const Outlines& inputs, std::vector<Longer>& longer) {
  const int64_t length = length_in(inputs);
  if (length == 0 || is_prompt(inputs, length)) return;
  if (first_ == 0) first_ = length;
  if (!grows_ && !(grows_ = length != first_)) return;
  size_t bytes = 0;
  for (const InputAxis& mask : dim_.masks) {
    const Tensor& input = *run.find_input(mask.input);
    // Along another axis it may be longer already.
    if (input.count() == 0 || find_longer(longer, mask.input)) return;
    bytes += input.bytes();
  }
  const int64_t made = std::min(room_in(inputs), longer_length(length, bytes));
  if (made < length || bytes / size_t(length) > kMostStagedBytes / size_t(made)) return;
  for (const InputAxis& mask : dim_.masks) longer.push_back(longer_input(*run.find_input(mask.input), mask, made));
  lengths_.insert(made);
}

LongerRun::LongerRun(ops::Context& outer, std::vector<Longer> longer) : SameRun(outer), longer_(std::move(longer)) {
  std::vector<device::Copy> copies;
  for (Longer& one : longer_) {
    const void* const from = one.tensor.data;
    one.tensor.data = outer.scratch(one.tensor.bytes());
    copies.push_back(one.copy(from, one.tensor.data));
  }
  device::copy_many(stream(), copies);
}

const Tensor* LongerRun::find_input(int i) {
  const Longer* const longer = find_longer(longer_, i);
  return longer ? &longer->tensor : outer_.find_input(i);
}

}  // namespace encore::automatic
