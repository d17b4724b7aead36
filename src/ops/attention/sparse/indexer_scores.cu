// The indexers' choice: scores of entries, each the sum over heads of a product's relu, and the top-k of them.
#include <algorithm>

#include "device/launch.h"
#include "device/transform.h"
#include "ops/attention/dense/attend_view.h"
#include "ops/attention/sparse/indexer.h"
#include "ops/dispatch.h"
#include "ops/index/topk.h"
#include "ops/shape.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Pack;

constexpr int kThreads = 256, kTile = 64, kRows = 32, kSide = 16;
constexpr int kKeys = kTile / kSide, kOwn = kRows * kSide / kThreads;  // keys and rows of a thread

// A block has some queries and 64 entries. Rows, heads of queries, come 32 at a time; where a request has few queries
// and few heads, several queries fill them.
template <class T, class K>
struct ScoreEntries {
  static constexpr int kMaxThreads = kThreads, kPack = device::pack_size<K>();
  struct Shared {
    float part[kRows][kTile + 1];
    float sums[kRows][kTile];  // of queries
  };
  struct Square {
    float at[kOwn][kKeys];
  };
  Requests requests;
  VisibleCounts seen;
  const float* rotated;  // [token, head, size], from token `first` on
  const T* head_weights;
  const K* entries;  // [request, entry_rows, size]
  int64_t entry_rows;
  float* scores;                                            // [token, columns], from token `first` on
  int first, tokens, heads, size, columns, queries, tiles;  // of a block; tiles of entries
  float scale;
  bool aligned;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const int tile = int(b.index() % tiles), from = int(b.index() / tiles) * queries;
    const int count = tokens - from < queries ? tokens - from : queries;
    const int entry = tile * kTile, widest = (size + 3) / 4 * 4, row = widest + 4;
    const int most = b.reduce(
        0, [&](int t) { return t < count ? seen.entries[first + from + t] : 0; },
        [](int a, int c) { return a > c ? a : c; });
    b.threads([&](int t, Shared& s) {
      for (int i = t; i < kRows * kTile; i += kThreads) s.sums[i / kTile][i % kTile] = 0;
    });
    if (entry < most) {
      const int low = requests.of_token(first + from), high = requests.of_token(first + from + count - 1);
      for (int request = low; request <= high; ++request) {
        b.threads([&](int t, Shared& s) { load_entries(b, s, t, request, entry, row, widest); });
        for (int base = 0; base < count * heads; base += kRows) {
          b.threads([&](int t, Shared& s) {
            float* const rows = b.template dynamic<float>(s) + kTile * row;
            for (int i = t; i < kRows * widest; i += kThreads) {
              const int r = i / widest, d = i % widest;
              rows[r * row + d] =
                  base + r < count * heads && d < size ? rotated[(int64_t(from) * heads + base + r) * size + d] : 0.f;
            }
          });
          b.threads([&](int t, Shared& s) { multiply(b, s, t, base, count, from, row, widest); });
          b.threads([&](int t, Shared& s) {
            for (int i = t; i < count * kTile; i += kThreads) {
              const int query = i / kTile, column = i % kTile;
              if (requests.of_token(first + from + query) != request) continue;
              const int begin = query * heads - base, end = begin + heads;
              float sum = 0;
              for (int r = begin > 0 ? begin : 0; r < (end < kRows ? end : kRows); ++r) sum += s.part[r][column];
              s.sums[query][column] += sum;
            }
          });
        }
      }
    }
    b.threads([&](int t, Shared& s) {
      for (int i = t; i < count * kTile; i += kThreads) {
        const int query = i / kTile, column = entry + i % kTile;
        if (column >= columns) continue;
        const bool seen_by = column < seen.entries[first + from + query];
        scores[int64_t(from + query) * columns + column] = seen_by ? s.sums[query][i % kTile] : kMaskedScore<float>;
      }
    });
  }

 private:
  DEVICE_FN void load_entries(const Block<Shared>& b, Shared& s, int t, int request, int entry, int row,
                              int widest) const {
    float* const keys = b.template dynamic<float>(s);
    const int packs = (widest + kPack - 1) / kPack;
    for (int i = t; i < kTile * packs; i += kThreads) {
      const int key = i / packs, column = i % packs * kPack, left = size - column;
      Pack<K, kPack> pack{};
      if (entry + key < columns && left > 0)
        pack = device::load_pack<kPack>(entries + (request * entry_rows + entry + key) * size + column, aligned,
                                        left < kPack ? left : kPack);
      UNROLL for (int j = 0; j < kPack; ++j) {
        if (column + j < widest)
          keys[key * row + column + j] = j < left && entry + key < columns ? float(pack.at[j]) : 0.f;
      }
    }
  }
  DEVICE_FN void multiply(const Block<Shared>& b, Shared& s, int t, int base, int count, int from, int row,
                          int widest) const {
    const float* const keys = b.template dynamic<float>(s) + t % kSide * row;
    const float* const rows = b.template dynamic<float>(s) + (kTile + t / kSide) * row;
    if (base + t / kSide >= count * heads) return;
    Square sums{};
    for (int d = 0; d < widest; d += 4) {
      Pack<float, 4> own[kOwn];
      UNROLL for (int i = 0; i < kOwn; ++i) own[i] =
          *reinterpret_cast<const Pack<float, 4>*>(rows + i * kSide * row + d);
      UNROLL for (int j = 0; j < kKeys; ++j) {
        const auto key = *reinterpret_cast<const Pack<float, 4>*>(keys + j * kSide * row + d);
        UNROLL for (int i = 0; i < kOwn; ++i) {
          UNROLL for (int c = 0; c < 4; ++c) sums.at[i][j] += own[i].at[c] * key.at[c];
        }
      }
    }
    UNROLL for (int i = 0; i < kOwn; ++i) {
      const int at = base + t / kSide + i * kSide;
      if (at >= count * heads) continue;
      float factor = scale;
      if (head_weights) factor *= float(head_weights[int64_t(first + from) * heads + at]);
      UNROLL for (int j = 0; j < kKeys; ++j) {
        const float product = sums.at[i][j];
        s.part[t / kSide + i * kSide][t % kSide + j * kSide] = factor * (product < 0 ? 0.f : product);
      }
    }
  }
};

// A token's place in the output.
struct ChooseTopk {
  Requests requests;
  VisibleCounts seen;
  const int64_t* best;  // [token, wanted], from token `first` on
  int wanted, first, width;
  int32_t *chosen, *counts;
  device::Divider by_width;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t slot;
    const int64_t at = by_width(i, slot), token = first + at;
    const int entries = seen.entries[token], taken = entries < wanted ? entries : wanted, ratio = requests.ratio;
    int one = -1, count = taken;
    if (requests.windows) {
      if (slot < taken) one = int(best[at * wanted + slot]);
    } else {
      // Tokens of the entries, and those behind the last entry that was made.
      const int all = seen.tokens[token], rest = all % ratio, of_entries = taken * ratio;
      count = of_entries + rest;
      if (slot < of_entries)
        one = int(best[at * wanted + slot / ratio]) * ratio + int(slot % ratio);
      else if (slot < count)
        one = all - rest + int(slot - of_entries);
      if (one >= 0 && seen.list) one = seen.list[int64_t(requests.of_token(int(token))) * seen.listed + one];
    }
    chosen[token * width + slot] = one;
    if (slot == 0 && counts) counts[token] = count;
  }
};

template <class T, class K>
void score(Context& context, const Indexing& p, const VisibleCounts& seen, const float* rotated, const void* entries,
           int64_t entry_rows, float* scores, int64_t first, int64_t tokens, int64_t columns) {
  using Kernel = ScoreEntries<T, K>;
  const int64_t alike = std::max<int64_t>(1, p.requests.tokens / p.requests.count);
  const int64_t queries = std::clamp<int64_t>(kRows / p.heads, 1, alike);
  const int64_t tiles = (columns + kTile - 1) / kTile, groups = (tokens + queries - 1) / queries;
  const int64_t bytes = int64_t(kTile + kRows) * ((p.size + 3) / 4 * 4 + 4) * int64_t(sizeof(float));
  const auto* const keys = static_cast<const K*>(entries);
  device::block_kernel<typename Kernel::Shared>(
      context.stream(), {checked_product(groups, tiles), kThreads, bytes},
      Kernel{p.requests, seen, rotated, static_cast<const T*>(p.head_weights), keys, entry_rows, scores, int(first),
             int(tokens), p.heads, p.size, int(columns), int(queries), int(tiles), p.scale,
             p.size % Kernel::kPack == 0 && device::is_pack_aligned<Kernel::kPack>(keys)});
}

}  // namespace

void index_keys(Context& context, const Indexing& p) {
  const Requests& requests = p.requests;
  if (requests.count == 0) return;
  const VisibleCounts seen = count_visible(context, p);
  if (requests.tokens == 0) return;  // nothing to make entries of, and no query to choose for
  const int64_t most = p.raw_keys ? (int64_t(requests.past_tokens) + requests.each) / requests.ratio
                                  : ((requests.windows ? 2 : 1) * int64_t(requests.ratio) - 1 +
                                     (requests.starts ? requests.tokens : requests.each)) /
                                        requests.ratio;
  float* of_raw = nullptr;
  if (p.raw_keys)
    of_raw = static_cast<float*>(context.scratch(size_t(
        checked_product(checked_product(requests.count, most), checked_product(p.size, int64_t(sizeof(float)))))));
  make_entries(context, p, seen, of_raw, most);
  const int64_t columns = p.raw_keys ? most : requests.capacity, wanted = std::min<int64_t>(p.wanted, columns);

  // Some tokens at a time, which bounds the memory that scores take.
  constexpr int64_t kMostBytes = int64_t(64) << 20;
  const int64_t bytes = int64_t(p.heads) * p.size * 4 + columns * 4 + wanted * 12;
  const int64_t panel = std::clamp<int64_t>(kMostBytes / bytes, 1, requests.tokens);
  const auto floats = [&](int64_t count) {
    return static_cast<float*>(context.scratch(size_t(checked_product(checked_product(panel, count), 4))));
  };
  float *const rotated = floats(int64_t(p.heads) * p.size), *const scores = floats(columns),
               *const best = floats(wanted);
  auto* const places = reinterpret_cast<int64_t*>(floats(2 * wanted));
  for (int64_t first = 0; first < requests.tokens; first += panel) {
    const int64_t tokens = std::min(panel, requests.tokens - first);
    if (wanted > 0) {
      rotate_queries(context, p, first, tokens, rotated);
      dispatch(TypeList<float, Half, BFloat16>{}, p.type, [&]<class T> {
        if (of_raw)
          score<T, float>(context, p, seen, rotated, of_raw, most, scores, first, tokens, columns);
        else
          score<T, T>(context, p, seen, rotated, p.entries, requests.capacity, scores, first, tokens, columns);
      });
      topk(context, Type::f32, true, scores, tokens, columns, wanted, best, places);
    }
    const int64_t count = tokens * p.width;
    device::for_each_index(context.stream(), count,
                           ChooseTopk{requests, seen, places, int(wanted), int(first), p.width, p.chosen, p.counts,
                                      device::Divider(p.width, count)});
  }
}

}  // namespace encore::ops
