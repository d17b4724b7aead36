// com.microsoft's GemmaRotaryEmbedding: x cos + x' sin of queries and keys, where x' is given. An index has a pack of a
// token's angles for some of its heads.
#include <cmath>

#include "device/divide.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::Pack;

constexpr int kHeads = 4;  // that share the cosines and sines

struct GemmaRotate {
  static constexpr int kPack = device::pack_size<Half>();
  using Packed = Pack<Half, kPack>;

  const float* angles;          // [batch, row, size]
  const Half *x[2], *other[2];  // of queries and keys: [batch, head, row, size]
  Half* y[2];
  int heads, parts;  // and in how many parts of kHeads these are
  Divider by_packs, by_rows, by_parts;
  int size;
  bool aligned;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack, row, part;
    const int64_t batch = by_parts(by_rows(by_packs(i, pack), row), part), rows = by_rows.divisor();
    const int which = part < parts ? 0 : 1, first_head = int(part - (which ? parts : 0)) * kHeads;
    const int first = int(pack) * kPack, count = size - first < kPack ? size - first : kPack;
    const float* const from = angles + (batch * rows + row) * size + first;
    float cosine[kPack], sine[kPack];
    UNROLL for (int j = 0; j < kPack; ++j) {
      const float angle = from[j < count ? j : 0];
      cosine[j] = float(Half(std::cos(angle)));
      sine[j] = float(Half(std::sin(angle)));
    }
    for (int head = first_head; head < first_head + kHeads && head < heads; ++head) {
      const int64_t at = ((batch * heads + head) * rows + row) * size + first;
      Packed packed = device::load_pack<kPack>(x[which] + at, aligned, count);
      const Packed rotated = device::load_pack<kPack>(other[which] + at, aligned, count);
      UNROLL for (int j = 0; j < kPack; ++j) packed.at[j] =
          Half(float(packed.at[j]) * cosine[j] + float(rotated.at[j]) * sine[j]);
      device::store_pack(y[which] + at, packed, aligned, count);
    }
  }
};

class GemmaRotaryEmbedding : public Op {
 public:
  explicit GemmaRotaryEmbedding(const NodeInfo&) {}

  void run(Context& context) const override {
    constexpr int kPack = GemmaRotate::kPack;
    const Tensor& angles = context.input(0);
    require(angles.shape.rank() == 3, "emb has shape ", angles.shape.str(), "; it must have rank 3");
    const int64_t batch = angles.shape[0], rows = angles.shape[1], size = angles.shape[2];
    const Shape& shape = context.input(1).shape;
    require(shape.rank() == 4 && shape == Shape{batch, shape[1], rows, size}, "q ", shape.str(), " must be [", batch,
            ",heads,", rows, ",", size, "]");
    require(shape[1] < kIntCap && size < kIntCap, "q ", shape.str(), " is more than there are kernels for");
    GemmaRotate kernel{};
    kernel.angles = angles.as<const float>();
    kernel.heads = int(shape[1]);
    kernel.parts = (kernel.heads + kHeads - 1) / kHeads;
    kernel.size = int(size);
    kernel.aligned = size % kPack == 0;
    for (int i = 0; i < 2; ++i) {
      const Tensor &x = context.input(1 + 2 * i), &other = context.input(2 + 2 * i);
      require(x.shape == shape && other.shape == shape, i ? "k " : "q ", x.shape.str(), " and what is rotated of it ",
              other.shape.str(), " must be ", shape.str());
      kernel.x[i] = x.as<const Half>();
      kernel.other[i] = other.as<const Half>();
      kernel.y[i] = context.output(i, shape).as<Half>();
      kernel.aligned = kernel.aligned && device::is_pack_aligned<kPack>(kernel.x[i]) &&
                       device::is_pack_aligned<kPack>(kernel.other[i]) && device::is_pack_aligned<kPack>(kernel.y[i]);
    }
    if (shape.count() == 0) return;
    const int64_t packs = (size + kPack - 1) / kPack, parts = 2 * int64_t(kernel.parts);
    const int64_t count = checked_product(checked_product(checked_product(batch, parts), rows), packs);
    kernel.by_packs = Divider(packs, count);
    kernel.by_rows = Divider(rows, count);
    kernel.by_parts = Divider(parts, count);
    device::for_each_index(context.stream(), count, kernel);
  }
};

}  // namespace

std::vector<OpRow> gemma_rotary_embedding_rows() {
  const Types half{Type::f16};
  return {{.domain = kMicrosoft,
           .name = "GemmaRotaryEmbedding",
           .since = 1,
           .types = {in(0, {Type::f32}), in(1, half), in(2, half), in(3, half), in(4, half)},
           .make = make<GemmaRotaryEmbedding>,
           .may_reuse = {{1, 0}, {3, 1}}}};
}

}  // namespace encore::ops
