// Products with weights quantized in blocks, and which of MatMulNBits' kernels makes one. A few rows are multiplied by
// codes as they are read (GEMV); for more, weights are dequantized first, and multiplied by the library.
#include <algorithm>

#include "device/divide.h"
#include "device/unaligned_pack.h"
#include "ops/dispatch.h"
#include "ops/elementwise/gate.h"
#include "ops/quantize/block_gemv.h"
#include "ops/quantize/block_weights.h"
#include "ops/quantize/weave.h"

namespace encore::ops {
namespace {

// Eight codes of a row, with what they have in common.
template <class T, int kBits>
struct CodesOfRow {
  static constexpr int kAtOnce = 4;
  struct Eight {
    uint32_t words[kBits == 8 ? 2 : 1];
    float scale, zero;
  };
  struct OfBlock {
    float scale, zero;
  };
  const uint8_t* codes;
  const T* scales;
  const uint8_t* zeros;
  bool packed_zeros, aligned;
  int block_shift;
  int64_t blocks, row_bytes, zero_bytes;

  DEVICE_FN OfBlock of_block(int64_t row, int64_t block) const {
    float zero = float(1 << (kBits - 1));
    if (packed_zeros)
      zero = float(code_at(zeros + row * zero_bytes, block, kBits));
    else if (zeros)
      zero = float(reinterpret_cast<const T*>(zeros)[row * blocks + block]);
    return {float(scales[row * blocks + block]), zero};
  }

  DEVICE_FN Eight load(int64_t row, int64_t at) const {
    Eight eight = {};
    const uint8_t* from = codes + row * row_bytes + at / 8 * kBits;
    if (aligned) {
      if constexpr (kBits == 2)
        eight.words[0] = *reinterpret_cast<const uint16_t*>(from);
      else
        UNROLL for (int i = 0; i < kBits / 4; ++i) eight.words[i] = reinterpret_cast<const uint32_t*>(from)[i];
    } else {
      UNROLL for (int i = 0; i < kBits; ++i) eight.words[i / 4] |= uint32_t(from[i]) << i % 4 * 8;
    }
    const OfBlock of = of_block(row, at >> block_shift);
    eight.scale = of.scale, eight.zero = of.zero;
    return eight;
  }
  DEVICE_FN float value(const Eight& eight, int i) const {
    const uint32_t code = eight.words[i * kBits / 32] >> (i * kBits % 32) & ((1u << kBits) - 1);
    return (whole(code) - eight.zero) * eight.scale;
  }
};

// The same where each place along the depth names its block.
template <class T>
struct GroupedCodes {
  static constexpr int kAtOnce = 1;  // of many loads each
  struct Eight {
    float values[8];
  };
  const uint8_t* codes;
  const T* scales;
  const uint8_t* zeros;
  const int32_t* groups;
  bool packed_zeros;
  int bits;
  int64_t depth, blocks, row_bytes, zero_bytes;
  device::FaultRef fault;

  DEVICE_FN Eight load(int64_t row, int64_t at) const {
    const uint32_t mask = (1u << bits) - 1;
    const int count = depth - at < 8 ? int(depth - at) : 8;
    const uint8_t* const from = codes + row * row_bytes + at / 8 * bits;
    uint64_t all = 0;
    UNROLL for (int i = 0; i < 8; ++i) {
      if (i < bits) all |= uint64_t(from[i]) << 8 * i;
    }
    int32_t group[8], wrong = 0;
    UNROLL for (int i = 0; i < 8; ++i) group[i] = i < count ? groups[at + i] : 0;
    UNROLL for (int i = 0; i < 8; ++i) {
      if (uint64_t(group[i]) < uint64_t(blocks)) continue;
      wrong = group[i];
      group[i] = 0;
    }
    if (wrong != 0) fault.report(device::FaultKind::index_out_of_range, wrong, blocks);
    float scale[8], zero[8];
    UNROLL for (int i = 0; i < 8; ++i) scale[i] = float(scales[row * blocks + group[i]]);
    if (packed_zeros) {
      UNROLL for (int i = 0; i < 8; ++i) zero[i] = float(code_at(zeros + row * zero_bytes, group[i], bits));
    } else if (zeros) {
      UNROLL for (int i = 0; i < 8; ++i) zero[i] = float(reinterpret_cast<const T*>(zeros)[row * blocks + group[i]]);
    } else {
      UNROLL for (int i = 0; i < 8; ++i) zero[i] = float(1 << (bits - 1));
    }
    Eight eight;
    UNROLL for (int i = 0; i < 8; ++i) eight.values[i] =
        i < count ? (float(uint32_t(all >> i * bits) & mask) - zero[i]) * scale[i] : 0.f;
    return eight;
  }
  DEVICE_FN float value(const Eight& eight, int i) const { return eight.values[i]; }
};

// The same of woven codes.
template <class T, int kBits>
struct WovenRows {
  using Form = Weave<kBits>;
  struct Eight {
    uint32_t words[kBits == 8 ? 2 : 1];
    int bit;  // of the first code
    float scale, zero;
  };
  const uint8_t* codes;
  CodesOfRow<T, kBits> shared;  // without codes
  int64_t units;

  DEVICE_FN Eight load(int64_t row, int64_t at) const {
    Eight eight = {};
    const auto place = Form::place(int(row % Form::kRows), int(at % Form::kUnit));
    const uint8_t* from = codes + (row / Form::kRows * units + at / Form::kUnit) * Form::kBytes + place.byte;
    UNROLL for (int i = 0; i < Form::kWords; ++i) eight.words[i] = reinterpret_cast<const uint32_t*>(from)[i];
    eight.bit = place.bit;
    const auto of_block = shared.of_block(row, at >> shared.block_shift);
    eight.scale = of_block.scale, eight.zero = of_block.zero;
    return eight;
  }
  DEVICE_FN float value(const Eight& eight, int i) const {
    const int code = i % Form::kInWord;
    const uint32_t bits = eight.words[i / Form::kInWord] >> (eight.bit + (code % 2 * Form::kPairs + code / 2) * kBits);
    return (whole(bits & ((1u << kBits) - 1)) - eight.zero) * eight.scale;
  }
};

template <class T, int kBits>
CodesOfRow<T, kBits> codes_of(const BlockCodes& w) {
  return {w.codes,
          static_cast<const T*>(w.scales),
          static_cast<const uint8_t*>(w.zeros),
          w.zeros && w.packed_zeros,
          reinterpret_cast<uintptr_t>(w.codes) % 4 == 0,
          w.block_shift,
          w.blocks,
          w.row_bytes(),
          w.zero_bytes()};
}

// Where what multiplies has no gate of its own.
template <class F>
void gate_after(Context& context, const BlockProduct& p, int64_t columns, F multiply_both) {
  const int64_t count = checked_product(p.count, columns);
  BlockProduct both = p;
  both.gated = false;
  both.y = context.scratch(size_t(checked_product(count, device::size_bytes(p.type))));
  multiply_both(both);
  gate_of_both(context.stream(), p.type, both.y, p.y, count / 2);
}

}  // namespace

void multiply(Context& context, const BlockProduct& p, const BlockCodes& w) {
  if (p.gated) return gate_after(context, p, w.rows, [&](const BlockProduct& both) { multiply(context, both, w); });
  dispatch(TypeList<float, Half, BFloat16>{}, p.type, [&]<class T> {
    if (w.groups)
      return multiply_rows<T>(
          context, p, w.rows, w.depth,
          GroupedCodes<T>{w.codes, static_cast<const T*>(w.scales), static_cast<const uint8_t*>(w.zeros), w.groups,
                          w.zeros && w.packed_zeros, w.bits, w.depth, w.blocks, w.row_bytes(), w.zero_bytes(),
                          context.fault()});
    for_bits(w.bits, [&]<int kBits> { multiply_rows<T>(context, p, w.rows, w.depth, codes_of<T, kBits>(w)); });
  });
}

void multiply(Context& context, const BlockProduct& p, const BlockCodes& w, const WovenCodes& woven) {
  if (multiply_nbits_gemv(context.stream(), p, w, woven)) return;
  if (p.gated)
    return gate_after(context, p, w.rows, [&](const BlockProduct& both) { multiply(context, both, w, woven); });
  if (multiply_nbits_tiles(context.stream(), p, w, woven)) return;
  dispatch(TypeList<Half, BFloat16>{}, p.type, [&]<class T> {
    for_bits(w.bits, [&]<int kBits> {
      multiply_by_library<T>(context, p, w.rows, w.depth,
                             WovenRows<T, kBits>{woven.codes, codes_of<T, kBits>(w), Weave<kBits>::units(w)});
    });
  });
}

}  // namespace encore::ops
