#include "ops/quantize/weave.h"

#include "device/divide.h"
#include "device/transform.h"

namespace encore::ops {
namespace {

using device::Divider;

// A word of woven codes; zeros where the matrix has none.
template <int kBits>
struct WeaveCodes {
  using Form = Weave<kBits>;
  const uint8_t* codes;
  const int32_t* order;  // may be null
  uint32_t* out;
  int64_t rows, depth, row_bytes;
  Divider by_units;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t unit;
    const int64_t tile = by_units(i / (Form::kBytes / 4), unit);
    const int at = int(i % (Form::kBytes / 4)), lane = at / 4 % 32, word = at % 4;
    const int64_t row = tile * Form::kRows + at / 128 * 8 + lane / 4;
    const int64_t first = unit * Form::kUnit + word / Form::kWords * Form::kGroup + lane % 4 * Form::kPart +
                          word % Form::kWords * Form::kInWord;
    uint32_t woven = 0;
    for (int code = 0; code < Form::kInWord && row < rows; ++code) {
      int64_t from = first + code;
      if (from * kBits / 8 >= row_bytes) break;
      if (order && from < depth) from = order[from];
      const uint32_t value = code_at(codes + row * row_bytes, from, kBits);
      woven |= value << (code % 2 * Form::kPairs + code / 2) * kBits;
    }
    out[i] = woven;
  }
};

// Four columns of a row.
struct OrderColumns {
  static constexpr int kPack = 4;
  const uint16_t* a;
  uint16_t* y;
  const int32_t* order;
  int64_t depth;
  Divider by_packs;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack;
    const uint16_t* const row = a + by_packs(i, pack) * depth;
    const auto from = device::load_aligned<kPack>(order + pack * kPack);
    device::Pack<uint16_t, kPack> made;
    UNROLL for (int k = 0; k < kPack; ++k) made.at[k] = row[from.at[k]];
    device::store_aligned(y + i * kPack, made);
  }
};

// What groups have: of each unit first the rows 0 and 8, then 1 and 9, and so on. `T`: 16 bits of a scale, or a byte of
// a zero point, of which several may be packed in one.
template <class T>
struct WeaveShares {
  const T* from;
  T* out;
  int64_t rows, blocks, row_size;  // of a row of `from`
  int group, shares, unit, block_shift, bits;
  Divider by_units;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t at;
    const int64_t tile = by_units(i / (16 * shares), at);
    const int rest = int(i % (16 * shares)), share = rest / 2 % shares;
    const int64_t row = tile * 16 + rest % 2 * 8 + rest / (2 * shares);
    const int64_t block = (at * unit + int64_t(share) * group) >> block_shift;
    T value = 0;
    if (row < rows && block < blocks) {
      const int64_t bit = block * bits;
      value = T(from[row * row_size + bit / int(8 * sizeof(T))] >> (bit % int(8 * sizeof(T))));
      value = T(value & ((1u << bits) - 1));
    }
    out[i] = value;
  }
};

template <class T, int kBits>
const T* weave_shares(Prepack& prepack, const BlockCodes& w, const T* from, int64_t row_size, int bits) {
  using Form = Weave<kBits>;
  const int shares = Form::shares(w);
  const int64_t units = Form::units(w), tiles = (w.rows + 15) / 16, count = tiles * units * 16 * shares;
  T* const out = static_cast<T*>(prepack.keep(size_t(count) * sizeof(T)));
  device::for_each_index(prepack.stream(), count,
                         WeaveShares<T>{from, out, w.rows, w.blocks, row_size, Form::kGroup, shares, Form::kUnit,
                                        w.block_shift, bits, Divider(units, count)});
  return out;
}

}  // namespace

bool can_weave(const BlockCodes& w) {
  if (w.depth % 8 != 0 || w.rows >= kIntCap || w.blocks * w.block() >= kIntCap) return false;
  return for_bits(w.bits, [&]<int kBits> { return Weave<kBits>::suits(w); });
}

const uint8_t* weave_codes(Prepack& prepack, const BlockCodes& w, const void* codes, const int32_t* order) {
  return for_bits(w.bits, [&]<int kBits> {
    using Form = Weave<kBits>;
    const int64_t units = Form::units(w), count = (w.rows + 15) / 16 * units * (Form::kBytes / 4);
    auto* const out = static_cast<uint32_t*>(prepack.keep(size_t(count) * 4));
    device::for_each_index(prepack.stream(), count,
                           WeaveCodes<kBits>{static_cast<const uint8_t*>(codes), order, out, w.rows, w.depth,
                                             w.row_bytes(), Divider(units, count)});
    return reinterpret_cast<const uint8_t*>(out);
  });
}
void order_columns(StreamRef stream, const void* a, void* y, int64_t rows, int64_t depth, const int32_t* order) {
  const int64_t packs = depth / OrderColumns::kPack, count = rows * packs;
  device::for_each_index(
      stream, count,
      OrderColumns{static_cast<const uint16_t*>(a), static_cast<uint16_t*>(y), order, depth, Divider(packs, count)});
}
const uint16_t* weave_scales(Prepack& prepack, const BlockCodes& w, const void* scales) {
  return for_bits(w.bits, [&]<int kBits> {
    return weave_shares<uint16_t, kBits>(prepack, w, static_cast<const uint16_t*>(scales), w.blocks, 16);
  });
}
const uint8_t* weave_zeros(Prepack& prepack, const BlockCodes& w, const void* zeros) {
  return for_bits(w.bits, [&]<int kBits> {
    return weave_shares<uint8_t, kBits>(prepack, w, static_cast<const uint8_t*>(zeros), w.zero_bytes(), kBits);
  });
}

}  // namespace encore::ops
