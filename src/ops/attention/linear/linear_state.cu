// A block keeps kColumns columns of one head's state in registers, its rows divided among kSlices warps. What several
// tokens bring is loaded at once, a warp for each; then a token takes two phases: what the state holds for the key, and
// the change with the parts of the answers, which are added up in the next token's first phase.
#include "ops/attention/linear/linear_state.h"

#include <algorithm>
#include <cmath>

#include "device/launch.h"
#include "device/transform.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Blocks;
using device::FaultKind;
using device::FaultRef;
using device::Pack;
using device::PerThread;

constexpr int kColumns = 32, kSlices = 8, kThreads = kColumns * kSlices;

template <int kRows>  // of the state that a thread keeps
struct AttendLinearly {
  static constexpr int kMaxThreads = kThreads, kWidth = kRows * kSlices;
  struct Shared {
    // Of several tokens; queries perhaps of several heads. kept: what decay leaves of each row.
    float key[kSlices][kWidth], kept[kSlices][kWidth], query[kSlices][kWidth];
    float value[kSlices][kColumns], rate[kSlices];
    float held[kSlices][kColumns], answer[kSlices][kSlices][kColumns];  // parts of sums; answers of several heads
  };
  using State = PerThread<Pack<float, kRows>, kThreads>;
  LinearState p;
  int column_blocks, key_heads;
  int ahead, group;  // tokens that are loaded at once; heads of queries that are answered at once
  FaultRef fault;

  struct Here {                  // what all of a block's threads work on
    int64_t head, from, tokens;  // head: of all batches
    int in_batch, key_head, first;
  };

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    Here at;
    at.head = b.index() / column_blocks;
    at.first = int(b.index() % column_blocks) * kColumns;
    const int64_t batch = at.head / p.heads;
    at.in_batch = int(at.head % p.heads);
    at.key_head = at.in_batch / p.key_share;
    at.from = batch * p.tokens, at.tokens = p.tokens;
    if (p.ends) find_tokens(b, batch, at.from, at.tokens);
    State state;
    b.threads([&](int t, Shared&) {
      const int column = at.first + t % kColumns;
      UNROLL for (int i = 0; i < kRows; ++i) {
        const int row = i * kSlices + t / kColumns;
        const bool there = p.past.data && row < p.rows && column < p.columns;
        state[t].at[i] = there ? p.past.load(place(p.windows - 1, at.head, row, column)) : 0;
      }
    });
    const int changes = !p.changes ? 0 : count_changes(batch, at.tokens);
    const int64_t of_change = p.heads * (p.decays() + p.columns) + int64_t(key_heads) * p.rows;
    float* const into = p.changes + batch * p.most_changes * of_change;
    for (int64_t i = 0; i < at.tokens; ++i) {
      const int slot = int(i % ahead);
      if (slot == 0) load(b, at, i);
      b.threads([&](int t, Shared& s) {
        if (i > 0) finish(s, t, at, i - 1, p.queries - group);
        float sum = 0;
        UNROLL for (int r = 0; r < kRows; ++r) {
          const int row = r * kSlices + t / kColumns;
          state[t].at[r] *= s.kept[slot][row];
          sum += s.key[slot][row] * state[t].at[r];
        }
        if (p.corrects) s.held[t / kColumns][t % kColumns] = sum;
      });
      b.threads([&](int t, Shared& s) {
        float change = s.value[slot][t % kColumns];
        if (p.corrects) {
          UNROLL for (int slice = 0; slice < kSlices; ++slice) change -= s.held[slice][t % kColumns];
        }
        change *= s.rate[slot];
        UNROLL for (int r = 0; r < kRows; ++r) state[t].at[r] += s.key[slot][r * kSlices + t / kColumns] * change;
        ask(s, t, state, slot * group);
        if (i < changes) note(s, t, at, into, i, slot, change);
      });
      for (int q = group; q < p.queries; q += group) {
        load_queries(b, at, i, q, [&](Shared& s, int t) { finish(s, t, at, i, q - group); });
        b.threads([&](int t, Shared& s) { ask(s, t, state, 0); });
      }
      if (p.present.data && i + p.windows >= at.tokens) keep(b, state, i + p.windows - at.tokens, at);
    }
    b.threads([&](int t, Shared& s) {
      if (at.tokens > 0) finish(s, t, at, at.tokens - 1, p.queries - group);
    });
    if (!p.present.data) return;
    if (at.tokens == 0) keep(b, state, p.windows - 1, at);
    // No token of this run led to these.
    for (int64_t slot = 0; slot < p.windows - (at.tokens > 1 ? at.tokens : 1); ++slot) {
      b.threads([&](int t, Shared&) { UNROLL for (int r = 0; r < kRows; ++r) state[t].at[r] = 0; });
      keep(b, state, slot, at);
    }
  }

 private:
  DEVICE_FN int count_changes(int64_t batch, int64_t tokens) const {
    const int64_t wanted = p.change_counts[batch], most = tokens < p.most_changes ? tokens : p.most_changes;
    return int(wanted < 0 ? 0 : wanted > most ? most : wanted);
  }
  DEVICE_FN int64_t place(int64_t slot, int64_t head, int row, int column) const {
    const int64_t matrix = slot * p.batches * p.heads + head;
    return p.transposed ? (matrix * p.columns + column) * p.rows + row : (matrix * p.rows + row) * p.columns + column;
  }
  // The range of a batch; none if it is no range of the tokens there are, or leaves out those at an end of them.
  DEVICE_FN void find_tokens(Block<Shared>& b, int64_t batch, int64_t& from, int64_t& tokens) const {
    const int64_t begin = p.ends[batch], end = p.ends[batch + 1];
    const bool inside = 0 <= begin && begin <= end && end <= p.tokens;
    const bool begins_late = batch == 0 && begin > 0, ends_early = batch == p.batches - 1 && end < p.tokens;
    const bool fits = inside && !begins_late && !ends_early;
    from = fits ? begin : 0;
    tokens = fits ? end - begin : 0;
    if (fits) return;
    b.threads([&](int t, Shared&) {
      if (t == 0)
        fault.report(inside ? FaultKind::bad_value : FaultKind::index_out_of_range, begins_late ? begin : end,
                     p.tokens);
    });
  }

  // One head's numbers by a warp, zeros behind them; returns a thread's part of their squares.
  DEVICE_FN float load_row(float* to, const TokenHeads& heads, int64_t token, int head, int lane) const {
    const int64_t from = token * heads.step + heads.first + int64_t(head) * p.rows;
    float squares = 0;
    UNROLL for (int i = 0; i < kWidth / 32; ++i) {
      const int row = i * 32 + lane;
      const float value = row < p.rows ? heads.numbers.load(from + row) : 0;
      to[row] = value;
      squares += value * value;
    }
    return squares;
  }
  // Divides rows by their lengths; each warp has its own.
  template <class RowOf>
  DEVICE_FN void make_unit(Block<Shared>& b, PerThread<float, kThreads>& squares, RowOf row_of) const {
    PerThread<float, kThreads> all;
    b.template reduce_groups<32>(
        all, [&](int t) { return squares[t]; }, [](float a, float c) { return a + c; });
    b.threads([&](int t, Shared& s) {
      const float factor = 1.f / sqrtf(all[t] + p.least_squares);
      UNROLL for (int i = 0; i < kWidth / 32; ++i) row_of(s, t / 32)[i * 32 + t % 32] *= factor;
    });
  }
  // What the tokens from the i-th on bring, as many as are loaded at once.
  DEVICE_FN void load(Block<Shared>& b, const Here& at, int64_t i) const {
    const int64_t left = at.tokens - i;
    const int count = left < ahead ? int(left) : ahead;
    PerThread<float, kThreads> squares;
    b.threads([&](int t, Shared& s) {
      const int slot = t / 32, lane = t % 32;
      squares[t] = 0;
      if (slot >= count) return;
      const int64_t token = at.from + i + slot;
      squares[t] = load_row(s.key[slot], p.key, token, at.key_head, lane);
      load_kept(s.kept[slot], token, at.in_batch, lane);
      const int column = at.first + lane;
      const int64_t value = token * p.value.step + p.value.first + int64_t(at.in_batch) * p.columns + column;
      s.value[slot][lane] = column < p.columns ? p.value.numbers.load(value) : 0;
      if (lane != 0) return;
      float rate = 1;
      if (p.rate.numbers.data) rate = p.rate.numbers.load(token * p.rate.step + at.in_batch * p.rate.by_head);
      s.rate[slot] = p.squash_rate ? 1.f / (1.f + expf(-rate)) : rate;
    });
    if (p.unit_keys) make_unit(b, squares, [](Shared& s, int slot) { return s.key[slot]; });
    load_queries(b, at, i, 0, [](Shared&, int) {});
  }
  DEVICE_FN void load_kept(float* to, int64_t token, int head, int lane) const {
    UNROLL for (int i = 0; i < kWidth / 32; ++i) {
      const int row = i * 32 + lane;
      float kept = 1;
      if (p.decay.numbers.data && row < p.rows) {
        float decay = p.decay.numbers.load(token * p.decay.step + head * p.decay.by_head + (p.decay_by_row ? row : 0));
        if (p.gate_scale) decay = gate(decay, head, row);
        kept = expf(decay);
      }
      to[row] = kept;
    }
  }
  DEVICE_FN float gate(float decay, int head, int row) const {
    const float scale = expf(p.gate_scale[head]);
    const int64_t place = p.bias_by_row ? int64_t(head) * p.rows + row : head;
    const float x = decay + (p.gate_bias ? p.gate_bias[place] : 0.f);
    if (p.gate_floor < 0) return p.gate_floor / (1.f + expf(-scale * x));
    return -scale * (x > 20.f ? x : log1pf(expf(x)));
  }
  // A warp for each head of each token, from the q-th on; `before` is done in the same phase.
  template <class Before>
  DEVICE_FN void load_queries(Block<Shared>& b, const Here& at, int64_t i, int q, Before before) const {
    PerThread<float, kThreads> squares;
    b.threads([&](int t, Shared& s) {
      before(s, t);
      const int64_t token = i + t / 32 / group;
      const int asked = at.in_batch * p.queries + q + t / 32 % group;
      squares[t] = 0;
      if (token < at.tokens && q + t / 32 % group < p.queries)
        squares[t] = load_row(s.query[t / 32], p.query, at.from + token, asked / p.query_share, t % 32);
    });
    if (p.unit_keys) make_unit(b, squares, [](Shared& s, int slot) { return s.query[slot]; });
  }
  // This thread's part of what the state answers; the queries begin with this slot.
  DEVICE_FN void ask(Shared& s, int t, State& state, int slot) const {
    for (int q = 0; q < group; ++q) {
      float sum = 0;
      UNROLL for (int r = 0; r < kRows; ++r) sum += s.query[slot + q][r * kSlices + t / kColumns] * state[t].at[r];
      s.answer[q][t / kColumns][t % kColumns] = sum;
    }
  }
  // Adds up the answers of the i-th token to the queries from the q-th on, by a warp each.
  DEVICE_FN void finish(const Shared& s, int t, const Here& at, int64_t i, int q) const {
    const int which = t / kColumns, column = at.first + t % kColumns;
    if (which >= group || column >= p.columns) return;
    float sum = 0;
    UNROLL for (int slice = 0; slice < kSlices; ++slice) sum += s.answer[which][slice][t % kColumns];
    const int64_t head = int64_t(at.in_batch) * p.queries + q + which;
    p.y.store(((at.from + i) * p.heads * p.queries + head) * p.columns + column, p.scale * sum);
  }
  DEVICE_FN void note(const Shared& s, int t, const Here& at, float* into, int64_t i, int slot, float change) const {
    const int column = at.first + t % kColumns;
    float* const keys = into + p.most_changes * p.heads * p.decays();
    float* const values = keys + p.most_changes * int64_t(key_heads) * p.rows;
    const int64_t head = i * p.heads + at.in_batch;
    if (t < kColumns && column < p.columns) values[head * p.columns + column] = change;
    if (at.first != 0) return;
    for (int64_t row = t; row < p.decays(); row += kThreads) into[head * p.decays() + row] = s.kept[slot][row];
    if (at.in_batch % p.key_share != 0) return;
    for (int row = t; row < p.rows; row += kThreads)
      keys[(i * key_heads + at.key_head) * p.rows + row] = s.key[slot][row];
  }
  DEVICE_FN void keep(Block<Shared>& b, State& state, int64_t slot, const Here& at) const {
    b.threads([&](int t, Shared&) {
      const int column = at.first + t % kColumns;
      UNROLL for (int r = 0; r < kRows; ++r) {
        const int row = r * kSlices + t / kColumns;
        if (row < p.rows && column < p.columns) p.present.store(place(slot, at.head, row, column), state[t].at[r]);
      }
    });
  }
};

}  // namespace

void run_linear_state(Context& context, const LinearState& p) {
  const int64_t column_blocks = (int64_t(p.columns) + kColumns - 1) / kColumns;
  const int64_t blocks = checked_product(checked_product(p.batches, p.heads), column_blocks);
  // Heads of queries in equal groups of at most as many as there are warps.
  int group = std::min(p.queries, kSlices);
  while (p.queries % group != 0) --group;
  const int ahead = group < p.queries ? 1 : kSlices / group;
  const auto launch = [&]<int kRows>() {
    using Kernel = AttendLinearly<kRows>;
    device::block_kernel<typename Kernel::Shared>(
        context.stream(), Blocks{blocks, kThreads},
        Kernel{p, int(column_blocks), p.heads / p.key_share, ahead, group, context.fault()});
  };
  if (p.rows <= 8 * kSlices) return launch.template operator()<8>();
  if (p.rows <= 16 * kSlices) return launch.template operator()<16>();
  launch.template operator()<32>();
}

}  // namespace encore::ops
