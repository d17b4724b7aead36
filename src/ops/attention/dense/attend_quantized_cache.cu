// Attention over quantized KV caches: few rows read the codes as they are, for others they are dequantized first.
//
// Codes become values of 16 bits, which hold them all exactly. Their scales belong to a channel, so that queries take
// those of the keys and sums those of the values.
#include "device/byte_codes.h"
#include "device/divide.h"
#include "ops/attention/dense/dense_rows.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::Pack;

template <class T>
struct Integers8 {
  using Eight = Pack<uint32_t, 2>;
  static constexpr int kBytes = 8;
  DEVICE_FN static Words words(const Eight& eight) { return device::eight_integers<T>(eight); }
};

template <class T>
struct Integers4 {
  using Eight = Pack<uint32_t, 1>;
  static constexpr int kBytes = 4;
  DEVICE_FN static Words words(const Eight& eight) { return device::eight_nibbles<T>(eight); }
};

template <class T>
struct Floats8 {
  using Eight = Pack<uint32_t, 2>;
  static constexpr int kBytes = 8;
  DEVICE_FN static Words words(const Eight& eight) { return device::eight_floats<T>(eight); }
};

// Queries take the scales of keys, and sums those of values.
template <class T, class Codes>
struct CodedRows : DenseRows<T, 8, uint8_t> {
  using Base = DenseRows<T, 8, uint8_t>;
  using typename Base::Tile;
  using Raw = typename Codes::Eight;

  CacheQuantization k_codes, v_codes;

  DEVICE_FN static Raw load(const uint8_t* row, int column) {
    return *reinterpret_cast<const Raw*>(row + column / 8 * Codes::kBytes);
  }
  DEVICE_FN static Words words(const Raw& raw) { return Codes::words(raw); }
  DEVICE_FN Words q(const Tile& tile, int row, int column) const {
    auto eight = device::pack_of<T>(Base::q(tile, row, column));
    UNROLL for (int i = 0; i < 8; ++i) {
      eight.at[i] = T(float(eight.at[i]) * k_codes.scale(tile.kv_head, column + i));
    }
    return device::words_of(eight);
  }
  DEVICE_FN float finished(const Tile& tile, float value, int column) const {
    return value * v_codes.scale(tile.kv_head, column);
  }
};

template <class T, int kChunks>
void run(Context& context, const Attend& p) {
  const auto launch = [&]<class Codes> {
    using Rows = CodedRows<T, Codes>;
    launch_dense<T, kChunks, 1, uint8_t>(context, p, [&](const typename Rows::Base& rows) {
      return Rows{rows, p.k_codes, p.v_codes};
    });
  };
  switch (p.k_codes.kind) {
    case CodeKind::i8: return launch.template operator()<Integers8<T>>();
    case CodeKind::i4: return launch.template operator()<Integers4<T>>();
    default: return launch.template operator()<Floats8<T>>();
  }
}

// An index decodes eight values of a key and of a value, of the rows that a batch has.
template <class T>
struct Decode {
  VisibleKeysView<T> visible;
  HeadView<const uint8_t> from[2];
  T* to[2];  // [batch, head, row, size]
  CacheQuantization codes[2];
  Divider by_groups, by_rows, by_heads;
  int size;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t group, row, head;
    const int64_t batch = by_heads(by_rows(by_groups(i, group), row), head);
    if (row >= visible.length(batch)) return;
    const int first = int(group) * 8, left = size - first < 8 ? size - first : 8;
    UNROLL for (int which = 0; which < 2; ++which) {
      const CacheQuantization& scaled = codes[which];
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

bool suits_quantized_cache(const Attend& p) {
  constexpr int kMostBytes = 8;  // that are read at once
  const auto aligned = [&](const HeadRows& rows) {
    const int64_t bytes = p.k_codes.kind == CodeKind::i4 ? kMostBytes / 2 : kMostBytes;
    return reinterpret_cast<uintptr_t>(rows.data) % size_t(bytes) == 0 && rows.batch % bytes == 0 &&
           rows.head % bytes == 0 && rows.row % bytes == 0;
  };
  return has_few_rows(p) && fits_grouped_decode_but_keys(p) && p.value_size % 8 == 0 && aligned(p.k) && aligned(p.v);
}

void attend_quantized_cache(Context& context, const Attend& problem) {
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

Attend dequantized_cache(Context& context, const Attend& p) {
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
                           Decode<T>{VisibleKeysView<T>(p, context.fault()),
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
