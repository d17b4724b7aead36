// Attention of long sequences, as Longformer has it: a query sees the keys of a window around it, and those of global
// tokens wherever they are; a global token's query sees all keys, and has projections of its own for that.
#pragma once
#include <algorithm>

#include "ops/attention/dense/attend_view.h"

namespace encore::ops {

// All [batch, head, row, size] by the same strides.
struct LongformerHeads {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
};

struct LongformerProblem {
  Type type = Type::f32;
  int64_t batch = 0, heads = 0, rows = 0, size = 0;
  int64_t window = 0;  // how far a query sees to either side
  LongformerHeads local, global;
  int64_t batch_step = 0, head_step = 0, row_step = 0;  // of these, in elements
  HeadRows y;                                           // written
  const void* mask = nullptr;                           // [batch, row] in the type: what is added to scores of a key
  const int32_t* flags = nullptr;                       // [batch, row]: 1 for a global token, else 0
  double scale = 1;
};

// A query whose own mask is below zero gets zeros. Nothing depends on the host's knowing which tokens are global.
void longformer_attention(Context& context, const LongformerProblem& problem);

// Global tokens of each batch in their order, on the device.
struct GlobalTokens {
  const int32_t *rows, *counts;  // [batch, row], [batch]
};

// What blocks that share out the keys of the first global queries leave, [batch, head, query, share] and value.
struct LongformerSplits {
  float *acc = nullptr, *row_max = nullptr, *row_sum = nullptr;
  int shares = 1;
};

// What a block does at a time: a tile of queries with the keys that they see.
struct LongformerTile {
  bool global = false;
  int first = 0, queries = 0;      // rows, or places among the global tokens
  int first_key = 0, end_key = 0;  // neighbours
  int listed = 0;                  // global tokens whose keys come after these
  unsigned span = 0;               // of neighbours that a query sees, less one
  int base = 0;                    // where they begin for the first query
  int share = 0;                   // of those that share out its keys

  // Whether the query sees the key. Listed keys come to those that have not seen them among their neighbours.
  DEVICE_FN bool sees(int query, int key, bool of_list) const {
    return (unsigned(key) - unsigned(base + query) <= span) != of_list;
  }
};

// Where a head's first rows are.
template <class T>
struct LongformerRows {
  const T *q, *k, *v;
};

// For each head there are blocks that share out the keys of the first kQueries global queries, and then one for every
// kQueries rows: it has the queries of these rows, and afterwards as many further global ones, if there are.
template <class T, int kQueries>
struct LongformerView {
  const T* mask;
  const int32_t* flags;
  GlobalTokens tokens;
  LongformerHeads local, global;
  int64_t batch_step, head_step, row_step;
  int heads, rows, window, places;
  LongformerSplits partial;

  LongformerView(const LongformerProblem& p, const GlobalTokens& tokens, const LongformerSplits& partial)
      : mask(static_cast<const T*>(p.mask)),
        flags(p.flags),
        tokens(tokens),
        local(p.local),
        global(p.global),
        batch_step(p.batch_step),
        head_step(p.head_step),
        row_step(p.row_step),
        heads(int(p.heads)),
        rows(int(p.rows)),
        window(int(p.window)),
        places(int(p.batch * p.heads)),
        partial(partial) {}
  int64_t blocks() const { return checked_product(places, partial.shares + (rows + kQueries - 1) / kQueries); }

  // How many tiles the block has, and where.
  DEVICE_FN int tiles(int64_t block, int& batch, int& head) const {
    const int place = int(block % places), slot = int(block / places);
    batch = place / heads, head = place % heads;
    return slot < partial.shares ? 1 : 2;
  }
  // The n-th of them; one without queries is to be left out.
  DEVICE_FN LongformerTile tile(int64_t block, int batch, int n) const {
    const int slot = int(block / places), number = slot < partial.shares ? 0 : slot - partial.shares;
    const bool shared = slot < partial.shares;
    const int count = tokens.counts[batch];
    LongformerTile tile;
    tile.global = shared || n == 1;
    tile.first = number * kQueries;
    if (tile.global) {
      tile.queries = fewer(count - tile.first, !shared && number == 0 ? 0 : kQueries);
      tile.span = ~0u;
      tile.end_key = rows;
      if (!shared) return tile;
      const int own = (rows + partial.shares - 1) / partial.shares;
      tile.share = slot;
      tile.first_key = fewer(slot * own, rows);
      tile.end_key = fewer(tile.first_key + own, rows);
      return tile;
    }
    tile.queries = fewer(rows - tile.first, kQueries);
    tile.span = 2 * unsigned(window);
    tile.base = tile.first - window;
    tile.first_key = tile.base < 0 ? 0 : tile.base;
    tile.end_key = fewer(tile.first + kQueries + window, rows);
    tile.listed = count;
    return tile;
  }
  DEVICE_FN LongformerRows<T> rows_of(const LongformerTile& tile, int batch, int head) const {
    const int64_t at = batch * batch_step + head * head_step;
    const auto part = [&](const void* of_local, const void* of_global) {
      return static_cast<const T*>(tile.global ? of_global : of_local) + at;
    };
    return {part(local.q, global.q), part(local.k, global.k), part(local.v, global.v)};
  }
  DEVICE_FN int row_of(const LongformerTile& tile, int batch, int query) const {
    return tile.global ? token(batch, tile.first + query) : tile.first + query;
  }
  DEVICE_FN int token(int batch, int n) const { return tokens.rows[int64_t(batch) * rows + n]; }
  DEVICE_FN float added(int batch, int key) const { return float(mask[int64_t(batch) * rows + key]); }
  DEVICE_FN bool is_padding(int batch, int row) const { return added(batch, row) < 0; }
  // Whether the tile has the query's result: padding is no global tile's.
  DEVICE_FN bool writes(const LongformerTile& tile, int batch, int row) const {
    return is_padding(batch, row) ? !tile.global : tile.global || flags[int64_t(batch) * rows + row] == 0;
  }
  DEVICE_FN bool is_shared(const LongformerTile& tile) const {
    return tile.global && tile.first == 0 && partial.shares > 1;
  }
  // Where the shares of a query are.
  DEVICE_FN int64_t shares_of(int batch, int head, int query) const {
    return ((int64_t(batch) * heads + head) * kQueries + query) * partial.shares;
  }

 private:
  DEVICE_FN static int fewer(int a, int b) { return a < b ? a : b; }
};

// Whether rows may be read in packs of kPack.
template <int kPack, class T>
bool packs_fit(const LongformerProblem& p) {
  for (const LongformerHeads& heads : {p.local, p.global})
    for (const void* data : {heads.q, heads.k, heads.v})
      if (!packs_fit<kPack, T>(HeadRows{data, p.batch_step, p.head_step, p.row_step}, p.size)) return false;
  return true;
}

// The ways: tiles of 32 queries on tensor cores, for heads of halves whose size is a multiple of 8, and of 64 for
// others.
inline constexpr int kLongformerGroup = 32, kLongformerTile = 64;
bool fits_longformer_group(const LongformerProblem& problem);
void longformer_group(Context& context, const LongformerProblem& problem, const GlobalTokens& tokens,
                      const LongformerSplits& partial);
void longformer_tiles(Context& context, const LongformerProblem& problem, const GlobalTokens& tokens,
                      const LongformerSplits& partial);

}  // namespace encore::ops
