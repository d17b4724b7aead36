// Attention over caches of codes: few rows read them as they are, for others they are decoded first.
//
// Codes become values of 16 bits, which hold them all exactly. Their scales belong to a channel, so that queries take
// those of the keys and sums those of the values.
#include "device/byte_codes.h"
#include "device/divide.h"
#include "ops/attention/attend_group.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::Pack;
using group::Words;

template <class T>
struct Integers8 {
  using Unit = uint8_t;
  using Eight = Pack<uint32_t, 2>;
  static constexpr int kUnits = 8;
  static constexpr bool kScales = true;

  DEVICE_FN static Words words(const Eight& eight) {
    Words all;
    UNROLL for (int i = 0; i < 2; ++i) {
      all.at[2 * i] = device::pair_of_integers<T, 0>(eight.at[i]);
      all.at[2 * i + 1] = device::pair_of_integers<T, 1>(eight.at[i]);
    }
    return all;
  }
};

template <class T>
struct Integers4 {
  using Unit = uint8_t;
  using Eight = Pack<uint32_t, 1>;
  static constexpr int kUnits = 4;
  static constexpr bool kScales = true;

  DEVICE_FN static Words words(const Eight& eight) {
    const device::PairedCodes<T, 4> codes(8);
    const uint32_t word = eight.at[0], a = codes.template pair<0>(word), b = codes.template pair<1>(word),
                   c = codes.template pair<2>(word), d = codes.template pair<3>(word);
    return {device::low_halves(a, b), device::low_halves(c, d), device::high_halves(a, b), device::high_halves(c, d)};
  }
};

template <class T>
struct Floats8 {
  using Unit = uint8_t;
  using Eight = Pack<uint32_t, 2>;
  static constexpr int kUnits = 8;
  static constexpr bool kScales = true;

  DEVICE_FN static Words words(const Eight& eight) {
    Words all;
    UNROLL for (int i = 0; i < 2; ++i) {
      all.at[2 * i] = device::pair_of_floats<T, 0>(eight.at[i]);
      all.at[2 * i + 1] = device::pair_of_floats<T, 1>(eight.at[i]);
    }
    return all;
  }
};

template <class T, int kChunks>
void run(Context& context, const Attend& p) {
  switch (p.k_codes.kind) {
    case CodeKind::i8: return group::run<T, kChunks, 1, Integers8<T>>(context, p);
    case CodeKind::i4: return group::run<T, kChunks, 1, Integers4<T>>(context, p);
    default: return group::run<T, kChunks, 1, Floats8<T>>(context, p);
  }
}

// An index decodes eight values of a key and of a value, of the rows that a batch has.
template <class T>
struct Decode {
  SightView<T> sight;
  HeadView<const uint8_t> from[2];
  T* to[2];  // [batch, head, row, size]
  CacheCodes codes[2];
  Divider by_groups, by_rows, by_heads;
  int size;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t group, row, head;
    const int64_t batch = by_heads(by_rows(by_groups(i, group), row), head);
    if (row >= sight.length(batch)) return;
    const int first = int(group) * 8, left = size - first < 8 ? size - first : 8;
    UNROLL for (int which = 0; which < 2; ++which) {
      const CacheCodes& scaled = codes[which];
      const uint8_t* const row_of = from[which].at(batch, head, row);
      T* const values = to[which] + ((batch * by_heads.divisor() + head) * by_rows.divisor() + row) * size;
      UNROLL for (int j = 0; j < 8; ++j) {
        if (j >= left) break;
        const int at = first + j;
        const uint32_t code = scaled.kind == CodeKind::i4 ? row_of[at / 2] >> at % 2 * 4 & 15 : row_of[at];
        values[at] = T(value_of(scaled.kind, code) * scaled.scale(head, at));
      }
    }
  }
};

}  // namespace

bool suits_group_of_codes(const Attend& p) {
  constexpr int kMostBytes = 8;  // that are read at once
  const auto aligned = [&](const HeadRows& rows) {
    const int64_t bytes = p.k_codes.kind == CodeKind::i4 ? kMostBytes / 2 : kMostBytes;
    return reinterpret_cast<uintptr_t>(rows.data) % size_t(bytes) == 0 && rows.batch % bytes == 0 &&
           rows.head % bytes == 0 && rows.row % bytes == 0;
  };
  return group::suits(p) && group::fits(p) && p.value_size % 8 == 0 && aligned(p.k) && aligned(p.v);
}

void attend_group_of_codes(Context& context, const Attend& problem) {
  dispatch(TypeList<Half, BFloat16>{}, problem.type, [&]<class T> {
    const int64_t size = std::max(problem.head_size, problem.value_size);
    if (size <= 64)
      run<T, 2>(context, problem);
    else if (size <= 128)
      run<T, 4>(context, problem);
    else
      run<T, 8>(context, problem);
  });
}

Attend decoded(Context& context, const Attend& p) {
  require(p.value_size == p.head_size, "values of ", p.value_size, " codes beside keys of ", p.head_size);
  const int64_t size = p.head_size, heads = checked_product(p.batch, p.kv_heads), rows = checked_product(heads, p.keys);
  const int64_t groups = (size + 7) / 8, count = checked_product(rows, groups);
  Attend plain = p;
  plain.k_codes = plain.v_codes = {};
  plain.k = plain.v = {nullptr, p.kv_heads * p.keys * size, p.keys * size, size};
  dispatch(TypeList<float, Half, BFloat16>{}, p.type, [&]<class T> {
    T* to[2];
    for (T*& values : to)
      values = static_cast<T*>(context.scratch(device::size_bytes(p.type, checked_product(rows, size))));
    plain.k.data = to[0], plain.v.data = to[1];
    device::for_each_index(context.stream(), count,
                           Decode<T>{SightView<T>(p, context.fault()),
                                     {p.k, p.v},
                                     {to[0], to[1]},
                                     {p.k_codes, p.v_codes},
                                     Divider(groups, count),
                                     Divider(p.keys, rows),
                                     Divider(p.kv_heads, heads),
                                     int(size)});
  });
  return plain;
}

}  // namespace encore::ops
