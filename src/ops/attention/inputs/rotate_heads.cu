#include "ops/attention/inputs/rotate_heads.h"

#include <cmath>

#include "device/divide.h"
#include "device/launch.h"
#include "ops/attention/dense/attend_view.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Divider;

template <class T>
struct RotateHeads {
  HeadView<T> q, k;
  int64_t rotates;  // of q; as many follow for k
  Divider by_pairs, by_heads, by_rows;
  int half, first;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t pair, head, row;
    const bool of_k = i >= rotates;
    const int64_t batch = by_rows(by_heads(by_pairs(of_k ? i - rotates : i, pair), head), row);
    T* const at = (of_k ? k : q).at(batch, head, row) + pair;
    constexpr float kLogBase = 13.287712379549449f;  // of 10000, to base 2
    const float angle = float(first + int(row)) * std::exp2(-kLogBase * float(int(pair)) / float(half));
    const float cosine = std::cos(angle), sine = std::sin(angle), a = float(at[0]), b = float(at[half]);
    at[0] = T(a * cosine - b * sine);
    at[half] = T(b * cosine + a * sine);
  }
};

}  // namespace

void rotate_heads(Context& context, Type type, const Heads& q, const Heads& k, int64_t rotated, int64_t first) {
  const int64_t half = rotated / 2;
  const int64_t rotates = checked_product(checked_product(q.batch, q.heads), checked_product(q.rows, half));
  dispatch(TypeList<float, Half, BFloat16>{}, type, [&]<class T> {
    device::for_each_index(context.stream(), 2 * rotates,
                           RotateHeads<T>{q.view, k.view, rotates, Divider(half, rotates), Divider(q.heads, rotates),
                                          Divider(q.rows, rotates), int(half), int(first)});
  });
}

}  // namespace encore::ops
