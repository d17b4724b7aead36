// A block keeps kColumns columns of one head's state in registers, its rows divided among kSlices groups of threads.
#include "ops/attention/linear_state.h"

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
constexpr float kLeastSquares = 1e-6f;  // added to the squares of a key, whose length would be divided by

template <int kRows>  // of the state that a thread keeps
struct AttendLinearly {
  struct Shared {
    float query[kMostStateRows], key[kMostStateRows], kept[kMostStateRows];  // kept: what decay leaves of each row
    float part[kSlices][kColumns];
  };
  static constexpr int kMaxThreads = kThreads;
  using State = PerThread<Pack<float, kRows>, kThreads>;
  LinearState p;
  int column_blocks, key_heads;
  FaultRef fault;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const int64_t head = b.index() / column_blocks, batch = head / p.heads;  // head: of all batches
    const int first = int(b.index() % column_blocks) * kColumns, in_batch = int(head % p.heads);
    int64_t from = batch * p.tokens, tokens = p.tokens;
    if (p.ends) find_tokens(b, batch, from, tokens);
    State state;
    b.threads([&](int t, Shared&) {
      const int column = first + t % kColumns;
      UNROLL for (int i = 0; i < kRows; ++i) {
        const int row = i * kSlices + t / kColumns;
        const bool there = p.past.data && row < p.rows && column < p.columns;
        state[t].at[i] = there ? p.past.load(at(p.windows - 1, head, row, column)) : 0;
      }
    });
    const int key_head = in_batch / p.key_share;
    const int changes =
        !p.changes ? 0 : int(clamped(p.change_counts[batch], tokens < p.most_changes ? tokens : p.most_changes));
    float* const into = p.changes + batch * p.most_changes * (p.heads * (1 + p.columns) + key_heads * p.rows);
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t token = from + i;
      const float key_scale = load_key(b, token, key_head);
      load_kept(b, token, in_batch);
      b.threads([&](int t, Shared& s) {
        float sum = 0;
        UNROLL for (int r = 0; r < kRows; ++r) {
          const int row = r * kSlices + t / kColumns;
          if (row >= p.rows) continue;
          state[t].at[r] *= s.kept[row];
          sum += s.key[row] * state[t].at[r];
        }
        if (p.corrects) s.part[t / kColumns][t % kColumns] = sum * key_scale;
      });
      b.threads([&](int t, Shared& s) {
        const int column = first + t % kColumns;
        if (column < p.columns) {
          const float change = change_of(s, token, in_batch, column, t % kColumns);
          UNROLL for (int r = 0; r < kRows; ++r) {
            const int row = r * kSlices + t / kColumns;
            if (row < p.rows) state[t].at[r] += s.key[row] * (key_scale * change);
          }
          if (i < changes && t < kColumns)
            into[p.most_changes * (p.heads + key_heads * p.rows) + (i * p.heads + in_batch) * p.columns + column] =
                change;
        }
        if (i >= changes || first != 0) return;
        if (t == 0) into[i * p.heads + in_batch] = s.kept[0];
        if (in_batch % p.key_share != 0) return;
        for (int row = t; row < p.rows; row += kThreads)
          into[p.most_changes * p.heads + (i * key_heads + key_head) * p.rows + row] = s.key[row] * key_scale;
      });
      for (int q = 0; q < p.queries; ++q) answer(b, state, token, in_batch * p.queries + q, first);
      if (p.present.data && i + p.windows >= tokens) keep(b, state, i + p.windows - tokens, head, first);
    }
    if (!p.present.data) return;
    if (tokens == 0) keep(b, state, p.windows - 1, head, first);
    // No token of this run led to these.
    for (int64_t slot = 0; slot < p.windows - (tokens > 1 ? tokens : 1); ++slot) {
      b.threads([&](int t, Shared&) { UNROLL for (int r = 0; r < kRows; ++r) state[t].at[r] = 0; });
      keep(b, state, slot, head, first);
    }
  }

 private:
  DEVICE_FN static int64_t clamped(int64_t value, int64_t most) { return value < 0 ? 0 : value > most ? most : value; }
  DEVICE_FN int64_t at(int64_t slot, int64_t head, int row, int column) const {
    const int64_t matrix = slot * p.batches * p.heads + head;
    return p.turned ? (matrix * p.columns + column) * p.rows + row : (matrix * p.rows + row) * p.columns + column;
  }
  // The range of a batch; none if it is no range of the tokens there are.
  DEVICE_FN void find_tokens(Block<Shared>& b, int64_t batch, int64_t& from, int64_t& tokens) const {
    const int64_t begin = p.ends[batch], end = p.ends[batch + 1];
    const bool fits = 0 <= begin && begin <= end && end <= p.tokens;
    from = fits ? begin : 0;
    tokens = fits ? end - begin : 0;
    if (fits) return;
    b.threads([&](int t, Shared&) {
      if (t == 0) fault.report(FaultKind::index_out_of_range, end, p.tokens);
    });
  }
  // Leaves the key as it is given; returns what it is to be multiplied by.
  DEVICE_FN float load_key(Block<Shared>& b, int64_t token, int key_head) const {
    const int64_t place = token * p.key.step + p.key.first + int64_t(key_head) * p.rows;
    b.threads([&](int t, Shared& s) {
      for (int row = t; row < p.rows; row += kThreads) s.key[row] = p.key.numbers.load(place + row);
    });
    return p.unit_keys ? unit(b, p.key, place) : 1.f;
  }
  DEVICE_FN float unit(Block<Shared>& b, const Heads& heads, int64_t place) const {
    const float squares = b.reduce(
        0.f,
        [&](int t) {
          float sum = 0;
          for (int row = t; row < p.rows; row += kThreads) {
            const float value = heads.numbers.load(place + row);
            sum += value * value;
          }
          return sum;
        },
        [](float a, float c) { return a + c; });
    return 1.f / sqrtf(squares + kLeastSquares);
  }
  DEVICE_FN void load_kept(Block<Shared>& b, int64_t token, int head) const {
    b.threads([&](int t, Shared& s) {
      for (int row = t; row < p.rows; row += kThreads) {
        float kept = 1;
        if (p.decay.numbers.data) {
          float decay =
              p.decay.numbers.load(token * p.decay.step + head * p.decay.by_head + (p.decay_by_row ? row : 0));
          if (p.gate_scale) {
            const float x = decay + (p.gate_bias ? p.gate_bias[head] : 0.f);
            decay = -expf(p.gate_scale[head]) * (x > 20.f ? x : log1pf(expf(x)));
          }
          kept = expf(decay);
        }
        s.kept[row] = kept;
      }
    });
  }
  DEVICE_FN float change_of(const Shared& s, int64_t token, int head, int column, int in_block) const {
    float change = p.value.numbers.load(token * p.value.step + p.value.first + int64_t(head) * p.columns + column);
    if (p.corrects) change -= total(s, in_block);
    if (p.rate.numbers.data) {
      const float rate = p.rate.numbers.load(token * p.rate.step + head * p.rate.by_head);
      change *= p.squash_rate ? 1.f / (1.f + expf(-rate)) : rate;
    }
    return change;
  }
  DEVICE_FN void answer(Block<Shared>& b, State& state, int64_t token, int asked, int first) const {
    const int64_t place = token * p.query.step + p.query.first + int64_t(asked / p.query_share) * p.rows;
    b.threads([&](int t, Shared& s) {
      for (int row = t; row < p.rows; row += kThreads) s.query[row] = p.query.numbers.load(place + row);
    });
    const float scale = p.scale * (p.unit_keys ? unit(b, p.query, place) : 1.f);
    b.threads([&](int t, Shared& s) {
      float sum = 0;
      UNROLL for (int r = 0; r < kRows; ++r) {
        const int row = r * kSlices + t / kColumns;
        if (row < p.rows) sum += s.query[row] * state[t].at[r];
      }
      s.part[t / kColumns][t % kColumns] = sum;
    });
    b.threads([&](int t, Shared& s) {
      if (t < kColumns && first + t < p.columns)
        p.y.store((token * p.heads * p.queries + asked) * p.columns + first + t, scale * total(s, t));
    });
  }
  DEVICE_FN void keep(Block<Shared>& b, State& state, int64_t slot, int64_t head, int first) const {
    b.threads([&](int t, Shared&) {
      const int column = first + t % kColumns;
      UNROLL for (int r = 0; r < kRows; ++r) {
        const int row = r * kSlices + t / kColumns;
        if (row < p.rows && column < p.columns) p.present.store(at(slot, head, row, column), state[t].at[r]);
      }
    });
  }
  DEVICE_FN static float total(const Shared& s, int column) {
    float sum = 0;
    UNROLL for (int slice = 0; slice < kSlices; ++slice) sum += s.part[slice][column];
    return sum;
  }
};

}  // namespace

void run_linear_state(Context& context, const LinearState& p) {
  const int64_t column_blocks = (int64_t(p.columns) + kColumns - 1) / kColumns;
  const int64_t blocks = checked_product(checked_product(p.batches, p.heads), column_blocks);
  const auto launch = [&]<int kRows>() {
    using Kernel = AttendLinearly<kRows>;
    device::block_kernel<typename Kernel::Shared>(
        context.stream(), Blocks{blocks, kThreads},
        Kernel{p, int(column_blocks), p.heads / p.key_share, context.fault()});
  };
  if (p.rows <= 8 * kSlices) return launch.template operator()<8>();
  if (p.rows <= 16 * kSlices) return launch.template operator()<16>();
  launch.template operator()<32>();
}

}  // namespace encore::ops
