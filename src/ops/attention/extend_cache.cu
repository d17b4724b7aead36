#include "ops/attention/extend_cache.h"

#include <bit>

#include "device/divide.h"
#include "device/prefetch.h"
#include "ops/attention/encode_rows.h"
#include "ops/attention/new_rows.h"
#include "ops/attention/pairs.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Divider;
using device::FaultKind;
using device::FaultRef;
using device::NoShared;
using device::Pack;
using device::PerThread;

// The past, and zeros where there is none. An index moves a pack of keys or of values.
template <class T>
struct CopyPast {
  static constexpr int kPack = device::pack_size<T>();
  const T* past[2];
  T* present[2];
  NewRows added;
  Divider by_packs, by_capacity, by_kv_heads, by_batch;
  int64_t past_rows;
  int size;
  bool aligned, whole;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack, row, head, batch;
    const int64_t which = by_batch(by_kv_heads(by_capacity(by_packs(i, pack), row), head), batch);
    const int64_t begin = added.begin(batch);
    if (row >= begin && row < begin + added.rows) return;
    const int first = int(pack) * kPack, count = size - first < kPack ? size - first : kPack;
    head += batch * by_kv_heads.divisor();
    Pack<T, kPack> values{};
    if ((whole || row < begin) && row < past_rows)
      values = device::load_pack<kPack>(past[which] + (head * past_rows + row) * size + first, aligned, count);
    device::store_pack(present[which] + (head * added.capacity + row) * size + first, values, aligned, count);
  }
};

// An index moves a pack of pairs of a token's head: of a query, a key or a value, in this order; or a pack of what
// is not turned. kWeighs: heads are normalised.
template <class T, bool kWeighs>
struct AddRows {
  static constexpr int kPack = device::pack_size<T>();
  using Packed = Pack<T, kPack>;

  const T *q, *k, *v;
  int64_t q_token, kv_token;
  T *turned_q, *keys, *values;
  const T *cos, *sin, *q_weights, *k_weights;
  const int64_t* position_ids;
  int64_t positions;
  NewRows added;
  Divider by_packs, by_heads, by_rows;
  int q_heads, kv_heads;  // of queries none, if they stay
  int64_t room;           // for rows of a head of the keys
  bool apart;             // which are the new ones alone
  int turned_from;
  PairLayout layout;
  FaultRef fault;

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
      head.to = turned_q + (head.token * q_heads + number) * layout.size;
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
    fault.report(FaultKind::index_out_of_range, position, positions);
    return 0;
  }
  // `factor` is that of heads with weights.
  DEVICE_FN void move(int64_t index, int pack, float factor) const {
    const Head of = head(index);
    if (!of.has_room) return;
    if (pack >= layout.turning_packs) {
      // What comes before the pairs, and behind them.
      const int stays = (pack - layout.turning_packs) * kPack, before = turned_from - stays;
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
    Some pairs = Some::load(of.from + turned_from, layout, first, count);
    if (!of.is_value) {
      if constexpr (kWeighs) pairs.scale(factor, Some::load(of.weights + turned_from, layout, first, count));
      const int64_t angle = position(of.token, of.position) * layout.half + first;
      pairs.turn(device::load_pack<kPack>(cos + angle, layout.aligned, count),
                 device::load_pack<kPack>(sin + angle, layout.aligned, count));
    }
    pairs.store(of.to + turned_from, layout, first, count);
  }
};

// The same where packs are aligned and pairs are halves apart, as most models have it. A head has a power of two of
// lanes, and what waits for no position is asked for before it is known: for a token that a model generates, time is
// that of two reads, one after the other. The angles, which are far away, are brought nearer before: those of where the
// token is by now, which is rarely another place.
template <class T>
struct AddPackedRows {
  static constexpr int kMaxThreads = 128, kPack = device::pack_size<T>();
  static constexpr bool kBeginsEarly = true;
  using Words = Pack<uint32_t, 4>;  // a pack as nvcc leaves it whole

  AddRows<T, false> add;
  Divider by_parts;  // blocks of a token
  int heads, packs, lanes_log2;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    int64_t part, row = 0;
    const int64_t token = by_parts(b.index(), part);
    const int64_t batch = add.added.rows == 1 ? token : add.by_rows(token, row);
    b.threads([&](int t, NoShared&) {
      const int number = int(part) * (b.size() >> lanes_log2) + (t >> lanes_log2), pack = t & ((1 << lanes_log2) - 1);
      if (number == 0 && pack < add.layout.turning_packs) prefetch_angles(token, batch, int(row), pack);
      b.wait();
      if (number < heads && pack < packs) move(token, batch, int(row), number, pack);
    });
  }

 private:
  DEVICE_FN static Words words(const T* from) { return *reinterpret_cast<const Words*>(from); }
  DEVICE_FN static Pack<T, kPack> values(const Words& words) { return std::bit_cast<Pack<T, kPack>>(words); }

  DEVICE_FN void prefetch_angles(int64_t token, int64_t batch, int row, int pack) const {
    const int64_t position = add.given_position(token, add.added.begin(batch) + row);
    if (!add.has_angles(position)) return;
    const int64_t angle = position * add.layout.half + pack * kPack;
    device::prefetch(add.cos + angle);
    device::prefetch(add.sin + angle);
  }
  DEVICE_FN void move(int64_t token, int64_t batch, int row, int number, int pack) const {
    const PairLayout& layout = add.layout;
    const bool is_q = number < add.q_heads, is_value = number >= add.q_heads + add.kv_heads;
    const bool turns = pack < layout.turning_packs;
    const int first = (pack + (turns ? 0 : layout.turning_packs)) * kPack;  // of a head's values
    const int kv_head = number - add.q_heads - (is_value ? add.kv_heads : 0);
    const T* const from = (is_q ? add.q + token * add.q_token : (is_value ? add.v : add.k) + token * add.kv_token) +
                          (is_q ? number : kv_head) * layout.size + first;
    const Words low = words(from), high = turns ? words(from + layout.half) : Words{};
    const int64_t last = add.added.last(batch);
    const int64_t begin = add.added.begin_before(last), at = begin + row, to_row = add.row_of(begin) + row;
    if (number == 0 && pack == 0 && row == 0) add.added.check(last, add.fault);
    Pairs<T, false> pairs;
    if (turns && !is_value) {
      const int64_t angle = add.position(token, at) * layout.half + first;
      const Words cosines = words(add.cos + angle), sines = words(add.sin + angle);
      pairs = {values(low), values(high)};
      pairs.turn(values(cosines), values(sines));
    } else {
      pairs = {values(low), values(high)};
    }
    if (is_q || add.has_room(to_row)) {
      T* const to = (is_q ? add.turned_q + (token * add.q_heads + number) * layout.size
                          : (is_value ? add.values : add.keys) +
                                ((batch * add.kv_heads + kv_head) * add.room + to_row) * layout.size) +
                    first;
      device::store_pack(to, pairs.real, true);
      if (turns) device::store_pack(to + layout.half, pairs.imaginary, true);
    }
  }
};

// The same where heads are normalised, 32 threads for each.
template <class T>
struct AddNormalisedRows {
  static constexpr int kThreads = 128, kMaxThreads = kThreads, kHeads = kThreads / 32;
  AddRows<T, true> add;
  int64_t heads;
  int packs;
  float epsilon;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    PerThread<float, kThreads> squares;
    b.template reduce_groups<32>(
        squares,
        [&](int t) {
          const int64_t index = b.index() * kHeads + t / 32;
          float sum = 0;
          if (index >= heads) return sum;
          const auto head = add.head(index);
          if (head.is_value) return sum;
          constexpr int kPack = device::pack_size<T>();
          for (int first = t % 32 * kPack; first < add.layout.size; first += 32 * kPack) {
            const int left = add.layout.size - first, count = left < kPack ? left : kPack;
            const Pack<T, kPack> values = device::load_pack<kPack>(head.from + first, add.layout.aligned, count);
            UNROLL for (int i = 0; i < kPack; ++i) {
              const float value = i < count ? float(values.at[i]) : 0.f;
              sum += value * value;
            }
          }
          return sum;
        },
        [](float a, float c) { return a + c; });
    b.threads([&](int t, NoShared&) {
      const int64_t index = b.index() * kHeads + t / 32;
      if (index >= heads) return;
      const float factor = 1 / std::sqrt(squares[t] / float(add.layout.size) + epsilon);
      for (int pack = t % 32; pack < packs; pack += 32) add.move(index, pack, factor);
    });
  }
};

template <class T>
void copy_past(Context& context, const CacheExtension& e, const NewRows& added, int64_t size) {
  constexpr int kPack = CopyPast<T>::kPack;
  const bool copies_keys = e.past_keys != e.keys, copies_values = e.past_values != e.values;
  const int64_t tensors = int64_t(copies_keys) + int64_t(copies_values);
  // All that is there may be new.
  if (tensors == 0 || e.residents.capacity > 0 || (e.from_start && e.rows == e.capacity)) return;
  const int64_t packs = (size + kPack - 1) / kPack;
  const int64_t heads = checked_product(checked_product(e.batch, e.kv_heads), tensors);
  const int64_t count = checked_product(checked_product(heads, e.capacity), packs);
  CopyPast<T> kernel{{},
                     {},
                     added,
                     Divider(packs, count),
                     Divider(e.capacity, count),
                     Divider(e.kv_heads, heads),
                     Divider(e.batch, heads),
                     e.past_keys ? e.past_rows : 0,
                     int(size),
                     size % kPack == 0,
                     e.whole};
  int to = 0;
  const auto take = [&](const void* past, void* present) {
    kernel.past[to] = static_cast<const T*>(past);
    kernel.present[to] = static_cast<T*>(present);
    kernel.aligned = kernel.aligned && device::is_pack_aligned<kPack>(kernel.past[to]) &&
                     device::is_pack_aligned<kPack>(kernel.present[to]);
    ++to;
  };
  if (copies_keys) take(e.past_keys, e.keys);
  if (copies_values) take(e.past_values, e.values);
  device::for_each_index(context.stream(), count, kernel);
}

template <class T, bool kWeighs>
void add_rows(Context& context, const CacheExtension& e, const NewRows& added, void* keys, void* values) {
  constexpr int kPack = device::pack_size<T>();
  const auto aligned = [](auto... addresses) {
    return (device::is_pack_aligned<kPack>(static_cast<const T*>(addresses)) && ...);
  };
  PairLayout layout;
  layout.size = int(e.size);
  layout.half = int(e.cos ? e.turned / 2 : 0);
  layout.turning_packs = (layout.half + kPack - 1) / kPack;
  layout.interleaved = e.cos && e.interleaved;
  layout.aligned = e.size % kPack == 0 && layout.half % kPack == 0 && e.q_token % kPack == 0 &&
                   e.kv_token % kPack == 0 &&
                   aligned(e.q, e.k, e.v, e.turned_q, keys, values, e.cos, e.sin, e.q_weights, e.k_weights);
  const int64_t packs = layout.turning_packs + (e.size - 2 * layout.half + kPack - 1) / kPack;
  const int64_t q_heads = e.turned_q ? e.heads : 0, heads = q_heads + 2 * e.kv_heads;
  const int64_t tokens = checked_product(e.batch, e.rows), all_heads = checked_product(tokens, heads);
  const int64_t count = checked_product(all_heads, packs);
  const AddRows<T, kWeighs> add{static_cast<const T*>(e.q),
                                static_cast<const T*>(e.k),
                                static_cast<const T*>(e.v),
                                e.q_token,
                                e.kv_token,
                                static_cast<T*>(e.turned_q),
                                static_cast<T*>(keys),
                                static_cast<T*>(values),
                                static_cast<const T*>(e.cos),
                                static_cast<const T*>(e.sin),
                                static_cast<const T*>(e.q_weights),
                                static_cast<const T*>(e.k_weights),
                                e.position_ids,
                                e.positions,
                                added,
                                Divider(packs, count),
                                Divider(heads, all_heads),
                                Divider(e.rows, tokens),
                                int(q_heads),
                                int(e.kv_heads),
                                e.codes[0] ? e.rows : e.capacity,
                                bool(e.codes[0]),
                                int(e.cos ? e.turned_from : 0),
                                layout,
                                context.fault()};
  if constexpr (kWeighs) {
    using Kernel = AddNormalisedRows<T>;
    const int64_t blocks = (all_heads + Kernel::kHeads - 1) / Kernel::kHeads;
    device::block_kernel<NoShared>(context.stream(), {blocks, Kernel::kThreads},
                                   Kernel{add, all_heads, int(packs), e.epsilon});
  } else {
    using Packed = AddPackedRows<T>;
    int lanes_log2 = 0;
    while ((1 << lanes_log2) < packs && lanes_log2 < 16) ++lanes_log2;
    const int64_t in_block = Packed::kMaxThreads >> lanes_log2;  // heads
    const int64_t parts = in_block ? (heads + in_block - 1) / in_block : 0;
    if (!layout.aligned || layout.interleaved || add.turned_from != 0 || in_block == 0)
      return device::for_each_index(context.stream(), count, add);
    device::block_kernel<NoShared>(
        context.stream(), {checked_product(tokens, parts), Packed::kMaxThreads},
        Packed{add, Divider(parts, checked_product(tokens, parts)), int(heads), int(packs), lanes_log2});
  }
}

}  // namespace

void extend_cache(Context& context, const CacheExtension& e) {
  const NewRows added{e.last_keys, e.beyond_last, int(e.rows), int(e.capacity), e.from_start, e.staged, e.residents};
  void *keys = e.keys, *values = e.values;
  if (e.codes[0]) {
    copy_past<uint8_t>(context, e, added, row_bytes(e.codes[0].kind, e.size, e.type));
    const int64_t count = checked_product(checked_product(e.batch, e.kv_heads), checked_product(e.rows, e.size));
    for (void** const to : {&keys, &values}) *to = context.scratch(device::size_bytes(e.type, count));
  }
  dispatch(TypeList<float, Half, BFloat16>{}, e.type, [&]<class T> {
    if (!e.codes[0]) copy_past<T>(context, e, added, e.size);
    if (e.q_weights)
      add_rows<T, true>(context, e, added, keys, values);
    else
      add_rows<T, false>(context, e, added, keys, values);
  });
  if (!e.codes[0]) return;
  encode_rows(
      context,
      {e.type, {keys, values}, {e.keys, e.values}, {e.codes[0], e.codes[1]}, e.batch, e.kv_heads, e.rows, e.size},
      added);
}

}  // namespace encore::ops
