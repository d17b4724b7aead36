// RotaryEmbedding. A position out of range is never followed: it takes position 0 and is reported.
#include "ops/attention/rotary_embedding.h"

#include "device/divide.h"
#include "device/fault.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::FaultRef;
using device::Pack;

// An index turns a pack of pairs, or moves a pack of what is not turned.
template <class T>
struct Rotate {
  static constexpr int kPack = device::pack_size<T>();
  using Packed = Pack<T, kPack>;

  const T* x;
  T* y;
  const T *cos, *sin;
  const int64_t* position_ids;
  int64_t positions;
  Divider by_packs, by_inner, by_middle;  // of a head; then of the dimensions between batch and size
  int rows, size, half, turning_packs;
  bool flat, interleaved, aligned;
  FaultRef fault;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack, inner, middle;
    const int64_t head = by_packs(i, pack), batch = by_middle(by_inner(head, inner), middle);
    const T* const from = x + head * size;
    T* const to = y + head * size;
    if (pack >= turning_packs) {
      const int first = 2 * half + int(pack - turning_packs) * kPack, left = size - first;
      const int count = left < kPack ? left : kPack;
      device::store_pack(to + first, device::load_pack<kPack>(from + first, aligned, count), aligned, count);
      return;
    }
    const int64_t token = batch * rows + (flat ? middle : inner);
    int64_t position = token;
    if (position_ids) {
      position = position_ids[token];
      if (position < 0 || position >= positions) {
        fault.report(device::FaultKind::index_out_of_range, position, positions);
        position = 0;
      }
    }
    const int first = int(pack) * kPack, count = half - first < kPack ? half - first : kPack;
    const Packed c = device::load_pack<kPack>(cos + position * half + first, aligned, count),
                 s = device::load_pack<kPack>(sin + position * half + first, aligned, count);
    if (interleaved)
      turn_neighbours(from + 2 * first, to + 2 * first, c, s, count);
    else
      turn_halves(from + first, to + first, c, s, count);
  }

 private:
  DEVICE_FN static void turn(T& a, T& b, T c, T s) {
    const float real = float(a), imaginary = float(b), cosine = float(c), sine = float(s);
    a = T(cosine * real - sine * imaginary);
    b = T(sine * real + cosine * imaginary);
  }
  DEVICE_FN void turn_halves(const T* from, T* to, const Packed& c, const Packed& s, int count) const {
    Packed a = device::load_pack<kPack>(from, aligned, count),
           b = device::load_pack<kPack>(from + half, aligned, count);
    UNROLL for (int i = 0; i < kPack; ++i) turn(a.at[i], b.at[i], c.at[i], s.at[i]);
    device::store_pack(to, a, aligned, count);
    device::store_pack(to + half, b, aligned, count);
  }
  DEVICE_FN void turn_neighbours(const T* from, T* to, const Packed& c, const Packed& s, int count) const {
    const bool whole = aligned && count == kPack;
    Packed low, high;
    if (whole) {
      low = device::load_pack<kPack>(from, true);
      high = device::load_pack<kPack>(from + kPack, true);
      UNROLL for (int i = 0; i < kPack / 2; ++i) {
        turn(low.at[2 * i], low.at[2 * i + 1], c.at[i], s.at[i]);
        turn(high.at[2 * i], high.at[2 * i + 1], c.at[kPack / 2 + i], s.at[kPack / 2 + i]);
      }
      device::store_pack(to, low, true);
      device::store_pack(to + kPack, high, true);
      return;
    }
    UNROLL for (int i = 0; i < kPack; ++i) {
      if (i >= count) return;
      T a = from[2 * i], b = from[2 * i + 1];
      turn(a, b, c.at[i], s.at[i]);
      to[2 * i] = a;
      to[2 * i + 1] = b;
    }
  }
};

class RotaryEmbedding : public Op {
 public:
  explicit RotaryEmbedding(const NodeInfo& node)
      : interleaved_(node.get_int("interleaved", 0) == 1),
        turned_(node.get_int("rotary_embedding_dim", 0)),
        heads_(node.get_int("num_heads", 0)) {
    require(turned_ >= 0 && turned_ % 2 == 0, "rotary_embedding_dim is ", turned_,
            "; it must be even and not negative");
    require(heads_ >= 0, "num_heads is ", heads_, "; it cannot be negative");
    for (const int i : {1, 2})
      if (node.input_type(i) != node.input_type(0))
        fail(Code::not_supported, "X is ", device::name(node.input_type(0)), " and a cache is ",
             device::name(node.input_type(i)), "; they must be of one type");
    const auto x = node.input_dims(0);
    require(!x || x->size() == 4 || (x->size() == 3 && heads_ > 0), "X has rank ", x ? x->size() : 0,
            "; it must be 4, or 3 with num_heads");
  }

  void run(Context& context) const override {
    const Tensor &x = context.input(0), &cos = context.input(1), &sin = context.input(2);
    const Tensor* ids = context.input_count() > 3 ? context.find_input(3) : nullptr;
    const Shape& shape = x.shape;
    Rotation rotation;
    rotation.flat = shape.rank() == 3;
    require(shape.rank() == 4 || (rotation.flat && heads_ > 0), "X has shape ", shape.str(),
            "; it must have rank 4, or 3 with num_heads");
    rotation.batch = shape[0];
    rotation.rows = shape[rotation.flat ? 1 : 2];
    rotation.heads = rotation.flat ? heads_ : shape[1];
    require(!rotation.flat || shape[2] % heads_ == 0, "X ", shape.str(), " cannot be divided into ", heads_, " heads");
    rotation.size = rotation.flat ? shape[2] / heads_ : shape[3];
    rotation.turned = turned_ ? turned_ : rotation.size;
    require(rotation.turned <= rotation.size && rotation.turned % 2 == 0, rotation.turned,
            " values of a head are to be turned, in pairs; a head has ", rotation.size);
    const int64_t half = rotation.turned / 2;
    const Shape wanted =
        ids ? Shape{cos.shape.rank() == 2 ? cos.shape[0] : 0, half} : Shape{rotation.batch, rotation.rows, half};
    require(cos.shape == wanted && sin.shape == wanted, "cos_cache ", cos.shape.str(), " and sin_cache ",
            sin.shape.str(), " must be ", ids ? text("[positions, ", half, "]") : wanted.str());
    require(!ids || ids->shape == Shape{rotation.batch, rotation.rows}, "position_ids has shape ",
            ids ? ids->shape.str() : "", "; [", rotation.batch, ",", rotation.rows, "] is wanted");
    const Tensor y = context.output(0, shape);
    if (y.count() == 0) return;
    require(!ids || wanted[0] > 0, "the caches have no positions");
    rotation.type = x.type;
    rotation.x = x.data;
    rotation.y = y.data;
    rotation.interleaved = interleaved_;
    rotation.cos = cos.data;
    rotation.sin = sin.data;
    rotation.positions = ids ? wanted[0] : rotation.batch * rotation.rows;
    rotation.position_ids = ids ? ids->as<const int64_t>() : nullptr;
    rotate(context, rotation);
  }

 private:
  bool interleaved_;
  int64_t turned_, heads_;
};

}  // namespace

void rotate(Context& context, const Rotation& r) {
  dispatch(TypeList<float, Half, BFloat16>{}, r.type, [&]<class T> {
    constexpr int kPack = Rotate<T>::kPack;
    const int64_t half = r.turned / 2, turning = (half + kPack - 1) / kPack,
                  packs = turning + (r.size - r.turned + kPack - 1) / kPack;
    const int64_t count = checked_product(checked_product(checked_product(r.batch, r.heads), r.rows), packs);
    const bool aligned = half % kPack == 0 && r.size % kPack == 0 &&
                         device::is_pack_aligned<kPack>(static_cast<const T*>(r.x)) &&
                         device::is_pack_aligned<kPack>(static_cast<const T*>(r.y)) &&
                         device::is_pack_aligned<kPack>(static_cast<const T*>(r.cos)) &&
                         device::is_pack_aligned<kPack>(static_cast<const T*>(r.sin));
    device::for_each_index(
        context.stream(), count,
        Rotate<T>{static_cast<const T*>(r.x), static_cast<T*>(r.y), static_cast<const T*>(r.cos),
                  static_cast<const T*>(r.sin), r.position_ids, r.positions, Divider(packs, count),
                  Divider(r.flat ? r.heads : r.rows, count), Divider(r.flat ? r.rows : r.heads, count), int(r.rows),
                  int(r.size), int(half), int(turning), r.flat, r.interleaved, aligned, context.fault()});
  });
}

std::vector<OpRow> rotary_embedding_rows() {
  constexpr Types kTypes{Type::f32, Type::f16, Type::bf16};
  return {{.name = "RotaryEmbedding",
           .since = 23,
           .types = {in(0, kTypes), in(1, kTypes), in(2, kTypes), in(3, {Type::i64})},
           .make = make<RotaryEmbedding>,
           .may_reuse = {{0, 0}}}};
}

}  // namespace encore::ops
