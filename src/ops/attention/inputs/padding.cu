// com.microsoft's RemovePadding and RestorePadding, and what attention of packed sequences has of them.
#include "ops/attention/inputs/padding.h"

#include <algorithm>
#include <vector>

#include "device/divide.h"
#include "device/fault.h"
#include "device/memory.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;

template <class Unit>
struct MoveRows {
  const Unit* from;
  Unit* to;
  const int32_t* offsets;
  int64_t units, from_rows, to_rows;
  Divider by_units;
  bool back;
  device::FaultRef fault;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t unit;
    const int64_t row = by_units(i, unit), other = offsets[row], limit = back ? to_rows : from_rows;
    if (other < 0 || other >= limit) {
      fault.report(device::FaultKind::index_out_of_range, other, limit);
      return;
    }
    if (back)
      to[other * units + unit] = row < from_rows ? from[row * units + unit] : Unit{};
    else
      to[row * units + unit] = from[other * units + unit];
  }
};

struct MakeLengths {
  const int32_t* starts;
  int64_t* lengths;
  int64_t most;
  DEVICE_FN void operator()(int64_t i) const {
    const int64_t length = int64_t(starts[i + 1]) - starts[i];
    lengths[i] = length < 0 ? 0 : length > most ? most : length;
  }
};

struct AddUpCounts {
  const int32_t* counts;
  int32_t* starts;
  DEVICE_FN void operator()(int64_t i) const {
    int32_t sum = 0;
    for (int64_t j = 0; j < i; ++j) sum += counts[j];
    starts[i] = sum;
  }
};

// Tokens first, and then padding.
struct MakeOffsets {
  const int32_t *counts, *starts;
  int32_t* offsets;
  int64_t tokens;
  Divider by_rows;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t row;
    const int64_t batch = by_rows(i, row), start = starts[batch], count = counts[batch];
    const int64_t to = row < count ? start + row : tokens + i - start - count;
    offsets[to] = int32_t(i);
  }
};

class RemovePadding : public Op {
 public:
  explicit RemovePadding(const NodeInfo&) {}

  void run(Context& context) const override {
    const Tensor &input = context.input(0), &given = context.input(1);
    const Shape& shape = input.shape;
    require(shape.rank() == 3, "input has shape ", shape.str(), "; three dimensions are wanted");
    const int64_t batch = shape[0], rows = shape[1], all = checked_product(batch, rows);
    require(given.shape == Shape{batch}, "sequence_token_count has shape ", given.shape.str(), "; [", batch,
            "] is wanted");
    require(all < int64_t(1) << 31, "input ", shape.str(), " has more tokens than offsets can count");
    std::vector<int32_t> counts(size_t(batch), 0);
    if (batch > 0) context.read_back(counts.data(), given.data, counts.size() * sizeof(int32_t));
    int64_t tokens = 0, longest = 0;
    for (const int32_t count : counts) {
      require(count >= 0 && count <= rows, "sequence_token_count has ", count, "; sequences have up to ", rows,
              " tokens");
      tokens += count;
      longest = std::max<int64_t>(longest, count);
    }
    const Tensor y = context.output(0, {tokens, shape[2]}), offsets = context.output(1, {batch, rows}),
                 starts = context.output(2, {batch + 1}), most = context.output(3, {1});
    *most.as<int32_t>() = int32_t(longest);
    device::for_each_index(context.stream(), batch + 1, AddUpCounts{given.as<const int32_t>(), starts.as<int32_t>()});
    device::for_each_index(context.stream(), all,
                           MakeOffsets{given.as<const int32_t>(), starts.as<const int32_t>(), offsets.as<int32_t>(),
                                       tokens, Divider(rows, all)});
    move_rows(context, {input.data, y.data, offsets.as<const int32_t>(), tokens, all, tokens, shape[2], input.type});
  }
};

class RestorePadding : public Op {
 public:
  explicit RestorePadding(const NodeInfo&) {}

  void run(Context& context) const override {
    const Tensor &input = context.input(0), &offsets = context.input(1);
    require(input.shape.rank() == 2 && offsets.shape.rank() == 2 && input.shape[0] <= offsets.count(),
            "input has shape ", input.shape.str(), " and token_offset ", offsets.shape.str(),
            "; both must be matrices, the latter of as many numbers at least as there are rows of the former");
    const Tensor y = context.output(0, {offsets.shape[0], offsets.shape[1], input.shape[1]});
    device::fill(context.stream(), y.data, 0, y.bytes());  // places that no offset names
    move_rows(context, {input.data, y.data, offsets.as<const int32_t>(), offsets.count(), input.shape[0],
                        offsets.count(), input.shape[1], input.type, true});
  }
};

}  // namespace

void move_rows(Context& context, const RowMoves& m) {
  const int64_t bytes = m.width * int64_t(device::size_bytes(m.type));
  const bool wide = bytes % 16 == 0 && device::is_pack_aligned<16>(static_cast<const uint8_t*>(m.from)) &&
                    device::is_pack_aligned<16>(static_cast<const uint8_t*>(m.to));
  const size_t unit = wide ? 16 : device::size_bytes(m.type);
  dispatch_size(unit, [&]<class Unit> {
    const int64_t units = bytes / int64_t(unit), count = checked_product(m.rows, units);
    device::for_each_index(context.stream(), count,
                           MoveRows<Unit>{static_cast<const Unit*>(m.from), static_cast<Unit*>(m.to), m.offsets, units,
                                          m.from_rows, m.to_rows, Divider(units, count), m.back, context.fault()});
  });
}

const int64_t* lengths_of(Context& context, const Sequences& sequences, int64_t batch, int64_t most) {
  auto* const lengths = static_cast<int64_t*>(context.scratch(size_t(batch) * sizeof(int64_t)));
  device::for_each_index(context.stream(), batch, MakeLengths{sequences.starts, lengths, most});
  return lengths;
}

std::vector<OpRow> padding_rows() {
  const Types types{Type::f32, Type::f16}, whole{Type::i32};
  return {{.domain = kMicrosoft,
           .name = "RemovePadding",
           .since = 1,
           .types = {in(0, types), in(1, whole)},
           .make = make<RemovePadding>,
           .host_outputs = {3},
           .reads_back = true},
          {.domain = kMicrosoft,
           .name = "RestorePadding",
           .since = 1,
           .types = {in(0, types), in(1, whole)},
           .make = make<RestorePadding>}};
}

}  // namespace encore::ops
