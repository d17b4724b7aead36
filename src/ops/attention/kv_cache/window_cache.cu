#include "ops/attention/kv_cache/window_cache.h"

#include <algorithm>

#include "device/launch.h"
#include "device/transform.h"

namespace encore::ops {
namespace {

using device::Block;
using device::NoShared;
using device::Pack;
using device::PerThread;

constexpr int kThreads = 256, kHold = 8;  // units that a thread has on their way
constexpr int kStripBytes = 32;           // the least that memory moves

// Rows that go to the first places, and where zeros begin.
struct Span {
  int first, count, end;
};

// A block moves a strip of a head's rows. Rows may go to earlier places of the same memory: what a block has read it
// writes before it reads on, and strips don't meet.
template <class Unit>
struct MoveWindow {
  static constexpr int kMaxThreads = kThreads;
  static constexpr int kWidth = kStripBytes / int(sizeof(Unit)), kSide = kThreads / kWidth, kRows = kSide * kHold;
  struct Held {
    Unit at[kHold];
  };
  WindowMove move;
  int units, strips;  // of a row

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    int at = int(b.index());
    const int strip = at % strips;
    at /= strips;
    const int which = at % 2;
    at /= 2;
    const int head = at % int(move.heads), batch = at / int(move.heads);
    int last_row;
    const Span span = span_of(batch, last_row);
    if (move.last_rows && strip == 0 && which == 0 && head == 0) {
      b.threads([&](int t, NoShared&) {
        if (t == 0) move.last_rows[batch] = last_row;
      });
    }
    const int64_t index = int64_t(batch) * move.heads + head;
    const Unit* const from =
        static_cast<const Unit*>(move.from[which]) + (index * move.from_capacity + span.first) * units;
    Unit* const to = static_cast<Unit*>(move.to[which]) + index * move.to_capacity * units;
    if (from == to) return;
    for (int row = 0; row < span.count; row += kRows) {
      PerThread<Held, kThreads> held;
      const auto each = [&](int t, auto&& use) {
        const int column = strip * kWidth + t % kWidth;
        UNROLL for (int i = 0; i < kHold; ++i) {
          const int one = row + i * kSide + t / kWidth;
          if (one < span.count && column < units) use(held[t].at[i], int64_t(one) * units + column);
        }
      };
      b.threads([&](int t, NoShared&) { each(t, [&](Unit& unit, int64_t place) { unit = from[place]; }); });
      b.threads([&](int t, NoShared&) { each(t, [&](const Unit& unit, int64_t place) { to[place] = unit; }); });
    }
    if (move.from[which] == move.to[which]) return;
    b.threads([&](int t, NoShared&) {
      const int column = strip * kWidth + t % kWidth;
      if (column >= units) return;
      for (int row = span.end + t / kWidth; row < move.to_capacity; row += kSide)
        to[int64_t(row) * units + column] = Unit{};
    });
  }

 private:
  // Of a batch. Lengths may be anything.
  DEVICE_FN Span span_of(int batch, int& last_row) const {
    const int64_t after = int64_t(move.last_keys[batch]) + 1, before = move.from_start ? 0 : after - move.rows;
    const int64_t was = move.residents(before), is = move.residents(after);
    last_row = int(move.way == WindowMove::to_stage ? was + move.rows : is) - 1;
    if (move.way == WindowMove::to_stage) return {0, int(was), int(move.to_capacity)};
    int64_t first = move.residents.gone(after) - move.residents.gone(before);
    if (first > move.from_capacity) first = move.from_capacity;
    const int64_t left = move.from_capacity - first;
    int64_t count = move.way == WindowMove::make_room ? is - 1 : is;
    if (count > left) count = left;
    return {int(first), int(count), int(is)};
  }
};

template <class Unit>
void run(Context& context, const WindowMove& move) {
  using Kernel = MoveWindow<Unit>;
  const int units = int(move.row_bytes / int64_t(sizeof(Unit))), strips = (units + Kernel::kWidth - 1) / Kernel::kWidth;
  const int64_t blocks = checked_product(checked_product(move.batch, move.heads), 2 * strips);
  device::block_kernel<NoShared>(context.stream(), {blocks, kThreads}, Kernel{move, units, strips});
}

}  // namespace

void move_window(Context& context, const WindowMove& move) {
  const auto fits = [&](size_t bytes) {
    const auto aligned = [&](const void* at) { return reinterpret_cast<uintptr_t>(at) % bytes == 0; };
    return move.row_bytes % int64_t(bytes) == 0 && std::ranges::all_of(move.from, aligned) &&
           std::ranges::all_of(move.to, aligned);
  };
  if (fits(16))
    run<Pack<uint32_t, 4>>(context, move);
  else if (fits(4))
    run<uint32_t>(context, move);
  else
    run<uint8_t>(context, move);
}

}  // namespace encore::ops
