#include "ops/attention/extend_cache.h"

#include "device/divide.h"
#include "device/fault.h"
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

// Where the new rows of each batch begin.
struct NewRows {
  const int32_t* last_keys;
  int beyond_last, rows, capacity;
  bool from_start;
  DEVICE_FN int64_t last(int64_t batch) const { return int64_t(last_keys[batch]) - beyond_last; }
  DEVICE_FN int64_t begin(int64_t batch) const { return from_start ? 0 : last(batch) + 1 - rows; }
  DEVICE_FN void check(int64_t batch, FaultRef fault) const {
    const int64_t last = this->last(batch);
    if (last < (from_start ? 0 : rows - 1) || last >= (from_start ? rows : capacity))
      fault.report(FaultKind::bad_value, last, from_start ? rows : capacity);
  }
};

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
    const int64_t batch = by_rows(head.token, row), at = added.begin(batch) + row;
    const int number = int(in_token);
    head.position = at;
    if (number == 0 && row == 0) added.check(batch, fault);
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
    const int64_t in_cache = ((batch * kv_heads + kv_head) * added.capacity + at) * layout.size;
    head.from = (head.is_value ? v : k) + head.token * kv_token + int64_t(kv_head) * layout.size;
    head.has_room = at >= 0 && at < added.capacity;
    head.to = (head.is_value ? values : keys) + in_cache;
    head.weights = k_weights;
    return head;
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
      const int64_t angle = position(of) * layout.half + first;
      pairs.turn(device::load_pack<kPack>(cos + angle, layout.aligned, count),
                 device::load_pack<kPack>(sin + angle, layout.aligned, count));
    }
    pairs.store(of.to + turned_from, layout, first, count);
  }
  DEVICE_FN int64_t position(const Head& of) const {
    const int64_t position = position_ids ? position_ids[of.token] : of.position;
    if (position >= 0 && position < positions) return position;
    fault.report(FaultKind::index_out_of_range, position, positions);
    return 0;
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
void copy_past(Context& context, const CacheExtension& e, const NewRows& added) {
  constexpr int kPack = CopyPast<T>::kPack;
  const bool copies_keys = e.past_keys != e.keys, copies_values = e.past_values != e.values;
  const int64_t tensors = int64_t(copies_keys) + int64_t(copies_values);
  // All that is there may be new.
  if (tensors == 0 || (e.from_start && e.rows == e.capacity)) return;
  const int64_t packs = (e.size + kPack - 1) / kPack;
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
                     int(e.size),
                     e.size % kPack == 0,
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
void add_rows(Context& context, const CacheExtension& e, const NewRows& added) {
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
                   aligned(e.q, e.k, e.v, e.turned_q, e.keys, e.values, e.cos, e.sin, e.q_weights, e.k_weights);
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
                                static_cast<T*>(e.keys),
                                static_cast<T*>(e.values),
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
                                int(e.cos ? e.turned_from : 0),
                                layout,
                                context.fault()};
  if constexpr (kWeighs) {
    using Kernel = AddNormalisedRows<T>;
    const int64_t blocks = (all_heads + Kernel::kHeads - 1) / Kernel::kHeads;
    device::block_kernel<NoShared>(context.stream(), {blocks, Kernel::kThreads},
                                   Kernel{add, all_heads, int(packs), e.epsilon});
  } else {
    device::for_each_index(context.stream(), count, add);
  }
}

}  // namespace

void extend_cache(Context& context, const CacheExtension& e) {
  const NewRows added{e.last_keys, e.beyond_last, int(e.rows), int(e.capacity), e.from_start};
  dispatch(TypeList<float, Half, BFloat16>{}, e.type, [&]<class T> {
    copy_past<T>(context, e, added);
    if (e.q_weights)
      add_rows<T, true>(context, e, added);
    else
      add_rows<T, false>(context, e, added);
  });
}

}  // namespace encore::ops
