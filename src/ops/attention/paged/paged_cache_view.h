// What kernels see of pages and of sequences without padding.
#pragma once
#include "device/byte_codes.h"
#include "device/divide_small.h"
#include "ops/attention/dense/attend_grouped_decode.h"
#include "ops/attention/kv_cache/cache_quantization.h"
#include "ops/attention/paged/paged_cache.h"

namespace encore::ops {

inline CodeKind kind_of(const PagedCache& pages) {
  switch (pages.type) {
    case Type::i8: return CodeKind::i8;
    case Type::i4: return CodeKind::i4;
    case Type::f8e4m3: return CodeKind::f8;
    default: return CodeKind::none;
  }
}

// Nothing here leaves the tokens, whatever the starts are.
struct SequenceView {
  const int32_t *starts, *pasts;
  int count, tokens;
  SequenceView(const PackedSequences& of)
      : starts(of.starts), pasts(of.pasts), count(int(of.count)), tokens(int(of.tokens)) {}

  DEVICE_FN int start(int i) const {
    const int given = starts[i];
    return given < 0 ? 0 : given > tokens ? tokens : given;
  }
  // Behind the last sequence there is one for the tokens that belong to none.
  DEVICE_FN int end(int i) const { return i < count ? start(i + 1) : tokens; }
  DEVICE_FN int past(int i) const {
    constexpr int kFar = 1 << 29;  // beyond any table, and positions behind it are counted in 32 bits
    const int given = i < count ? pasts[i] : 0;
    return given < 0 ? 0 : given > kFar ? kFar : given;
  }
  // Of `new_tokens`, in a table with room for `room` keys.
  DEVICE_FN int length(int i, int new_tokens, int room) const {
    if (i >= count) return 0;
    const int64_t all = int64_t(past(i)) + new_tokens;
    return all < room ? int(all) : room;
  }
};

struct SlotView {
  const int32_t* table;
  int width, pages, room;  // room: keys that the table of a sequence has
  device::SmallDivider by_slots;
  device::FaultRef fault;
  SlotView(const PagedCache& p, device::FaultRef fault)
      : table(p.table),
        width(int(p.width)),
        pages(int(p.count)),
        room(int(p.width * p.slots)),
        by_slots(int(p.slots)),
        fault(fault) {}

  // Of all slots that of a key in [0, room), or -1 if it has no page. Not every reader needs to report a bad one.
  template <bool kReports = true>
  DEVICE_FN int64_t slot(int sequence, int key) const {
    int in_page;
    const int at = by_slots(key, in_page);
    const int page = table[int64_t(sequence) * width + at];
    if (page >= 0 && page < pages) return int64_t(page) * by_slots.divisor() + in_page;
    if (kReports && page != -1) fault.report(device::FaultKind::index_out_of_range, page, pages);
    return -1;
  }
};

// Two codes of four bits (cache_quantization.h).
struct CodePair {
  uint8_t bits;
};

// Stored: what the caches have, values of T, codes of a byte or pairs of codes.
template <class T, class Stored>
struct CacheView {
  static constexpr int kValues = std::is_same_v<Stored, CodePair> ? 2 : 1;  // that are stored in one
  // Eight of them as they are loaded.
  using Raw = device::WordsOf<Stored, 8 / kValues>;
  const Stored *keys, *values;
  int kv_heads, size;

  explicit CacheView(const PagedCache& p)
      : keys(static_cast<const Stored*>(p.keys)),
        values(static_cast<const Stored*>(p.values)),
        kv_heads(int(p.kv_heads)),
        size(int(p.size)) {}

  DEVICE_FN int64_t offset(int64_t slot, int kv_head) const { return (slot * kv_heads + kv_head) * (size / kValues); }
  DEVICE_FN static Raw load(const Stored* row, int column) {
    return device::words_of(device::load_pack<8 / kValues>(row + column / kValues, true));
  }
  DEVICE_FN static Words words(const Raw& raw) {
    if constexpr (sizeof(Stored) > 1) {
      return raw;
    } else if constexpr (kValues == 2) {
      return device::eight_nibbles<T>(raw);
    } else if constexpr (std::is_same_v<Stored, int8_t>) {
      return device::eight_integers<T>(raw);
    } else {
      return device::eight_floats<T>(raw);
    }
  }
};

// Tokens' rows of heads.
template <class T>
struct TokenRows {
  const T* q;
  T* y;
  int64_t q_token;
  int heads, size;
  explicit TokenRows(const AttendPaged& p)
      : q(static_cast<const T*>(p.q)),
        y(static_cast<T*>(p.y)),
        q_token(p.q_token),
        heads(int(p.heads)),
        size(int(p.pages.size)) {}
  DEVICE_FN device::Pack<T, 8> load(int64_t token, int head, int column) const {
    return device::load_pack<8>(q + token * q_token + int64_t(head) * size + column, true);
  }
  DEVICE_FN int64_t row(int64_t token, int head) const { return token * heads + head; }
};

// What is left of an attention where the sources know the rest.
inline Attend rest_of(const AttendPaged& p, int64_t keys) {
  Attend rest;
  rest.type = p.type;
  rest.batch = p.sequences.tokens;
  rest.heads = p.heads, rest.kv_heads = p.pages.kv_heads;
  rest.queries = 1, rest.keys = keys;
  rest.head_size = p.pages.size, rest.value_size = p.value_size;
  rest.y = {p.y, p.heads * p.value_size, p.value_size, 0};
  rest.scale = p.scale, rest.softcap = p.softcap;
  rest.sinks = p.sinks;
  return rest;
}

}  // namespace encore::ops
