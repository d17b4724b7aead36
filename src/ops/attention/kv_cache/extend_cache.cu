#include "ops/attention/kv_cache/extend_cache.h"

#include "ops/attention/kv_cache/add_rows.h"
#include "ops/attention/kv_cache/quantize_cache_rows.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Divider;
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

// The same where packs are aligned and pairs are halves apart.
template <class T>
struct AddPackedRows {
  static constexpr int kMaxThreads = 128;
  static constexpr bool kBeginsEarly = true;

  AddPacks<T> add;
  Divider by_parts;  // blocks of a token
  int heads;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    int64_t part, row = 0;
    const int64_t token = by_parts(b.index(), part);
    const int64_t batch = add.add.added.rows == 1 ? token : add.add.by_rows(token, row);
    b.threads([&](int t, NoShared&) {
      const int number = int(part) * (b.size() >> add.lanes_log2) + (t >> add.lanes_log2);
      const int pack = t & ((1 << add.lanes_log2) - 1);
      const int64_t likely = add.likely_position(token, batch, int(row));
      if (number == 0) add.prefetch_angles(likely, pack);
      b.wait();
      if (number >= heads || pack >= add.packs) return;
      const auto rotated =
          add.rotated(add.ask(add.head_of(token, number), pack), token, batch, int(row), number, pack, likely);
      const AddRows<T, false>& rows = add.add;
      if (number < rows.q_heads)
        return add.store(rotated, rows.rotated_q + (token * rows.q_heads + number) * rows.layout.size);
      const int64_t in_cache = rows.row_of(rotated.begin) + row;
      if (rows.has_room(in_cache)) add.store(rotated, add.in_cache(batch, number, in_cache));
    });
  }
};

// The same where heads are normalised, 32 threads for each.
template <class T>
struct AddNormalisedRows {
  static constexpr int kThreads = 128, kMaxThreads = kThreads, kHeads = kThreads / 32;
  AddRows<T, true> add;
  int64_t heads;
  int packs;
  float q_epsilon, k_epsilon;

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
      const float epsilon = add.is_of_query(index) ? q_epsilon : k_epsilon;
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
  if (tensors == 0 || e.residents.capacity > 0 || (added.from_start && e.rows == e.capacity)) return;
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
  const auto add = rows_to_add<T, kWeighs>(context.fault(), e, added, keys, values);
  const int64_t heads = add.by_heads.divisor(), packs = add.by_packs.divisor();
  const int64_t tokens = checked_product(e.batch, e.rows), all_heads = checked_product(tokens, heads);
  if constexpr (kWeighs) {
    using Kernel = AddNormalisedRows<T>;
    const int64_t blocks = (all_heads + Kernel::kHeads - 1) / Kernel::kHeads;
    device::block_kernel<NoShared>(context.stream(), {blocks, Kernel::kThreads},
                                   Kernel{add, all_heads, int(packs), e.q_epsilon, e.k_epsilon});
  } else {
    using Packed = AddPackedRows<T>;
    const AddPacks<T> add_packs(add);
    const int64_t in_block = Packed::kMaxThreads >> add_packs.lanes_log2;  // heads
    const int64_t parts = in_block ? (heads + in_block - 1) / in_block : 0;
    if (!add.are_packs() || in_block == 0)
      return device::for_each_index(context.stream(), checked_product(all_heads, packs), add);
    device::block_kernel<NoShared>(context.stream(), {checked_product(tokens, parts), Packed::kMaxThreads},
                                   Packed{add_packs, Divider(parts, checked_product(tokens, parts)), int(heads)});
  }
}

template <class T>
void add_rows(Context& context, const CacheExtension& e, const NewRows& added, void* keys, void* values) {
  if (e.q_weights)
    add_rows<T, true>(context, e, added, keys, values);
  else
    add_rows<T, false>(context, e, added, keys, values);
}

void rotate_queries(Context& context, const CacheExtension& e, const NewRows& added) {
  if (!e.rotated_q) return;
  CacheExtension queries = e;
  queries.kv_heads = 0;
  dispatch(TypeList<float, Half, BFloat16>{}, e.type,
           [&]<class T> { add_rows<T>(context, queries, added, nullptr, nullptr); });
}

}  // namespace

void copy_past(Context& context, const CacheExtension& e) {
  NewRows added = new_rows(e);
  if (e.filled) added.rows = 0, added.from_start = false;  // all is past
  if (e.codes[0]) return copy_past<uint8_t>(context, e, added, row_bytes(e.codes[0].kind, e.size, e.type));
  dispatch(TypeList<float, Half, BFloat16>{}, e.type, [&]<class T> { copy_past<T>(context, e, added, e.size); });
}

void extend_cache(Context& context, const CacheExtension& e) {
  copy_past(context, e);
  const NewRows added = new_rows(e);
  if (e.filled) return rotate_queries(context, e, added);
  void *keys = e.keys, *values = e.values;
  if (e.codes[0]) {
    const int64_t count = checked_product(checked_product(e.batch, e.kv_heads), checked_product(e.rows, e.size));
    for (void** const to : {&keys, &values}) *to = context.scratch(device::size_bytes(e.type, count));
  }
  dispatch(TypeList<float, Half, BFloat16>{}, e.type, [&]<class T> { add_rows<T>(context, e, added, keys, values); });
  if (!e.codes[0]) return;
  quantize_cache_rows(
      context,
      {e.type, {keys, values}, {e.keys, e.values}, {e.codes[0], e.codes[1]}, e.batch, e.kv_heads, e.rows, e.size},
      added);
}

}  // namespace encore::ops
