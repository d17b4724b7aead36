// Which keys an attention is to look at: new keys are put together by `ratio` to entries, and of the entries that a
// query may see those with the highest scores are chosen. What SparseAttentionIndexer does for batches of the same
// shape, and PackedSparseAttentionIndexer for requests of any lengths.
#pragma once
#include "device/divide.h"
#include "device/fault.h"
#include "ops/op.h"

namespace encore::ops {

// One request, or batch: where its new tokens are, and what it has had so far.
struct Request {
  int first, tokens, past;  // of its tokens
  int entries, buffered;    // before the new ones; tokens that are in no entry yet, and of windows the last one's
  int overlap;              // of those, the tokens of the last window
  int made;                 // entries that are new
  int left, left_from;      // which of the buffered tokens and the new ones stay in the buffer
  bool full;                // there is no room for the new entries: nothing changes, and nothing is chosen
};

// All of them. Numbers are those of the one that all are like, or from the device.
struct Requests {
  const int32_t* starts = nullptr;   // [requests + 1], in tokens; null: all are like one
  const int32_t* past = nullptr;     // [requests]
  const int32_t* lengths = nullptr;  // [requests, 2]: entries and buffered tokens
  int count = 0, tokens = 0;         // of requests; of new tokens in all
  int each = 0;                      // tokens of each, where all are alike
  int past_tokens = 0, entries = 0, buffered = 0;
  int ratio = 1, capacity = 0;
  bool windows = false;  // entries are made of overlapping windows, else of blocks

  DEVICE_FN int of_token(int token) const {
    if (!starts) return token / each;
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = low + (high - low + 1) / 2;
      if (starts[middle] <= token)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
  BOTH_FN Request at(int i) const {
    Request r;
    r.first = i * each, r.tokens = each, r.past = past_tokens, r.entries = entries, r.buffered = buffered;
    if (starts) {
      r.first = within(starts[i], 0, tokens);
      r.tokens = within(starts[i + 1], r.first, tokens) - r.first;
      r.past = within(past[i], 0, kMost - tokens);
      r.entries = within(lengths[2 * i], 0, capacity);
      r.buffered = within(lengths[2 * i + 1], 0, (windows ? 2 * ratio : ratio) - 1);
    }
    r.overlap = windows && r.buffered >= ratio ? ratio : 0;
    const int pending = r.buffered - r.overlap + r.tokens;
    r.made = pending / ratio;
    r.left = r.overlap + pending, r.left_from = 0;
    if (r.made > 0) {
      r.left_from = r.overlap + (r.made - (windows ? 1 : 0)) * ratio;
      r.left = (windows ? ratio : 0) + pending % ratio;
    }
    r.full = r.entries + r.made > capacity;
    if (r.full) r.made = 0, r.left = r.buffered, r.left_from = 0;
    return r;
  }
  // Says what numbers are out of range.
  DEVICE_FN void check(int i, device::FaultRef fault) const {
    if (!starts) return;
    const Request r = at(i);
    told(starts[i], r.first, fault);
    told(starts[i + 1], i + 1 == count ? tokens : r.first + r.tokens, fault);
    told(past[i], r.past, fault);
    told(lengths[2 * i], r.entries, fault);
    told(lengths[2 * i + 1], r.buffered, fault);
  }

 private:
  static constexpr int kMost = 1 << 30;
  BOTH_FN static int within(int value, int low, int high) { return value < low ? low : value > high ? high : value; }
  DEVICE_FN static void told(int value, int used, device::FaultRef fault) {
    if (value != used) fault.report(device::FaultKind::bad_value, value, used);
  }
};

// Cosines and sines of positions; positions beyond the table are its last one, as the operators are documented.
struct Angles {
  const void *cos = nullptr, *sin = nullptr;  // [positions, width], or [request, positions, width]
  int positions = 0, width = 0;
  bool of_request = false;
};

// Buffered tokens, then new ones: [request, buffer, width] and [token, ...].
struct Pending {
  const void *buffer = nullptr, *fresh = nullptr;
  int buffer_rows = 0, width = 0;
  int64_t fresh_token = 0;  // from one to the next
};

template <class T>
struct PendingView {
  const T *buffer, *fresh;
  int rows, width;
  int64_t token;
  PendingView(const Pending& p)
      : buffer(static_cast<const T*>(p.buffer)),
        fresh(static_cast<const T*>(p.fresh)),
        rows(p.buffer_rows),
        width(p.width),
        token(p.fresh_token) {}
  // Of the request's buffered tokens and the new ones.
  DEVICE_FN const T* at(int request, const Request& r, int i) const {
    if (i < r.buffered) return buffer + (int64_t(request) * rows + i) * width;
    return fresh + int64_t(r.first + i - r.buffered) * token;
  }
};

struct Indexing {
  Type type = Type::f32;
  Requests requests;
  int heads = 0, size = 0, wanted = 0;  // entries for each query
  float epsilon = 0, scale = 1;         // of scores
  const void* query = nullptr;          // [token, head, size], and from one to the next
  int64_t query_token = 0;
  const void *query_weights = nullptr, *key_weights = nullptr;  // [size]
  Angles angles;
  Pending keys, gates;  // the latter of windows
  // Of windows.
  const void* gate_bias = nullptr;        // [ratio, 2 size]
  const void* head_weights = nullptr;     // [token, head]
  const int64_t* position_ids = nullptr;  // [token]
  // Raw keys of blocks, where entries are not kept: [request, raw_rows, size], with the new ones. The mask [request,
  // past and new tokens] says which of them there are; null: all.
  const void* raw_keys = nullptr;
  int64_t raw_rows = 0;
  const int64_t* mask = nullptr;

  void* entries = nullptr;    // [request, capacity, size] in the type, to which new ones are added; null with raw keys
  int32_t* chosen = nullptr;  // [token, width]
  int width = 0;
  int32_t* counts = nullptr;  // [token], or null
};

// Makes new entries and chooses. Entries of the past are there already.
void index_keys(Context& context, const Indexing& indexing);

// Steps of it. Of each query, on the device: how many tokens and entries it sees.
struct VisibleCounts {
  int32_t *tokens = nullptr, *entries = nullptr;
  int32_t* list = nullptr;  // [request, past and new tokens]: which tokens there are, with a mask
  int listed = 0;           // tokens of a request
};
VisibleCounts count_visible(Context& context, const Indexing& indexing);
// The entries that are new go behind the others in `indexing.entries`; or those of raw keys to [request, most, size] in
// float.
void make_entries(Context& context, const Indexing& indexing, const VisibleCounts& seen, float* of_raw, int64_t most);
// Queries of `tokens` tokens, in float: [token, head, size].
void rotate_queries(Context& context, const Indexing& indexing, int64_t first, int64_t tokens, float* rotated);

// What new tokens did to a request's blocks, for the first few of each: [request, slots, size], a token's key or the
// entry that it completed; zeros where there is none.
struct Updates {
  const int32_t* wanted = nullptr;  // [request]
  const int32_t* active = nullptr;  // one number, zero for none at all; or null
  void* to = nullptr;
  int slots = 0;
};
void capture_updates(Context& context, const Indexing& indexing, const Updates& updates);
// [request, 2]: entries and buffered tokens after the new ones; where the old ones are, too.
void write_lengths(Context& context, const Requests& requests, int32_t* lengths);

// Rows of the buffers that stay, in [request, rows, width]; where the old buffer has such rows, what is behind them
// stays as it was.
void keep_pending(Context& context, Type type, const Requests& requests, const Pending& pending, void* to, int rows);

}  // namespace encore::ops
