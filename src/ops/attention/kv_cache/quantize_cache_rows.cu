#include "ops/attention/kv_cache/quantize_cache_rows.h"

#include "device/divide.h"
#include "device/transform.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::Pack;

constexpr int kCodes = 8;  // that an index makes

template <class T>
struct QuantizeCacheRows {
  static constexpr int kPack = device::pack_size<T>();
  const T* from[2];
  uint8_t* to[2];
  CacheQuantization codes[2];
  NewRows added;
  Divider by_groups, by_rows, by_heads, by_which;
  int size, bytes;  // of a row
  bool aligned;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t group, row, head, which;
    const int64_t batch = by_which(by_heads(by_rows(by_groups(i, group), row), head), which);
    const int64_t at = added.first_row(added.begin(batch)) + row;
    if (at < 0 || at >= added.capacity) return;
    const int64_t of = batch * by_heads.divisor() + head;
    const int first = int(group) * kCodes, left = size - first < kCodes ? size - first : kCodes;
    const T* const values = from[which] + (of * by_rows.divisor() + row) * size + first;
    const CacheQuantization& scaled = codes[which];
    Pack<uint8_t, kCodes> code{};
    UNROLL for (int p = 0; p < kCodes; p += kPack) {
      if (p >= left) break;
      const int count = left - p < kPack ? left - p : kPack;
      const auto pack = device::load_pack<kPack>(values + p, aligned, count);
      UNROLL for (int j = 0; j < kPack; ++j) {
        if (j >= count) break;
        const float scale = scaled.scale(head, first + p + j);
        code.at[p + j] = uint8_t(code_of(scaled.kind, scale == 0 ? 0.f : float(pack.at[j]) * (1 / scale)));
      }
    }
    uint8_t* const row_of = to[which] + (of * added.capacity + at) * bytes;
    if (scaled.kind != CodeKind::i4) return device::store_pack(row_of + first, code, aligned, left);
    Pack<uint8_t, kCodes / 2> pairs;
    UNROLL for (int j = 0; j < kCodes / 2; ++j) pairs.at[j] = uint8_t(code.at[2 * j] | code.at[2 * j + 1] << 4);
    device::store_pack(row_of + first / 2, pairs, aligned, (left + 1) / 2);
  }
};

}  // namespace

void quantize_cache_rows(Context& context, const RowsToQuantize& rows, const NewRows& added) {
  const int64_t groups = (rows.size + kCodes - 1) / kCodes;
  const int64_t heads = checked_product(checked_product(rows.batch, 2), rows.heads);
  const int64_t all = checked_product(heads, rows.rows), count = checked_product(all, groups);
  dispatch(TypeList<float, Half, BFloat16>{}, rows.type, [&]<class T> {
    using Kernel = QuantizeCacheRows<T>;
    Kernel kernel{{},
                  {},
                  {rows.codes[0], rows.codes[1]},
                  added,
                  Divider(groups, count),
                  Divider(rows.rows, all),
                  Divider(rows.heads, heads),
                  Divider(2, heads),
                  int(rows.size),
                  int(row_bytes(rows.codes[0].kind, rows.size, rows.type)),
                  rows.size % kCodes == 0};
    for (int i = 0; i < 2; ++i) {
      kernel.from[i] = static_cast<const T*>(rows.from[i]);
      kernel.to[i] = static_cast<uint8_t*>(rows.to[i]);
      kernel.aligned = kernel.aligned && device::is_pack_aligned<Kernel::kPack>(kernel.from[i]) &&
                       device::is_pack_aligned<kCodes>(kernel.to[i]);
    }
    device::for_each_index(context.stream(), count, kernel);
  });
}

}  // namespace encore::ops
