// Attention by the device's library, for which masks and lengths are put into the forms that it takes. It is trusted
// with no query that sees no key, nor with infinite masks: what is unseen is a low number, and rows that see nothing
// are set to zero afterwards. Nor with NaN or infinity after the last key of a cache, which it multiplies by zero.
#include <algorithm>
#include <optional>

#include "device/divide.h"
#include "device/dnn_attention.h"
#include "device/launch.h"
#include "ops/attention/dense/attend_view.h"
#include "ops/attention/dense/blind_queries.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Divider;
using device::FusedAttention;
using device::NoShared;

// What is added for an unseen key, and the least for one that is seen: the difference leaves nothing of the former, and
// sums with scores stay finite.
template <class T>
inline constexpr float kForUnseen = -2e38f;
template <class T>
inline constexpr float kLeast = -1e38f;
template <>
inline constexpr float kForUnseen<Half> = -65504;
template <>
inline constexpr float kLeast<Half> = -32768;

// A row of the bias, a block for each: the mask, and with `is_limited` what else a query sees.
template <class T>
struct MakeBias {
  VisibleKeysView<T> visible;
  T* bias;      // [batch, head, query, key], where all but the last may be 1
  bool* blind;  // [batch, head, query]
  Divider by_queries, by_heads;
  bool is_limited;
  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    int64_t query, head;
    const int64_t batch = by_heads(by_queries(b.index(), query), head);
    const int64_t mask = visible.mask_row(batch, head, int(query));
    const KeyRange range =
        is_limited ? visible.range(visible.length(batch), int(query)) : KeyRange{0, visible.mask_keys};
    const bool sees = b.reduce(
        0,
        [&](int t) {
          int any = 0;
          for (int key = t; key < visible.keys; key += b.size()) {
            float value = kMaskedScore<float>;
            if (key >= range.first && key < range.end) value = visible.masked(0.f, mask, key);
            const bool seen = value != kMaskedScore<float>;  // which NaN is, too
            any |= seen;
            bias[b.index() * visible.keys + key] = T(!seen ? kForUnseen<T> : value < kLeast<T> ? kLeast<T> : value);
          }
          return any;
        },
        [](int a, int c) { return a | c; });
    b.threads([&](int t, NoShared&) {
      if (t == 0) blind[b.index()] = !sees;
    });
  }
};

// Lengths as the library takes them.
struct MakeLengths {
  VisibleKeysView<Half> visible;
  int32_t *of_queries, *of_keys;
  DEVICE_FN void operator()(int64_t batch) const {
    of_queries[batch] = visible.queries;
    of_keys[batch] = visible.length(batch);
  }
};

// Zeros for NaN and infinity after a batch's last key, where the library reads them: values in the tile of the last
// key; beside a mask, which alone says what is unseen, all keys and values.
template <class T>
struct ClearBehind {
  static constexpr int kPack = 8, kTile = 128;
  VisibleKeysView<T> visible;
  HeadView<T> rows[2];  // the last `tensors` of keys and values
  int packs[2];         // of a row
  int tensors;
  Divider by_packs, by_span, by_heads, by_batch;
  bool masked;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack, row, head, batch;
    const int tensor = 2 - tensors + int(by_batch(by_heads(by_span(by_packs(i, pack), row), head), batch));
    const int length = visible.length(batch), tile_end = (length + kTile - 1) / kTile * kTile;
    const int end = masked || tile_end > visible.keys ? visible.keys : tile_end;
    if (length + row >= end || pack >= packs[tensor]) return;
    T* const at = rows[tensor].at(batch, head, length + row) + pack * kPack;
    auto values = device::load_pack<kPack>(at, true);
    bool all_numbers = true;
    UNROLL for (int j = 0; j < kPack; ++j) {
      const float value = float(values.at[j]);
      if (value - value == 0) continue;
      values.at[j] = T(0.f);
      all_numbers = false;
    }
    if (!all_numbers) device::store_pack(at, values, true);
  }
};

template <class T>
void clear_behind(Context& context, const Attend& p, const VisibleKeysView<T>& view) {
  using Kernel = ClearBehind<T>;
  const bool masked = p.mask.data != nullptr;
  const int tensors = masked ? 2 : 1;
  const int packs[] = {int(p.head_size / Kernel::kPack), int(p.value_size / Kernel::kPack)};
  const int64_t most = masked ? std::max(packs[0], packs[1]) : packs[1], span = masked ? p.keys : Kernel::kTile - 1;
  const int64_t batches = tensors * p.batch, heads = checked_product(batches, p.kv_heads);
  const int64_t all_rows = checked_product(heads, span), count = checked_product(all_rows, most);
  device::for_each_index(context.stream(), count,
                         Kernel{view,
                                {p.k, p.v},
                                {packs[0], packs[1]},
                                tensors,
                                Divider(most, count),
                                Divider(span, all_rows),
                                Divider(p.kv_heads, heads),
                                Divider(p.batch, batches),
                                masked});
}

// Zeros for queries that see nothing.
template <class T>
struct ClearBlindRows {
  VisibleKeysView<T> visible;
  const bool* blind;  // of the mask, or null
  int64_t blind_batch, blind_head, blind_query;
  HeadView<T> y;
  Divider by_queries, by_heads;
  int value_size;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t query, head;
    const int64_t batch = by_heads(by_queries(i, query), head);
    const KeyRange range = visible.range(visible.length(batch), int(query));
    const int64_t at = batch * blind_batch + head * blind_head + query * blind_query;
    if (range.end > range.first && !(blind && blind[at])) return;
    T* const row = y.at(batch, head, query);
    for (int c = 0; c < value_size; ++c) row[c] = T(0.f);
  }
};

FusedAttention::Strides strides_of(const HeadRows& rows) { return {rows.batch, rows.head, rows.row}; }

// Whether its kernels could read and write these.
bool suits(const Attend& p) {
  if ((p.type != Type::f16 && p.type != Type::bf16) || p.softcap > 0 || p.scores.data || p.sinks || p.keys == 0 ||
      !std::isfinite(p.scale) || p.head_size % 8 != 0 || p.value_size % 8 != 0 || p.value_size == 0)
    return false;
  for (const auto& [rows, size] :
       {std::pair{p.q, p.head_size}, {p.k, p.head_size}, {p.v, p.value_size}, {p.y, p.value_size}})
    if (!packs_fit<8, Half>(rows, size)) return false;
  return true;
}

// What else a query sees of a mask's keys is in the bias.
bool is_limited(const Attend& p) {
  const VisibleKeys& visible = p.visible;
  return p.mask.data && (visible.has_lengths() || visible.before >= 0 || visible.after >= 0);
}

// What is asked of the library; nothing if it lacks such windows.
std::optional<FusedAttention> fused_of(const Attend& p) {
  const VisibleKeys& visible = p.visible;
  const bool windowed = visible.before >= 0 || visible.after >= 0, masked = p.mask.data != nullptr;
  const bool top_left = !visible.from_end && visible.offset == 0;
  const bool bottom_right = visible.from_end || visible.offset == p.keys - p.queries;
  if (windowed && !masked && !top_left && !bottom_right) return std::nullopt;

  FusedAttention fused{.type = p.type,
                       .batch = p.batch,
                       .heads = p.heads,
                       .kv_heads = p.kv_heads,
                       .queries = p.queries,
                       .keys = p.keys,
                       .head_size = p.head_size,
                       .value_size = p.value_size,
                       .q = strides_of(p.q),
                       .k = strides_of(p.k),
                       .v = strides_of(p.v),
                       .y = strides_of(p.y),
                       .scale = float(p.scale)};
  // With a mask the library has no windows but those from the first key on. The bias has them in any case, to find
  // queries that see nothing.
  if (windowed && (!masked || top_left)) {
    fused.left = visible.before;
    fused.right = visible.after;
    fused.bottom_right = !top_left;
  }
  fused.has_lengths = visible.has_lengths() && !masked;
  if (masked) {
    fused.bias_batch = p.mask.batch != 0 || (is_limited(p) && visible.has_lengths()) ? p.batch : 1;
    fused.bias_heads = p.mask.head != 0 ? p.heads : 1;
    fused.bias_queries = p.mask.query != 0 || windowed ? p.queries : 1;
  }
  return fused;
}

Shape bias_shape_of(const FusedAttention& fused) {
  return {fused.bias_batch, fused.bias_heads, fused.bias_queries, fused.keys};
}

struct Prepared {
  FusedAttention fused;
  size_t workspace_bytes;
};
// Nothing if the library does not serve, or its bias would be too large.
std::optional<Prepared> prepare(Context& context, const Attend& p) {
  constexpr int64_t kMostBias = int64_t(1) << 29;
  auto fused = fused_of(p);
  while (fused && fused->bias_batch * fused->bias_heads * fused->bias_queries <= kMostBias / p.keys) {
    if (const auto bytes = device::prepare_attention(context.dnn(), context.stream(), *fused))
      return Prepared{*fused, *bytes};
    if (fused->bias_queries == fused->queries || fused->bias_batch == 0) break;
    fused->bias_queries = fused->queries;  // it may have an engine for this alone
  }
  return std::nullopt;
}

// Whether the mask is a bias as the library reads it.
template <class T>
bool is_bias(const Attend& p, const FusedAttention& fused) {
  const AttentionMask& mask = p.mask;
  const auto lies = [](int64_t stride, int64_t count, int64_t wanted) { return count == 1 || stride == wanted; };
  const int64_t head = fused.bias_queries * p.keys;
  return !mask.boolean && !is_limited(p) && mask.least >= kForUnseen<T> && mask.keys >= p.keys &&
         lies(mask.key, p.keys, 1) && lies(mask.query, fused.bias_queries, p.keys) &&
         lies(mask.head, fused.bias_heads, head) && lies(mask.batch, fused.bias_batch, fused.bias_heads * head) &&
         device::is_pack_aligned<device::pack_size<T>()>(static_cast<const T*>(mask.data));
}

template <class T>
MaskBias make_bias(Context& context, const Attend& p, const FusedAttention& fused, const VisibleKeysView<T>& view) {
  MaskBias bias = p.bias;
  if (const Shape shape = bias_shape_of(fused); bias.shape != shape) {
    bias = {shape, context.scratch(size_t(shape.count()) * sizeof(T)), nullptr};
    bias.blind = static_cast<bool*>(context.scratch(size_t(blind_shape(shape).count())));
  }
  if (bias.is_made) return bias;
  const int64_t rows = blind_shape(bias.shape).count();
  device::block_kernel<NoShared>(context.stream(), {rows, p.keys > 2048 ? 256 : 64},
                                 MakeBias<T>{view, static_cast<T*>(bias.data), bias.blind, Divider(bias.shape[2], rows),
                                             Divider(fused.bias_heads, rows), is_limited(p)});
  return bias;
}

template <class T>
bool run(Context& context, const Attend& p) {
  const auto prepared = prepare(context, p);
  if (!prepared) return false;
  const auto& [fused, workspace_bytes] = *prepared;
  const VisibleKeys& visible = p.visible;
  const bool masked = p.mask.data != nullptr;
  const VisibleKeysView<T> view(p, context.fault());
  device::AttentionAddresses addresses{.q = p.q.data, .k = p.k.data, .v = p.v.data, .y = const_cast<void*>(p.y.data)};
  const bool* blind = nullptr;
  if (masked && is_bias<T>(p, fused)) {
    addresses.bias = p.mask.data;
  } else if (masked) {
    const MaskBias bias = make_bias(context, p, fused, view);
    addresses.bias = bias.data;
    if (p.mask.least == kAnyNumber && !p.mask.sees) blind = bias.blind;
  }
  if (fused.has_lengths) {
    auto* const of_queries = static_cast<int32_t*>(context.scratch(size_t(p.batch) * sizeof(int32_t)));
    auto* const of_keys = static_cast<int32_t*>(context.scratch(size_t(p.batch) * sizeof(int32_t)));
    device::for_each_index(context.stream(), p.batch,
                           MakeLengths{VisibleKeysView<Half>(p, context.fault()), of_queries, of_keys});
    addresses.query_lengths = of_queries;
    addresses.key_lengths = of_keys;
  }
  if (p.is_cache && visible.has_lengths()) clear_behind(context, p, view);
  const Context::Cleared workspace = workspace_bytes <= kAttentionClears
                                         ? context.cleared_scratch(workspace_bytes)
                                         : Context::Cleared{context.scratch(workspace_bytes), false};
  device::run_attention(context.dnn(), context.stream(), fused, addresses, workspace.at, workspace.is_cleared);
  if (blind || may_be_blind(visible, p.queries, p.keys)) {
    const int64_t rows = p.batch * p.heads * p.queries;
    const auto stride = [](int64_t count, int64_t below) { return count > 1 ? below : 0; };
    device::for_each_index(
        context.stream(), rows,
        ClearBlindRows<T>{view, blind, stride(fused.bias_batch, fused.bias_heads * fused.bias_queries),
                          stride(fused.bias_heads, fused.bias_queries), stride(fused.bias_queries, 1), p.y,
                          Divider(p.queries, rows), Divider(p.heads, rows), int(p.value_size)});
  }
  return true;
}

}  // namespace

bool attend_dnn(Context& context, const Attend& problem) {
  if (!suits(problem)) return false;
  bool served = false;
  dispatch(TypeList<Half, BFloat16>{}, problem.type, [&]<class T> { served = run<T>(context, problem); });
  return served;
}

Shape dnn_bias_shape(Context& context, const Attend& problem) {
  if (!problem.mask.data || !suits(problem)) return Shape{0};
  const auto prepared = prepare(context, problem);
  if (!prepared) return Shape{0};
  const FusedAttention& fused = prepared->fused;
  bool is_there = false;
  dispatch(TypeList<Half, BFloat16>{}, problem.type, [&]<class T> { is_there = is_bias<T>(problem, fused); });
  return is_there ? Shape{0} : bias_shape_of(fused);
}

}  // namespace encore::ops
