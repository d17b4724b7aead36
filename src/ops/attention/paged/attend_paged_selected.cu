// Attention in which every token has a list of keys of its own, besides those in a window before it.
#include "ops/attention/paged/paged_cache_view.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

// A tile has heads of one token. Its keys are numbers in its list: first those of the window, then the selected ones.
template <class T, class Stored, int kMost>
struct SelectedRows : KeysAsSlots {
  static constexpr bool kHoles = true, kFindsNone = false;
  using Cache = CacheView<T, Stored>;
  using Raw = Words;
  struct Tile {
    int token, kv_head, first_head, rows, sequence, position, length, window, in_window, keys;
  };
  struct Walk {};
  struct Row {
    const Stored* cached;
    const T* given;       // or, of the rows in place of the pages'
    const float* scales;  // of what is cached
    bool by_channel;
  };

  SequenceView sequences;
  SlotView places;
  Cache cache;
  TokenRows<T> tokens;
  int group, parts, before;
  bool causal;
  const float *key_scales, *value_scales;
  bool keys_by_channel, values_by_channel;
  SelectedKeys selected;

  template <class B>
  DEVICE_FN Tile find(B& b, int part) const {
    const int kv_head = part % cache.kv_heads, in_token = part / cache.kv_heads % parts;
    const int token = part / cache.kv_heads / parts, first_head = in_token * kMost;
    const int sequence = b.reduce(
        -1,
        [&](int t) {
          int own = -1;
          for (int i = t; i < sequences.count; i += b.size()) {
            if (sequences.start(i) <= token && token < sequences.start(i + 1)) own = i;
          }
          return own;
        },
        [](int a, int c) { return a > c ? a : c; });
    const int rows = group - first_head < kMost ? group - first_head : kMost;
    Tile tile{token, kv_head, first_head, rows, sequence, 0, 0, 0, 0, 0};
    if (sequence < 0) return tile;
    const int start = sequences.start(sequence);
    tile.length = sequences.length(sequence, sequences.end(sequence) - start, places.room);
    const int64_t position = int64_t(sequences.past(sequence)) + token - start;
    tile.position = position < places.room ? int(position) : places.room;
    if (selected.local) {
      tile.window = before < 0 || tile.position < before ? 0 : tile.position - before;
      const int end = causal && tile.position < tile.length ? tile.position + 1 : tile.length;
      tile.in_window = end > tile.window ? end - tile.window : 0;
    }
    const int64_t count = selected.counts[token];
    tile.keys = tile.in_window + int(count < 0 ? 0 : count < selected.most ? count : selected.most);
    return tile;
  }
  DEVICE_FN static KeyRange range(const Tile& tile, int) { return {0, tile.keys}; }
  template <bool kValues, class B, class S>
  DEVICE_FN static Walk walk(const B&, const S&, const Tile&, int, int, const Slots&) {
    return {};
  }
  DEVICE_FN Row key_row(const Tile& tile, Walk, int key, int, bool there) const {
    return row(tile, key, there, cache.keys, selected.keys, key_scales, keys_by_channel);
  }
  DEVICE_FN Row value_row(const Tile& tile, Walk, int key, int, bool there) const {
    return row(tile, key, there, cache.values, selected.values, value_scales, values_by_channel);
  }
  DEVICE_FN static bool there(const Row& row) { return row.cached || row.given; }
  DEVICE_FN Raw load(const Row& row, int column) const {
    if (row.given) return device::words_of(device::load_pack<8>(row.given + column, true));
    const Words words = Cache::words(Cache::load(row.cached, column));
    if constexpr (sizeof(Stored) > 1) return words;
    auto values = device::pack_of<T>(words);
    UNROLL for (int i = 0; i < 8; ++i) values.at[i] =
        T(float(values.at[i]) * row.scales[row.by_channel ? column + i : 0]);
    return device::words_of(values);
  }
  DEVICE_FN static const Words& words(const Raw& raw) { return raw; }

  DEVICE_FN Words q(const Tile& tile, int row, int column) const {
    return device::words_of(tokens.load(tile.token, int(head(tile, row)), column));
  }
  DEVICE_FN T* y(const Tile& tile, int row) const { return tokens.y + partial_row(tile, row) * cache.size; }
  DEVICE_FN int64_t head(const Tile& tile, int row) const { return tile.kv_head * group + tile.first_head + row; }
  DEVICE_FN int64_t partial_row(const Tile& tile, int row) const {
    return tokens.row(tile.token, int(head(tile, row)));
  }
  DEVICE_FN static float score_scale(float scale) { return scale; }
  DEVICE_FN static float finished(const Tile&, float value, int) { return value; }
  DEVICE_FN static bool has_mask() { return false; }
  DEVICE_FN static int64_t mask_row(const Tile&, int) { return 0; }
  DEVICE_FN static float masked(float score, int64_t, int) { return score; }

 private:
  DEVICE_FN Row row(const Tile& tile, int key, bool there, const Stored* cached, const void* given, const float* scales,
                    bool by_channel) const {
    Row row{nullptr, nullptr, by_channel ? scales + tile.kv_head * cache.size : scales, by_channel};
    if (!there) return row;
    int at = tile.window + key;
    if (key >= tile.in_window) {
      at = selected.indices[tile.token * selected.most + key - tile.in_window];
      if (at < 0) return row;
      if (given) {
        if (at >= selected.lengths[tile.sequence] || at >= selected.capacity) return row;
        const int64_t head = selected.kv_heads == 1 ? 0 : tile.kv_head;
        row.given = static_cast<const T*>(given) +
                    ((tile.sequence * selected.capacity + at) * selected.kv_heads + head) * cache.size;
        return row;
      }
      const bool in_window = at >= tile.window && at < tile.window + tile.in_window;
      if (at >= tile.length || (causal && at > tile.position) || in_window) return row;
    }
    const int64_t slot = places.slot(tile.sequence, at);
    if (slot >= 0) row.cached = cached + cache.offset(slot, tile.kv_head);
    return row;
  }
};

template <class T, class Stored, int kChunks>
void run(Context& context, const AttendPaged& p, const SelectedKeys& selected) {
  using Rows = SelectedRows<T, Stored, 8>;
  using Kernel = AttendGroupedDecode<T, kChunks, 1, Rows>;
  const PagedCache& pages = p.pages;
  const int64_t group = p.heads / pages.kv_heads, parts = (group + Kernel::kRows - 1) / Kernel::kRows;
  const int64_t blocks = checked_product(checked_product(p.sequences.tokens, parts), pages.kv_heads);
  const int64_t window = p.before < 0 ? p.most_keys : std::min(p.before + 1, p.most_keys);
  const Attend rest = rest_of(p, (selected.local ? window : 0) + selected.most);
  const int64_t shares = splits_for(context, rest, blocks, Kernel::kRoom, 2 * Kernel::kWarps * Kernel::kKeys);
  const Rows source{{},
                    p.sequences,
                    SlotView(pages, context.fault()),
                    typename Rows::Cache(pages),
                    TokenRows<T>(p),
                    int(group),
                    int(parts),
                    int(p.before < 0 ? -1 : std::min(p.before, pages.width * pages.slots)),
                    p.causal,
                    pages.key_scales,
                    pages.value_scales,
                    pages.keys_by_channel,
                    pages.values_by_channel,
                    selected};
  launch_grouped_decode<T, kChunks, 1>(context, rest, source, blocks, make_partials(context, rest, shares));
}

}  // namespace

void attend_paged_selected(Context& context, const AttendPaged& p, const SelectedKeys& selected) {
  dispatch(TypeList<Half, BFloat16>{}, p.type, [&]<class T> {
    const auto run_sizes = [&]<class Stored> {
      if (p.pages.size <= 64)
        run<T, Stored, 2>(context, p, selected);
      else if (p.pages.size <= 128)
        run<T, Stored, 4>(context, p, selected);
      else
        run<T, Stored, 8>(context, p, selected);
    };
    p.pages.type == p.type ? run_sizes.template operator()<T>() : run_sizes.template operator()<int8_t>();
  });
}

}  // namespace encore::ops
