// Decode: attention of a few queries, which is bound by reading keys and values, once.
//
// A group of neighbouring threads takes a key and its values, each thread a part of the head's size for kRows rows, and
// keeps up its own softmax. Groups, and blocks that share out the keys of one head, are combined at the end.
#pragma once
#include "ops/attention/dense/key_slots.h"
#include "ops/attention/dense/split_k.h"
#include "ops/dispatch.h"

namespace encore::ops {

using device::Block;
using device::Pack;
using device::PerThread;
using device::SmallDivider;

// A thread holds kHold values of a row; `Look` is EveryKey or its like.
template <class T, int kLanes, int kRows, class Look = EveryKey<T>, int kHold = 8>
struct AttendDecode {
  static constexpr int kThreads = 256;
  static constexpr int kMaxThreads = kThreads, kGroups = kThreads / kLanes, kWidth = kLanes * kHold;
  static constexpr int kPack = device::pack_size<T>(), kPacks = kHold / kPack;
  static constexpr int kKeys = kRows == 1 ? 4 : 2;  // that a group takes at once, as registers allow
  struct Part {
    float acc[kRows][kWidth];
    float row_max[kRows], row_sum[kRows];
  };
  struct Shared {
    Part part[kGroups];
    typename Look::Shared look;
  };
  struct Held {
    float at[kRows][kHold];
  };
  struct Products {
    float at[kKeys][kRows];
    DEVICE_FN void scale(float factor, float softcap) {
      UNROLL for (auto& of_key : at) { UNROLL for (float& one : of_key) one *= factor; }
      if (softcap <= 0) return;
      UNROLL for (auto& of_key : at) { UNROLL for (float& one : of_key) one = capped(one, softcap); }
    }
  };
  struct Add {
    DEVICE_FN Products operator()(Products a, const Products& b) const {
      UNROLL for (int n = 0; n < kKeys; ++n) { UNROLL for (int r = 0; r < kRows; ++r) a.at[n][r] += b.at[n][r]; }
      return a;
    }
  };
  struct Values {
    Pack<T, kPack> at[kKeys][kPacks];
  };
  struct State {
    float row_max[kRows], row_sum[kRows];
  };

  VisibleKeysView<T> visible;
  FoldedRows fold;
  HeadView<const T> q;
  Look look;
  HeadView<T> y;
  SinkView<T> sinks;
  int heads, head_size, value_size;
  float scale, softcap;
  bool aligned, values_aligned;
  SplitPartials partial;
  SmallDivider by_shares, by_row_parts, by_kv_heads;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
    const int shares = partial.shares;
    int share, of_head, own_head;
    const int64_t batch = by_kv_heads(by_row_parts(by_shares(int(b.index()), share), of_head), own_head);
    const int64_t kv_head = own_head;
    const int first_row = of_head * kRows;

    // The keys that any of the rows sees, and this block's share of the slots.
    KeyRange range[kRows];
    int64_t mask_row[kRows];
    int first = visible.keys, end = 0;
    const int length = visible.length(batch);
    UNROLL for (int r = 0; r < kRows; ++r) {
      range[r] = {0, 0};
      mask_row[r] = 0;
      if (first_row + r >= fold.rows) continue;
      int head;
      const int query = fold.query(first_row + r, head);
      range[r] = visible.range(length, query);
      mask_row[r] = visible.mask_row(batch, kv_head * fold.group.divisor() + head, query);
      if (range[r].first < first) first = range[r].first;
      if (range[r].end > end) end = range[r].end;
    }
    const int rows = fold.rows - first_row < kRows ? fold.rows - first_row : kRows;
    const RowsOfBlock<T> own_rows{visible, fold, int(batch), int(kv_head), first_row, rows, length};
    Slots slots = look.begin(b, s, own_rows, first, end);
    first = slots.first, end = slots.end;
    constexpr int kStep = kGroups * kKeys;
    const int steps = end > first ? (end - first + kStep - 1) / kStep : 0;
    const int share_steps = (steps + shares - 1) / shares;
    first += share * share_steps * kStep;
    if (end > first + share_steps * kStep) end = first + share_steps * kStep;
    slots.share = first;
    look.fetch(b, own_rows, slots, end);

    PerThread<Held, kThreads> held, acc;
    PerThread<State, kThreads> state;
    b.threads([&](int t, Shared&) {
      UNROLL for (int r = 0; r < kRows; ++r) {
        state[t].row_max[r] = kMaskedScore<float>;
        state[t].row_sum[r] = 0;
        UNROLL for (int i = 0; i < kHold; ++i) held[t].at[r][i] = acc[t].at[r][i] = 0;
        if (first_row + r >= fold.rows) continue;
        int head;
        const int query = fold.query(first_row + r, head);
        const T* const row = q.at(batch, kv_head * fold.group.divisor() + head, query);
        UNROLL for (int i = 0; i < kHold; ++i) {
          const int column = column_of(t, i);
          if (column < head_size) held[t].at[r][i] = float(row[column]);
        }
      }
    });
    PerThread<Values, kThreads> values;
    PerThread<Products, kThreads> products;
    for (int key = first; key < end; key += kStep) {
      b.template reduce_groups<kLanes>(
          products,
          [&](int t) {
            Products own;
            UNROLL for (int n = 0; n < kKeys; ++n) {
              UNROLL for (int r = 0; r < kRows; ++r) own.at[n][r] = 0;
              const auto one = look.tile(b, s, key + n * kGroups + t / kLanes, end, slots);
              const T *const of_key = look.key_at(one, int(batch), int(kv_head), 0), *const of_value =
                                                                                         look.value_at(one, int(batch),
                                                                                                       int(kv_head), 0);
              UNROLL for (int p = 0; p < kPacks; ++p) {
                const int column = column_of(t, p * kPack);
                values[t].at[n][p] = load(of_value, column, value_size, one.there(0), values_aligned);
                const auto pack = load(of_key, column, head_size, one.there(0), aligned);
                UNROLL for (int i = 0; i < kPack; ++i) {
                  const float value = float(pack.at[i]);
                  UNROLL for (int r = 0; r < kRows; ++r) own.at[n][r] += held[t].at[r][p * kPack + i] * value;
                }
              }
            }
            return own;
          },
          Add());
      b.threads([&](int t, Shared& s) {
        products[t].scale(scale, softcap);
        UNROLL for (int r = 0; r < kRows; ++r) {
          float score[kKeys], row_max = state[t].row_max[r];
          UNROLL for (int n = 0; n < kKeys; ++n) {
            const auto one = look.tile(b, s, key + n * kGroups + t / kLanes, end, slots);
            const float product = products[t].at[n][r];
            score[n] = kMaskedScore<float>;
            if (!look.sees(one, 0, r, range[r])) {
            } else if constexpr (Look::kMasks) {
              score[n] = visible.masked(product, mask_row[r], one.key(0));
            } else {
              score[n] = product;
            }
            row_max = max_score(row_max, score[n]);
          }
          const float base = finite_max(row_max), correction = exponential(state[t].row_max[r] - base);
          state[t].row_max[r] = row_max;
          state[t].row_sum[r] *= correction;
          UNROLL for (int i = 0; i < kHold; ++i) acc[t].at[r][i] *= correction;
          UNROLL for (int n = 0; n < kKeys; ++n) {
            const float prob = exponential(score[n] - base);
            state[t].row_sum[r] += prob;
            UNROLL for (int p = 0; p < kPacks; ++p) {
              UNROLL for (int i = 0; i < kPack; ++i) acc[t].at[r][p * kPack + i] +=
                  prob * float(values[t].at[n][p].at[i]);
            }
          }
        }
      });
    }

    b.threads([&](int t, Shared& s) {
      Part& part = s.part[t / kLanes];
      UNROLL for (int r = 0; r < kRows; ++r) {
        UNROLL for (int i = 0; i < kHold; ++i) part.acc[r][column_of(t, i)] = acc[t].at[r][i];
        if (t % kLanes == 0) {
          part.row_max[r] = state[t].row_max[r];
          part.row_sum[r] = state[t].row_sum[r];
        }
      }
    });
    b.threads([&](int t, Shared&) {
      for (int i = t; i < kRows * kWidth; i += kThreads) {
        const int r = i / kWidth, column = i % kWidth;
        if (first_row + r >= fold.rows || column >= value_size) continue;
        int head;
        const int query = fold.query(first_row + r, head);
        const int64_t in_all = kv_head * fold.group.divisor() + head;
        const float sink = shares == 1 ? sinks.at(in_all) : kMaskedScore<float>;
        float row_max = sink, sum = 0;
        for (int g = 0; g < kGroups; ++g) row_max = max_score(row_max, s.part[g].row_max[r]);
        const float base = finite_max(row_max);
        float row_sum = exponential(sink - base);
        for (int g = 0; g < kGroups; ++g) {
          const float correction = exponential(s.part[g].row_max[r] - base);
          sum += s.part[g].acc[r][column] * correction;
          row_sum += s.part[g].row_sum[r] * correction;
        }
        if (shares == 1) {
          y.at(batch, in_all, query)[column] = T(normalised(sum, row_sum));
          continue;
        }
        const int64_t row = ((batch * heads + in_all) * visible.queries + query) * shares + share;
        partial.acc[row * value_size + column] = sum;
        if (column == 0) {
          partial.row_max[row] = row_max;
          partial.row_sum[row] = row_sum;
        }
      }
    });
  }

 private:
  // Which column of a row a thread's value `i` is: packs of neighbouring threads are neighbours.
  DEVICE_FN static int column_of(int t, int i) { return (i / kPack * kLanes + t % kLanes) * kPack + i % kPack; }
  DEVICE_FN static Pack<T, kPack> load(const T* row, int column, int size, bool there, bool aligned) {
    if (!there || column >= size) return Pack<T, kPack>{};
    const int left = size - column;
    Pack<T, kPack> pack = device::load_pack<kPack>(row + column, aligned, left < kPack ? left : kPack);
    if (left < kPack) {
      UNROLL for (int i = 0; i < kPack; ++i) {
        if (i >= left) pack.at[i] = T(0.f);
      }
    }
    return pack;
  }
};

template <class T, int kLanes, int kRows, int kHold = 8, class Look>
void launch_decode(Context& context, const Attend& p, Look look) {
  using Kernel = AttendDecode<T, kLanes, kRows, Look, kHold>;
  const FoldedRows fold(p);
  const int row_parts = (fold.rows + kRows - 1) / kRows;
  const int64_t heads = checked_product(checked_product(p.batch, p.kv_heads), row_parts);
  Attend looked = p;
  looked.keys = look.keys();
  const SplitPartials partial = make_partials(context, p, splits_for(context, looked, heads, 4, 8 * Kernel::kGroups));
  constexpr int kPack = Kernel::kPack;
  const int64_t bytes = look.place(0, partial.shares);
  device::block_kernel<typename Kernel::Shared>(
      context.stream(), {checked_product(heads, partial.shares), Kernel::kThreads, bytes},
      Kernel{VisibleKeysView<T>(p, context.fault()), fold, p.q, look, p.y, SinkView<T>(p), int(p.heads),
             int(p.head_size), int(p.value_size), float(p.scale), float(p.softcap),
             look.template fits<kPack>() && packs_fit<kPack, T>(p.k, p.head_size),
             look.template fits<kPack>() && packs_fit<kPack, T>(p.v, p.value_size), partial,
             SmallDivider(partial.shares), SmallDivider(row_parts), SmallDivider(int(p.kv_heads))});
  combine_splits(context, p, partial);
}

template <class T, int kLanes, class Look>
void launch_decode(Context& context, const Attend& p, const Look& look) {
  if constexpr (Look::kOneRow) {
    if (p.queries * (p.heads / p.kv_heads) == 1) return launch_decode<T, kLanes, 1>(context, p, look);
  }
  launch_decode<T, kLanes, 4>(context, p, look);
}

template <class T, class Look>
void launch_decode(Context& context, const Attend& p, const Look& look) {
  const int64_t size = std::max(p.head_size, p.value_size);
  if (size <= 64)
    launch_decode<T, 8>(context, p, look);
  else if (size <= 128)
    launch_decode<T, 16>(context, p, look);
  else
    launch_decode<T, 32>(context, p, look);
}

}  // namespace encore::ops
