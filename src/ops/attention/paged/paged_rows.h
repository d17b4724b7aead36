// Attention of sequences without padding to keys in pages. Launches are sized by the tokens, so that one captured graph
// serves all lengths.
//
// A block takes some rows, a token's heads neighbours, of one sequence. Of sequences of any lengths that are `rows` in
// all, number i begins no later than block rows / kMost + i: there blocks look for theirs.
#pragma once
#include <algorithm>

#include "ops/attention/paged/paged_cache_view.h"

namespace encore::ops {

template <class T, class Stored, int kMost>
struct PagedRows : KeysAsSlots {
  static constexpr bool kHoles = true, kFindsNone = true;
  using Cache = CacheView<T, Stored>;
  using Raw = typename Cache::Raw;
  using Row = const Stored*;
  struct Tile {
    int kv_head, sequence, start, first_row, rows, past, length;
  };
  struct Walk {
    int64_t slot;
  };

  SequenceView sequences;
  SlotView places;
  Cache cache;
  TokenRows<T> tokens;
  device::SmallDivider group;
  int before;
  bool causal, whole;  // whole: a tile of keys is in one page
  const float *key_scale, *key_scales, *value_scale, *value_scales;

  template <class B>
  DEVICE_FN Tile find(B& b, int part) const {
    const int kv_head = part % cache.kv_heads, block = part / cache.kv_heads;
    const int sequence = b.reduce(
        0,
        [&](int t) {
          int last = 0;
          for (int i = t; i <= sequences.count; i += b.size()) {
            if (first_block(i) <= block) last = i;
          }
          return last;
        },
        [](int a, int c) { return a > c ? a : c; });
    const int start = sequences.start(sequence), own = sequences.end(sequence) - start;
    const int first_row = (block - first_block(sequence)) * kMost, left = own * group.divisor() - first_row;
    return {kv_head,
            sequence,
            start,
            first_row,
            left < kMost ? left : kMost,
            sequences.past(sequence),
            sequences.length(sequence, own, places.room)};
  }
  DEVICE_FN KeyRange range(const Tile& tile, int row) const {
    int head;
    const int at = tile.past + query(tile, row, head);
    return {before < 0 || at < before ? 0 : at - before, causal && at < tile.length ? at + 1 : tile.length};
  }
  // What is read before a window is in the page of its first key.
  template <class B, class S>
  DEVICE_FN Slots slots(B&, const S&, const Tile&, int first, int end) const {
    return {whole ? first / 16 * 16 : first, end, end, first};
  }
  template <bool kValues, class B, class S>
  DEVICE_FN Walk walk(const B&, const S&, const Tile& tile, int key, int end, const Slots&) const {
    return {whole && key < end ? places.template slot<!kValues>(tile.sequence, key) : -1};
  }
  DEVICE_FN Row key_row(const Tile& tile, Walk walk, int key, int in_tile, bool there) const {
    return row<true>(cache.keys, tile, walk, key, in_tile, there);
  }
  DEVICE_FN Row value_row(const Tile& tile, Walk walk, int key, int in_tile, bool there) const {
    return row<false>(cache.values, tile, walk, key, in_tile, there);
  }
  DEVICE_FN static bool there(Row row) { return row != nullptr; }
  DEVICE_FN static Raw load(Row row, int column) { return Cache::load(row, column); }
  DEVICE_FN static Words words(const Raw& raw) { return Cache::words(raw); }

  DEVICE_FN Words q(const Tile& tile, int row, int column) const {
    int in_group;
    const int at = query(tile, row, in_group);
    auto values = tokens.load(tile.start + at, head_of(tile, in_group), column);
    if (key_scales) {
      const float* const scales = key_scales + tile.kv_head * cache.size + column;
      UNROLL for (int i = 0; i < 8; ++i) values.at[i] = T(float(values.at[i]) * scales[i]);
    }
    return device::words_of(values);
  }
  DEVICE_FN T* y(const Tile& tile, int row) const { return tokens.y + partial_row(tile, row) * cache.size; }
  DEVICE_FN int64_t head(const Tile& tile, int row) const {
    int in_group;
    query(tile, row, in_group);
    return head_of(tile, in_group);
  }
  DEVICE_FN int64_t partial_row(const Tile& tile, int row) const {
    int in_group;
    const int at = query(tile, row, in_group);
    return tokens.row(tile.start + at, head_of(tile, in_group));
  }
  DEVICE_FN float score_scale(float scale) const { return key_scale ? scale * *key_scale : scale; }
  DEVICE_FN float finished(const Tile& tile, float value, int column) const {
    if (value_scales) return value * value_scales[tile.kv_head * cache.size + column];
    return value_scale ? value * *value_scale : value;
  }
  DEVICE_FN static bool has_mask() { return false; }
  DEVICE_FN static int64_t mask_row(const Tile&, int) { return 0; }
  DEVICE_FN static float masked(float score, int64_t, int) { return score; }

 private:
  DEVICE_FN int first_block(int sequence) const {
    return sequences.start(sequence) * group.divisor() / kMost + sequence;
  }
  DEVICE_FN int query(const Tile& tile, int row, int& in_group) const { return group(tile.first_row + row, in_group); }
  DEVICE_FN int head_of(const Tile& tile, int in_group) const { return tile.kv_head * group.divisor() + in_group; }
  template <bool kReports>
  DEVICE_FN Row row(Row all, const Tile& tile, Walk walk, int key, int in_tile, bool there) const {
    int64_t slot = -1;
    if (whole)
      slot = walk.slot < 0 ? -1 : walk.slot + in_tile;
    else if (there)
      slot = places.template slot<kReports>(tile.sequence, key);
    return slot < 0 ? nullptr : all + cache.offset(slot, tile.kv_head);
  }
};

template <class T, class Stored, int kChunks, int kTiles>
void run_paged(Context& context, const AttendPaged& p) {
  using Rows = PagedRows<T, Stored, 8 * kTiles>;
  using Kernel = AttendGroupedDecode<T, kChunks, kTiles, Rows>;
  const PagedCache& pages = p.pages;
  const PackedSequences& sequences = p.sequences;
  const int64_t group = p.heads / pages.kv_heads, rows = sequences.tokens * group;
  const int64_t full = rows / Kernel::kRows;  // blocks, and those that are not full or have no rows
  const int64_t blocks = checked_product(full + sequences.count + 1, pages.kv_heads);
  const int64_t busy = checked_product(full + std::min(sequences.count, sequences.tokens), pages.kv_heads);
  const Attend rest = rest_of(p, p.most_keys);
  const int64_t shares =
      std::min(splits_for(context, rest, std::max<int64_t>(busy, 1), Kernel::kRoom, 2 * Kernel::kWarps * Kernel::kKeys),
               kIntCap / blocks);
  const Rows source{{},
                    sequences,
                    SlotView(pages, context.fault()),
                    typename Rows::Cache(pages),
                    TokenRows<T>(p),
                    device::SmallDivider(int(group)),
                    int(p.before < 0 ? -1 : std::min(p.before, pages.width * pages.slots)),
                    p.causal,
                    pages.slots % Kernel::kKeys == 0,
                    pages.keys_by_channel ? nullptr : pages.key_scales,
                    pages.keys_by_channel ? pages.key_scales : nullptr,
                    pages.values_by_channel ? nullptr : pages.value_scales,
                    pages.values_by_channel ? pages.value_scales : nullptr};
  launch_grouped_decode<T, kChunks, kTiles>(context, rest, source, blocks, make_partials(context, rest, shares));
}

template <class T, class Stored>
void run_paged_sizes(Context& context, const AttendPaged& p) {
  const bool few = p.most_queries * (p.heads / p.pages.kv_heads) <= 8;
  if (p.pages.size <= 64)
    few ? run_paged<T, Stored, 2, 1>(context, p) : run_paged<T, Stored, 2, 4>(context, p);
  else if (p.pages.size <= 128)
    few ? run_paged<T, Stored, 4, 1>(context, p) : run_paged<T, Stored, 4, 4>(context, p);
  else
    run_paged<T, Stored, 8, 1>(context, p);
}

}  // namespace encore::ops
