#include "ops/attention/inputs/key_mask.h"

#include <algorithm>
#include <limits>

#include "device/divide.h"
#include "device/half.h"
#include "device/transform.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::Pack;

// Where a mask's row of a batch and a query is; or, with `ends`, the range of keys.
struct KeyMask {
  const int32_t *rows = nullptr, *ends = nullptr, *starts = nullptr;
  int64_t batch = 0, query = 0;
  bool of_queries = false;
};

template <class T>
constexpr float kLowest = std::numeric_limits<float>::lowest();
template <>
constexpr float kLowest<Half> = -65504;
template <>
constexpr float kLowest<BFloat16> = -3.3895313892515355e38f;

// The mask and the bias as what is added to scores; an index makes a pack of keys.
template <class T>
struct MakeAddend {
  static constexpr int kPack = device::pack_size<T>();
  KeyMask mask;
  const T* bias;
  int64_t bias_batch, bias_head, bias_query;
  T* y;
  Divider by_packs, by_queries, by_heads;
  int keys;
  float filter;
  bool aligned;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack, query, head;
    const int64_t row = by_packs(i, pack), batch = by_heads(by_queries(row, query), head);
    const int first = int(pack) * kPack, count = keys - first < kPack ? keys - first : kPack;
    float sums[kPack];
    if (bias) {
      const auto given = device::load_pack<kPack>(
          bias + batch * bias_batch + head * bias_head + query * bias_query + first, aligned, count);
      UNROLL for (int j = 0; j < kPack; ++j) sums[j] = float(given.at[j]);
    } else {
      UNROLL for (int j = 0; j < kPack; ++j) sums[j] = 0;
    }
    if (mask.ends) {
      const int begin = mask.starts ? mask.starts[batch] : 0, end = mask.ends[batch];
      UNROLL for (int j = 0; j < kPack; ++j) add(sums[j], first + j >= begin && first + j < end);
    } else {
      const int32_t* const from = mask.rows + batch * mask.batch + query * mask.query + first;
      UNROLL for (int j = 0; j < kPack; j += 4) {
        if (j >= count) break;
        const auto seen = device::load_pack<4>(from + j, aligned, count - j < 4 ? count - j : 4);
        UNROLL for (int n = 0; n < 4; ++n) add(sums[j + n], seen.at[n] != 0);
      }
    }
    Pack<T, kPack> made;
    UNROLL for (int j = 0; j < kPack; ++j) made.at[j] = T(sums[j]);
    device::store_pack(y + row * keys + first, made, aligned, count);
  }

 private:
  // The sum stays finite, unless it was not: what is masked is not unseen.
  DEVICE_FN void add(float& sum, bool seen) const {
    if (seen || sum == -std::numeric_limits<float>::infinity()) return;
    sum += filter;
    if (sum < kLowest<T>) sum = kLowest<T>;
  }
};

struct MakeLengths {
  const int32_t* given;
  int64_t* lengths;
  int64_t keys;
  DEVICE_FN void operator()(int64_t i) const {
    const int64_t length = given[i];
    lengths[i] = length <= 0 || length > keys ? keys : length;
  }
};

KeyMask read(const Attend& p, const Tensor& tensor) {
  const Shape& shape = tensor.shape;
  const auto* const data = tensor.as<const int32_t>();
  const int64_t batch = p.batch, keys = p.keys;
  KeyMask mask;
  if (shape == Shape{batch} || shape == Shape{3 * batch + 2}) {
    mask.ends = data;
  } else if (shape == Shape{2 * batch}) {
    mask.ends = data;
    mask.starts = data + batch;
  } else if (shape == Shape{batch, keys}) {
    mask.rows = data;
    mask.batch = keys;
  } else if (shape == Shape{batch, p.queries, keys}) {
    mask.rows = data;
    mask.batch = p.queries * keys;
    mask.query = keys;
    mask.of_queries = true;
  } else if (shape.rank() == 4 && shape[0] == batch && shape[1] == 1 && shape[2] == shape[3] && shape[3] >= keys &&
             keys >= p.queries) {
    mask.rows = data + (keys - p.queries) * shape[3];
    mask.batch = shape.count(1, 4);
    mask.query = shape[3];
    mask.of_queries = true;
  } else {
    require(shape.rank() == 2 && shape[1] == 1 && (shape[0] == batch || shape[0] == 1), "the mask has shape ",
            shape.str(), ", which is none of [", batch, "], [", 2 * batch, "], [", 3 * batch + 2, "], [", batch, ",",
            keys, "], [", batch, ",", p.queries, ",", keys, "] and [", batch, ",1,most,most] with most at least ",
            keys);
  }
  return mask;
}

void set_bias(AttentionMask& mask, const Attend& p, const Tensor& bias) {
  const Shape& shape = bias.shape;
  require(shape.rank() == 4 && (shape[0] == p.batch || shape[0] == 1) && (shape[1] == p.heads || shape[1] == 1) &&
              (shape[2] == p.queries || shape[2] == 1) && shape[3] == p.keys,
          "attention_bias has shape ", shape.str(), "; [", p.batch, " or 1,", p.heads, " or 1,", p.queries, " or 1,",
          p.keys, "] is wanted");
  mask.data = bias.data;
  mask.keys = p.keys;
  mask.key = 1;
  mask.query = shape[2] == 1 ? 0 : p.keys;
  mask.head = shape[1] == 1 ? 0 : shape[2] * p.keys;
  mask.batch = shape[0] == 1 ? 0 : shape[1] * shape[2] * p.keys;
}

template <class T>
void combine(Context& context, Attend& p, const KeyMask& mask, float filter) {
  using Kernel = MakeAddend<T>;
  constexpr int kPack = Kernel::kPack;
  const AttentionMask bias = p.mask;
  const int64_t heads = bias.head ? p.heads : 1, queries = mask.of_queries || bias.data ? p.queries : 1;
  const int64_t rows = checked_product(checked_product(p.batch, heads), queries);
  T* const y = static_cast<T*>(context.scratch(size_t(checked_product(rows, p.keys)) * sizeof(T)));
  const int64_t packs = (p.keys + kPack - 1) / kPack, count = checked_product(rows, packs);
  const bool aligned = p.keys % kPack == 0 && mask.batch % 4 == 0 && mask.query % 4 == 0 &&
                       (!mask.rows || device::is_pack_aligned<4>(mask.rows)) &&
                       (!bias.data || device::is_pack_aligned<kPack>(static_cast<const T*>(bias.data)));
  device::for_each_index(
      context.stream(), count,
      Kernel{mask, static_cast<const T*>(bias.data), bias.batch, bias.head, bias.query, y, Divider(packs, count),
             Divider(queries, count), Divider(heads, count), int(p.keys), std::max(filter, kLowest<T>), aligned});
  p.mask = {};
  p.mask.data = y;
  p.mask.keys = p.keys;
  p.mask.key = 1;
  p.mask.query = queries > 1 ? p.keys : 0;
  p.mask.head = heads > 1 ? queries * p.keys : 0;
  p.mask.batch = heads * queries * p.keys;
}

}  // namespace

void add_masks(Context& context, Attend& p, const Tensor* mask, const Tensor* bias, float filter) {
  check_sizes(p);
  if (bias) set_bias(p.mask, p, *bias);
  if (!mask) return;
  const KeyMask read_mask = read(p, *mask);
  if ((!read_mask.ends && !read_mask.rows) || p.batch == 0 || p.queries == 0 || p.keys == 0 || p.heads == 0) return;
  // As much as is usual: then no key beyond the end has any weight.
  constexpr float kEnough = -1e4f;
  if (read_mask.ends && !read_mask.starts && filter <= kEnough && !p.scores.data) {
    auto* const lengths = static_cast<int64_t*>(context.scratch(size_t(p.batch) * sizeof(int64_t)));
    device::for_each_index(context.stream(), p.batch, MakeLengths{read_mask.ends, lengths, p.keys});
    p.visible.lengths = lengths;
    return;
  }
  dispatch(TypeList<float, Half, BFloat16>{}, p.type, [&]<class T> { combine<T>(context, p, read_mask, filter); });
}

}  // namespace encore::ops
