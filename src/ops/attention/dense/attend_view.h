// What kernels of attention see of a problem.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "device/divide_small.h"
#include "device/fault.h"
#include "device/guess.h"
#include "device/half.h"
#include "device/transform.h"
#include "ops/attention/dense/attend.h"

namespace encore::ops {

template <class C>
inline constexpr C kMaskedScore = -std::numeric_limits<C>::infinity();

struct KeyRange {
  int first, end;  // end may be below first
};

// Visible keys and mask, of all batches.
template <class T>
struct VisibleKeysView {
  using C = device::Compute<T>;

  const int64_t* lengths;
  const int32_t* last_keys;
  int more_keys;  // than those say
  bool from_end, boolean;
  int before, after, offset;  // before and after: below zero for no bound
  int queries, keys;
  const void* mask;
  int mask_keys;
  int64_t by_batch, by_head, by_query;
  int by_key;
  device::FaultRef fault;

  VisibleKeysView(const Attend& p, device::FaultRef fault)
      : lengths(p.visible.lengths),
        last_keys(p.visible.last_keys),
        more_keys(1 - p.visible.beyond_last),
        from_end(p.visible.from_end && p.visible.has_lengths()),
        boolean(p.mask.boolean),
        before(bound(p.visible.before, p)),
        after(bound(p.visible.after, p)),
        offset(int(p.visible.from_end ? p.keys - p.queries : p.visible.offset)),
        queries(int(p.queries)),
        keys(int(p.keys)),
        mask(p.mask.data),
        mask_keys(int(p.mask.data ? std::min(p.mask.keys, p.keys) : p.keys)),
        by_batch(p.mask.batch),
        by_head(p.mask.head),
        by_query(p.mask.query),
        by_key(int(p.mask.key)),
        fault(fault) {}

  DEVICE_FN int length(int64_t batch) const {
    const int64_t given = given_length(batch);
    if (given < 0 || given > keys) fault.report(device::FaultKind::index_out_of_range, given, keys);
    return within_keys(given);
  }
  // The same before earlier work is done, which may change it.
  DEVICE_FN int likely_length(int64_t batch) const { return within_keys(device::guessed(given_length(batch), batch)); }
  // Where the query is, if the batch has that length.
  DEVICE_FN int position(int length, int query) const { return (from_end ? length - queries : offset) + query; }
  DEVICE_FN KeyRange range(int length, int query) const {
    const int at = position(length, query);
    const int first = before < 0 || at < before ? 0 : at - before;
    int end = after < 0 || at + after + 1 > length ? length : at + after + 1;
    if (end > mask_keys) end = mask_keys;
    return {first, end};
  }
  // Where the mask's row is.
  DEVICE_FN int64_t mask_row(int64_t batch, int64_t head, int query) const {
    return batch * by_batch + head * by_head + query * by_query;
  }
  // What the mask adds to a score; there must be one.
  DEVICE_FN C added(int64_t row, int key) const {
    const int64_t i = row + int64_t(key) * by_key;
    if (boolean) return static_cast<const bool*>(mask)[i] ? C(0) : kMaskedScore<C>;
    return C(static_cast<const T*>(mask)[i]);
  }
  // The score with what the mask adds. What is masked stays so, whatever the score.
  DEVICE_FN C masked(C score, int64_t row, int key) const {
    if (!mask) return score;
    const C more = added(row, key);
    return more == kMaskedScore<C> ? more : score + more;
  }

 private:
  DEVICE_FN int64_t given_length(int64_t batch) const {
    if (!lengths && !last_keys) return keys;
    return lengths ? lengths[batch] : int64_t(last_keys[batch]) + more_keys;
  }
  DEVICE_FN int within_keys(int64_t length) const { return length < 0 ? 0 : length < keys ? int(length) : keys; }
  // No further than any key can be from any query.
  static int bound(int64_t asked, const Attend& p) {
    if (asked < 0) return -1;
    return int(std::min(asked, p.keys + p.queries));
  }
};

// e^x: C is float for all but double.
template <class C>
DEVICE_FN C exponential(C x) {
  if constexpr (sizeof(C) == 4) return std::exp2(x * C(1.4426950408889634));
  return std::exp(x);
}
// What scores are taken from before exponentials: their maximum, or any number if all are masked.
template <class C>
DEVICE_FN C finite_max(C top) {
  return top == kMaskedScore<C> ? C(0) : top;
}
// The larger of two scores. A NaN may get lost here, and not in the exponential of its score.
template <class C>
DEVICE_FN C max_score(C a, C b) {
  return a > b ? a : b;
}
template <class C>
DEVICE_FN C capped(C score, C softcap) {
  return softcap > 0 ? softcap * std::tanh(score / softcap) : score;
}

// Sinks of heads, as scores.
template <class T>
struct SinkView {
  using C = device::Compute<T>;
  const T* sinks;
  SinkView(const Attend& p) : sinks(static_cast<const T*>(p.sinks)) {}
  DEVICE_FN C at(int64_t head) const { return sinks ? C(sinks[head]) : kMaskedScore<C>; }
};

// Rows of heads that share keys, folded into one run of rows, neighbours by query: row r is of query r / group.
struct FoldedRows {
  device::SmallDivider group;
  int rows;
  FoldedRows(const Attend& p) : group(int(p.heads / p.kv_heads)), rows(int(p.queries * group.divisor())) {}
  DEVICE_FN int query(int row, int& head_in_group) const { return group(row, head_in_group); }
};

// Where a row begins.
template <class T>
struct HeadView {
  T* data;
  int64_t batch, head, row;
  HeadView(const HeadRows& rows)
      : data(static_cast<T*>(const_cast<void*>(rows.data))), batch(rows.batch), head(rows.head), row(rows.row) {}
  DEVICE_FN T* at(int64_t in_batch, int64_t in_head, int64_t in_row) const {
    return data + in_batch * batch + in_head * head + in_row * row;
  }
};

// Whether rows of `size` values may be read in packs of kPack.
template <int kPack, class T>
bool packs_fit(const HeadRows& rows, int64_t size) {
  return size % kPack == 0 && rows.batch % kPack == 0 && rows.head % kPack == 0 && rows.row % kPack == 0 &&
         device::is_pack_aligned<kPack>(static_cast<const T*>(rows.data));
}

}  // namespace encore::ops
