// New rows of heads on their way into a cache: where each comes from and goes to, and how it is rotated there.
#pragma once
#include "device/divide.h"
#include "device/guess.h"
#include "device/prefetch.h"
#include "device/words.h"
#include "ops/attention/kv_cache/extend_cache.h"
#include "ops/attention/kv_cache/new_rows.h"
#include "ops/attention/rotary/pairs.h"

namespace encore::ops {

inline NewRows new_rows(const CacheExtension& e) {
  return {e.last_keys, e.beyond_last, int(e.rows), int(e.capacity), e.from_start, e.staged, e.residents};
}

inline int64_t packs_of_head(const PairLayout& layout, int pack) {
  return layout.rotated_packs + (layout.size - 2 * layout.half + pack - 1) / pack;
}

// An index moves a pack of pairs of a token's head: of a query, a key or a value, in this order; or a pack of what
// is not rotated. kWeighs: heads are normalised.
template <class T, bool kWeighs>
struct AddRows {
  static constexpr int kPack = device::pack_size<T>();
  using Packed = device::Pack<T, kPack>;

  const T *q, *k, *v;
  int64_t q_token, kv_token;
  T *rotated_q, *keys, *values;
  const T *cos, *sin, *q_weights, *k_weights;
  const int64_t* position_ids;
  int64_t positions;
  NewRows added;
  device::Divider by_packs, by_heads, by_rows;
  int q_heads, kv_heads;  // of queries none, if they stay
  int64_t room;           // for rows of a head of the keys
  bool apart;             // which are the new ones alone
  int rotated_from;
  PairLayout layout;
  device::FaultRef fault;

  // Whether packs are aligned, and pairs halves apart.
  bool are_packs() const { return layout.aligned && !layout.interleaved && rotated_from == 0; }

  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack;
    const int64_t head = by_packs(i, pack);
    move(head, int(pack), 1);
  }
  // Which of all heads `index` is: where its values are, and where they go if there is room.
  struct Head {
    const T* from;
    T* to;
    const T* weights;
    int64_t token, position;
    bool is_value, has_room;
  };
  DEVICE_FN bool is_of_query(int64_t index) const {
    int64_t in_token;
    by_heads(index, in_token);
    return in_token < q_heads;
  }
  DEVICE_FN Head head(int64_t index) const {
    int64_t in_token, row;
    Head head;
    head.token = by_heads(index, in_token);
    const int64_t batch = by_rows(head.token, row), begin = added.begin(batch);
    const int number = int(in_token);
    head.position = begin + row;
    if (number == 0 && row == 0) added.check(added.last(batch), fault);
    if (number < q_heads) {
      head.from = q + head.token * q_token + int64_t(number) * layout.size;
      head.to = rotated_q + (head.token * q_heads + number) * layout.size;
      head.weights = q_weights;
      head.is_value = false;
      head.has_room = true;
      return head;
    }
    head.is_value = number >= q_heads + kv_heads;
    const int kv_head = number - q_heads - (head.is_value ? kv_heads : 0);
    const int64_t at = row_of(begin) + row;
    const int64_t in_cache = ((batch * kv_heads + kv_head) * room + at) * layout.size;
    head.from = (head.is_value ? v : k) + head.token * kv_token + int64_t(kv_head) * layout.size;
    head.has_room = has_room(at);
    head.to = (head.is_value ? values : keys) + in_cache;
    head.weights = k_weights;
    return head;
  }
  // Where the new rows go, of which the first is key `begin`.
  DEVICE_FN int64_t row_of(int64_t begin) const { return apart ? 0 : added.first_row(begin); }
  DEVICE_FN bool has_room(int64_t row) const { return row >= 0 && row < room; }
  // Of a token's angles, if its row is that of the key `at`.
  DEVICE_FN int64_t given_position(int64_t token, int64_t at) const { return position_ids ? position_ids[token] : at; }
  DEVICE_FN bool has_angles(int64_t position) const { return position >= 0 && position < positions; }
  DEVICE_FN int64_t position(int64_t token, int64_t at) const {
    const int64_t position = given_position(token, at);
    if (has_angles(position)) return position;
    fault.report(device::FaultKind::index_out_of_range, position, positions);
    return 0;
  }
  // `factor` is that of heads with weights.
  DEVICE_FN void move(int64_t index, int pack, float factor) const {
    const Head of = head(index);
    if (!of.has_room) return;
    if (pack >= layout.rotated_packs) {
      // What comes before the pairs, and behind them.
      const int stays = (pack - layout.rotated_packs) * kPack, before = rotated_from - stays;
      const int first = before > 0 ? stays : stays + 2 * layout.half, left = before > 0 ? before : layout.size - first;
      const int count = left < kPack ? left : kPack;
      Packed packed = device::load_pack<kPack>(of.from + first, layout.aligned, count);
      if (kWeighs && !of.is_value) {
        const Packed weights = device::load_pack<kPack>(of.weights + first, layout.aligned, count);
        UNROLL for (int i = 0; i < kPack; ++i) packed.at[i] = T(float(packed.at[i]) * factor * float(weights.at[i]));
      }
      device::store_pack(of.to + first, packed, layout.aligned, count);
      return;
    }
    const int first = pack * kPack, count = layout.half - first < kPack ? layout.half - first : kPack;
    if (layout.interleaved)
      move_pairs<true>(of, first, count, factor);
    else
      move_pairs<false>(of, first, count, factor);
  }

 private:
  template <bool kNeighbours>
  DEVICE_FN void move_pairs(const Head& of, int first, int count, float factor) const {
    using Some = Pairs<T, kNeighbours>;
    Some pairs = Some::load(of.from + rotated_from, layout, first, count);
    if (!of.is_value) {
      if constexpr (kWeighs) pairs.scale(factor, Some::load(of.weights + rotated_from, layout, first, count));
      const int64_t angle = position(of.token, of.position) * layout.half + first;
      pairs.rotate(device::load_pack<kPack>(cos + angle, layout.aligned, count),
                   device::load_pack<kPack>(sin + angle, layout.aligned, count));
    }
    pairs.store(of.to + rotated_from, layout, first, count);
  }
};

// As most models have it, are_packs(): a thread has a pack of a head,
// and with it the one that rotates with it.
template <class T>
struct AddPacks {
  static constexpr int kPack = device::pack_size<T>();
  using Words = device::WordsOf<T, kPack>;
  struct Rotated {
    Pairs<T, false> packs;
    int first;      // where the first one is in its head
    bool rotates;   // else there is no other one
    int64_t begin;  // which key the first new row is
  };
  struct Angles {
    Words cosines, sines;
  };

  AddRows<T, false> add;
  int packs, lanes_log2;  // of a head, which a power of two of threads has

  explicit AddPacks(const AddRows<T, false>& add) : add(add), packs(int(add.by_packs.divisor())), lanes_log2(0) {
    while ((1 << lanes_log2) < packs && lanes_log2 < 16) ++lanes_log2;
  }

  // Where a token is by now, before earlier work is done, which rarely makes it another place; or -1.
  DEVICE_FN int64_t likely_position(int64_t token, int64_t batch, int row) const {
    if (add.layout.rotated_packs == 0) return -1;
    const int64_t position = device::guessed(add.given_position(token, add.added.begin(batch) + row), token);
    return add.has_angles(position) ? position : -1;
  }
  // The angles are far away. They are brought nearer before the token's position is known.
  DEVICE_FN void prefetch_angles(int64_t position, int pack) const {
    if (position < 0 || pack >= add.layout.rotated_packs) return;
    const int64_t angle = position * add.layout.half + pack * kPack;
    device::prefetch(add.cos + angle);
    device::prefetch(add.sin + angle);
  }
  // Of head `number` of all that a token has: of queries, keys and values, in this order.
  DEVICE_FN const T* head_of(int64_t token, int number) const {
    const bool is_q = number < add.q_heads, is_value = number >= add.q_heads + add.kv_heads;
    const int kv_head = number - add.q_heads - (is_value ? add.kv_heads : 0);
    return (is_q ? add.q + token * add.q_token : (is_value ? add.v : add.k) + token * add.kv_token) +
           (is_q ? number : kv_head) * add.layout.size;
  }
  // A pack of the head that begins there, and what rotates with it.
  struct Asked {
    Words low, high;
  };
  DEVICE_FN bool rotates(int pack) const { return pack < add.layout.rotated_packs; }
  DEVICE_FN int first_of(int pack) const { return (pack + (rotates(pack) ? 0 : add.layout.rotated_packs)) * kPack; }
  DEVICE_FN Asked ask(const T* head, int pack) const {
    const T* const from = head + first_of(pack);
    return {device::load_words<kPack>(from),
            rotates(pack) ? device::load_words<kPack>(from + add.layout.half) : Words{}};
  }
  DEVICE_FN static float squares_of(const Asked& asked) {
    float sum = 0;
    for (const Words* words : {&asked.low, &asked.high}) {
      const auto values = device::pack_of<T>(*words);
      UNROLL for (int i = 0; i < kPack; ++i) sum += float(values.at[i]) * float(values.at[i]);
    }
    return sum;
  }
  // Each value by the factor, and then by its weight, if the head has weights. All is asked for before the token's
  // position is known, angles where it is likely to be: for a token that a model generates, time is that of one read.
  DEVICE_FN Rotated rotated(const Asked& asked, int64_t token, int64_t batch, int row, int number, int pack,
                            int64_t likely, const T* weights = nullptr, float factor = 1) const {
    const bool is_value = number >= add.q_heads + add.kv_heads;
    Rotated rotated;
    rotated.rotates = rotates(pack);
    rotated.first = first_of(pack);
    Asked by{};
    if (weights) by = ask(weights, pack);
    const bool turns = rotated.rotates && !is_value;
    Angles angles{};
    if (turns && likely >= 0) angles = angles_at(likely, rotated.first);
    const int64_t last = add.added.last(batch);
    rotated.begin = add.added.begin_before(last);
    if (number == 0 && pack == 0 && row == 0) add.added.check(last, add.fault);
    rotated.packs = {device::pack_of<T>(asked.low), device::pack_of<T>(asked.high)};
    if (weights) rotated.packs.scale(factor, {device::pack_of<T>(by.low), device::pack_of<T>(by.high)});
    if (turns) {
      const int64_t position = add.position(token, rotated.begin + row);
      if (position != likely) angles = angles_at(position, rotated.first);
      rotated.packs.rotate(device::pack_of<T>(angles.cosines), device::pack_of<T>(angles.sines));
    }
    return rotated;
  }
  DEVICE_FN Angles angles_at(int64_t position, int first) const {
    const int64_t angle = position * add.layout.half + first;
    return {device::load_words<kPack>(add.cos + angle), device::load_words<kPack>(add.sin + angle)};
  }
  DEVICE_FN T* in_cache(int64_t batch, int number, int64_t row) const {
    const bool is_value = number >= add.q_heads + add.kv_heads;
    const int kv_head = number - add.q_heads - (is_value ? add.kv_heads : 0);
    return (is_value ? add.values : add.keys) + ((batch * add.kv_heads + kv_head) * add.room + row) * add.layout.size;
  }
  // To the head that begins there.
  DEVICE_FN void store(const Rotated& rotated, T* head) const {
    device::store_pack(head + rotated.first, rotated.packs.real, true);
    if (rotated.rotates) device::store_pack(head + rotated.first + add.layout.half, rotated.packs.imaginary, true);
  }
};

// What a kernel is told of an extension; the cache may be another one's memory.
template <class T, bool kWeighs>
AddRows<T, kWeighs> rows_to_add(device::FaultRef fault, const CacheExtension& e, const NewRows& added, void* keys,
                                void* values) {
  constexpr int kPack = device::pack_size<T>();
  const auto aligned = [](auto... addresses) {
    return (device::is_pack_aligned<kPack>(static_cast<const T*>(addresses)) && ...);
  };
  PairLayout layout;
  layout.size = int(e.size);
  layout.half = int(e.cos ? e.rotated / 2 : 0);
  layout.rotated_packs = (layout.half + kPack - 1) / kPack;
  layout.interleaved = e.cos && e.interleaved;
  layout.aligned = e.size % kPack == 0 && layout.half % kPack == 0 && e.q_token % kPack == 0 &&
                   e.kv_token % kPack == 0 &&
                   aligned(e.q, e.k, e.v, e.rotated_q, keys, values, e.cos, e.sin, e.q_weights, e.k_weights);
  const int64_t packs = packs_of_head(layout, kPack);
  const int64_t q_heads = e.rotated_q ? e.heads : 0, heads = q_heads + 2 * e.kv_heads;
  const int64_t tokens = checked_product(e.batch, e.rows), all_heads = checked_product(tokens, heads);
  return {static_cast<const T*>(e.q),
          static_cast<const T*>(e.k),
          static_cast<const T*>(e.v),
          e.q_token,
          e.kv_token,
          static_cast<T*>(e.rotated_q),
          static_cast<T*>(keys),
          static_cast<T*>(values),
          static_cast<const T*>(e.cos),
          static_cast<const T*>(e.sin),
          static_cast<const T*>(e.q_weights),
          static_cast<const T*>(e.k_weights),
          e.position_ids,
          e.positions,
          added,
          device::Divider(packs, checked_product(all_heads, packs)),
          device::Divider(heads, all_heads),
          device::Divider(e.rows, tokens),
          int(q_heads),
          int(e.kv_heads),
          e.codes[0] ? e.rows : e.capacity,
          bool(e.codes[0]),
          int(e.cos ? e.rotated_from : 0),
          layout,
          fault};
}

}  // namespace encore::ops
