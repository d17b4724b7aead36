// What is given to QMoE in other forms than its kernels want: scales of another type, and weights that were packed for
// kernels of another kind, as models for GPUs have them, which are brought back to rows.
//
// There, the depth's places within each 32 (of eight bits: 16) are dealt out to lanes' pairs; words of 32 bits of 64
// places of four neighbouring rows (of two) follow each other; and a word has its even places before its odd ones (of
// eight bits: its middle two exchanged).
#include "ops/moe/experts.h"

namespace encore::ops {
namespace {

// An index makes a byte.
template <int kBits>
struct Unpack {
  static constexpr int kInWord = 32 / kBits, kTurn = kBits == 4 ? 32 : 16, kTogether = kBits == 4 ? 4 : 2;
  static constexpr int kSpan = 64 / kInWord;  // words of 64 places
  const uint8_t* packed;
  uint8_t* plain;
  int64_t rows, depth;

  DEVICE_FN void operator()(int64_t i) const {
    const int64_t row_bytes = depth * kBits / 8, row = i / row_bytes, byte = i % row_bytes;
    uint32_t made = 0;
    UNROLL for (int j = 0; j < 8 / kBits; ++j) made |= find(row / rows, row % rows, byte * (8 / kBits) + j)
                                                       << kBits * j;
    plain[i] = uint8_t(made);
  }

 private:
  DEVICE_FN uint32_t find(int64_t expert, int64_t row, int64_t k) const {
    const int within = int(k % kTurn);
    const int64_t place = k - within + within % 8 / 2 * (kTurn / 4) + within / 8 * 2 + within % 2;
    const int64_t words = depth / kInWord, word = place / kInWord, span = word / kSpan;
    const int64_t at = (expert * rows + row / kTogether * kTogether) * words + span * kSpan * kTogether +
                       row % kTogether * kSpan + word % kSpan;
    const int slot = int(place % kInWord);
    const int moved = kBits == 4 ? slot / 2 + slot % 2 * 4 : slot % 2 * 2 + slot / 2;
    const int bit = moved * kBits;
    return uint32_t(packed[at * 4 + bit / 8] >> bit % 8) & ((1u << kBits) - 1);
  }
};

template <class T>
struct To {
  template <class S>
  DEVICE_FN T operator()(S x) const {
    return T(float(x));
  }
};

}  // namespace

void convert_scales(StreamRef stream, const Tensor& x, Type type, void* y) {
  using Floats = TypeList<float, Half, BFloat16>;
  dispatch(Floats{}, type, [&]<class T> {
    dispatch(Floats{}, x.type,
             [&]<class S> { device::transform(stream, x.count(), static_cast<T*>(y), To<T>(), x.as<const S>()); });
  });
}

void unpack_interleaved(StreamRef stream, const uint8_t* packed, uint8_t* plain, int bits, int64_t experts,
                        int64_t rows, int64_t depth) {
  const int64_t bytes = checked_product(checked_product(experts, rows), depth * bits / 8);
  if (bits == 4)
    device::for_each_index(stream, bytes, Unpack<4>{packed, plain, rows, depth});
  else
    device::for_each_index(stream, bytes, Unpack<8>{packed, plain, rows, depth});
}

}  // namespace encore::ops
