// What goes before and after: where the global tokens are, and what blocks have left of their queries.
#include "ops/attention/longformer/longformer_attention.h"

#include "device/divide.h"
#include "device/launch.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Divider;
using device::NoShared;
using device::PerThread;

// A block for each batch.
struct FindTokens {
  static constexpr int kThreads = 512, kMaxThreads = kThreads, kFlags = 8;  // that a thread has at once
  const int32_t* flags;
  int32_t *rows, *counts;
  int length;
  bool aligned;
  device::FaultRef fault;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    const int32_t* const from = flags + b.index() * length;
    int32_t* const to = rows + b.index() * length;
    PerThread<int, kThreads> before;
    PerThread<unsigned, kThreads> found;
    int count = 0;
    for (int first = 0; first < length; first += kThreads * kFlags) {
      b.threads([&](int t, NoShared&) { found[t] = found_from(from, first + t * kFlags); });
      const int more = b.scan(
          before, 0,
          [&](int t) {
            int sum = 0;
            UNROLL for (int i = 0; i < kFlags; ++i) sum += int(found[t] >> i & 1);
            return sum;
          },
          [](int a, int c) { return a + c; });
      b.threads([&](int t, NoShared&) {
        int at = count + before[t];
        UNROLL for (int i = 0; i < kFlags; ++i) {
          if (found[t] >> i & 1) to[at++] = first + t * kFlags + i;
        }
      });
      count += more;
    }
    b.threads([&](int t, NoShared&) {
      if (t == 0) counts[b.index()] = count;
    });
  }

 private:
  // A bit for each of the flags.
  DEVICE_FN unsigned found_from(const int32_t* from, int first) const {
    unsigned bits = 0;
    UNROLL for (int half = 0; half < kFlags; half += 4) {
      const int left = length - first - half;
      if (left <= 0) break;
      const auto four = device::load_pack<4>(from + first + half, aligned, left < 4 ? left : 4);
      UNROLL for (int i = 0; i < 4; ++i) {
        if (i >= left || four.at[i] == 0) continue;
        if (four.at[i] != 1) fault.report(device::FaultKind::bad_value, four.at[i], 1);
        bits |= 1u << (half + i);
      }
    }
    return bits;
  }
};

// The first global queries' results from their shares; an index is a value of one of them.
template <class T, int kQueries>
struct CombineLongformer {
  LongformerView<T, kQueries> view;
  HeadView<T> y;
  Divider by_size;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t column;
    const int64_t one = by_size(i, column);
    const int query = int(one % kQueries), place = int(one / kQueries);
    const int batch = place / view.heads, head = place % view.heads;
    if (query >= view.tokens.counts[batch]) return;
    const int row = view.token(batch, query);
    if (view.is_padding(batch, row)) return;
    const LongformerSplits& partial = view.partial;
    const int64_t from = one * partial.shares, size = by_size.divisor();
    float row_max = kMaskedScore<float>;
    for (int n = 0; n < partial.shares; ++n) row_max = max_score(row_max, partial.row_max[from + n]);
    const float base = finite_max(row_max);
    float sum = 0, row_sum = 0;
    for (int n = 0; n < partial.shares; ++n) {
      if (partial.row_sum[from + n] == 0) continue;
      const float factor = exponential(partial.row_max[from + n] - base);
      row_sum += partial.row_sum[from + n] * factor;
      sum += partial.acc[(from + n) * size + column] * factor;
    }
    y.at(batch, head, row)[column] = T(row_sum == 0 ? 0.f : sum / row_sum);
  }
};

template <class T, int kQueries>
void combine(Context& context, const LongformerProblem& p, const GlobalTokens& tokens,
             const LongformerSplits& partial) {
  const int64_t count = checked_product(checked_product(p.batch, p.heads) * kQueries, p.size);
  device::for_each_index(
      context.stream(), count,
      CombineLongformer<T, kQueries>{LongformerView<T, kQueries>(p, tokens, partial), p.y, Divider(p.size, count)});
}

GlobalTokens find_tokens(Context& context, const LongformerProblem& p) {
  const auto ints = [&](int64_t count) {
    return static_cast<int32_t*>(context.scratch(size_t(checked_product(count, sizeof(int32_t)))));
  };
  int32_t *const rows = ints(checked_product(p.batch, p.rows)), *const counts = ints(p.batch);
  device::block_kernel<NoShared>(context.stream(), {p.batch, FindTokens::kThreads},
                                 FindTokens{p.flags, rows, counts, int(p.rows),
                                            p.rows % 4 == 0 && device::is_pack_aligned<4>(p.flags), context.fault()});
  return {rows, counts};
}

// As many as make a share about as long as what other queries see.
LongformerSplits make_shares(Context& context, const LongformerProblem& p, int64_t queries) {
  constexpr int64_t kFewestKeys = 256, kMost = 16;
  LongformerSplits partial;
  const int64_t keys = std::max(2 * p.window + queries, kFewestKeys);
  partial.shares = int(std::clamp<int64_t>(p.rows / keys, 1, kMost));
  if (partial.shares == 1) return partial;
  const int64_t count = checked_product(checked_product(p.batch, p.heads), queries * partial.shares);
  const auto floats = [&](int64_t wanted) {
    return static_cast<float*>(context.scratch(size_t(checked_product(wanted, sizeof(float)))));
  };
  partial.acc = floats(checked_product(count, p.size));
  partial.row_max = floats(count);
  partial.row_sum = floats(count);
  return partial;
}

}  // namespace

void longformer_attention(Context& context, const LongformerProblem& p) {
  constexpr int64_t kMostSize = 256;
  require(p.rows < kSizeCap && checked_product(p.batch, p.heads) < kIntCap, "attention of ", p.rows, " rows in ",
          p.batch, " batches is more than there are kernels for");
  require(p.size <= kMostSize, "heads of ", p.size, " values are larger than the ", kMostSize,
          " that there are kernels for");
  if (p.batch == 0 || p.rows == 0 || p.heads == 0 || p.size == 0) return;
  const GlobalTokens tokens = find_tokens(context, p);
  dispatch(TypeList<float, Half>{}, p.type, [&]<class T> {
    const auto run = [&]<int kQueries>(auto way) {
      const LongformerSplits partial = make_shares(context, p, kQueries);
      way(context, p, tokens, partial);
      if (partial.shares > 1) combine<T, kQueries>(context, p, tokens, partial);
    };
    if (fits_longformer_group(p)) return run.template operator()<kLongformerGroup>(longformer_group);
    run.template operator()<kLongformerTile>(longformer_tiles);
  });
}

}  // namespace encore::ops
