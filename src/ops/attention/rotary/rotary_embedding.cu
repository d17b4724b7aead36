// RotaryEmbedding. A position out of range is never followed: it takes position 0 and is reported.
#include "ops/attention/rotary/rotary_embedding.h"

#include "device/divide.h"
#include "device/fault.h"
#include "ops/attention/rotary/pairs.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::FaultRef;

// An index rotates a pack of pairs, or moves a pack of what is not rotated.
// kStreams: at one of several positions.
template <class T, bool kStreams>
struct Rotate {
  static constexpr int kPack = device::pack_size<T>();
  using Packed = device::Pack<T, kPack>;

  const T* x;
  T* y;
  const T *cos, *sin;
  const int64_t* position_ids;
  int64_t positions, tokens;
  Divider by_packs, by_inner, by_middle;  // of a head; then of the dimensions between batch and size
  int rows;
  bool flat, one_id;
  PairLayout layout;
  PositionStreams streams;
  FaultRef fault;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack, inner, middle;
    const int64_t head = by_packs(i, pack), batch = by_middle(by_inner(head, inner), middle);
    const T* const from = x + head * layout.size;
    T* const to = y + head * layout.size;
    if (pack >= layout.rotated_packs) {
      const int first = 2 * layout.half + int(pack - layout.rotated_packs) * kPack, left = layout.size - first;
      const int count = left < kPack ? left : kPack;
      device::store_pack(to + first, device::load_pack<kPack>(from + first, layout.aligned, count), layout.aligned,
                         count);
      return;
    }
    const int64_t row = flat ? middle : inner, token = batch * rows + row;
    const int first = int(pack) * kPack, count = layout.half - first < kPack ? layout.half - first : kPack;
    Packed cosines, sines;
    if constexpr (kStreams) {
      int64_t position[3];
      UNROLL for (int i = 0; i < 3; ++i) position[i] = checked(position_ids[i * tokens + token]);
      cosines = at_streams(cos, position, first, count);
      sines = at_streams(sin, position, first, count);
    } else {
      const int64_t position =
          position_ids ? checked(one_id ? following(position_ids[0], row) : position_ids[token]) : token;
      cosines = at_position(cos, position, first, count);
      sines = at_position(sin, position, first, count);
    }
    if (layout.interleaved)
      rotate<true>(from, to, first, count, cosines, sines);
    else
      rotate<false>(from, to, first, count, cosines, sines);
  }

 private:
  template <bool kNeighbours>
  DEVICE_FN void rotate(const T* from, T* to, int first, int count, const Packed& cosines, const Packed& sines) const {
    auto pairs = Pairs<T, kNeighbours>::load(from, layout, first, count);
    pairs.rotate(cosines, sines);
    pairs.store(to, layout, first, count);
  }
  DEVICE_FN static int64_t following(int64_t first, int64_t row) { return int64_t(uint64_t(first) + uint64_t(row)); }
  DEVICE_FN int64_t checked(int64_t position) const {
    if (position >= 0 && position < positions) return position;
    fault.report(device::FaultKind::index_out_of_range, position, positions);
    return 0;
  }
  // Of the pairs `first` to first + count - 1 at one position, or each at that of its stream.
  DEVICE_FN Packed at_position(const T* table, int64_t position, int first, int count) const {
    return device::load_pack<kPack>(table + position * layout.half + first, layout.aligned, count);
  }
  DEVICE_FN Packed at_streams(const T* table, const int64_t (&position)[3], int first, int count) const {
    Packed all[3], packed;
    UNROLL for (int i = 0; i < 3; ++i) all[i] = at_position(table, position[i], first, count);
    UNROLL for (int i = 0; i < kPack; ++i) {
      const int stream = streams.of(first + i);
      const T value = stream == 0 ? all[0].at[i] : stream == 1 ? all[1].at[i] : all[2].at[i];
      packed.at[i] = T(float(value) * streams.scale);
    }
    return packed;
  }
};

class RotaryEmbedding : public Op {
 public:
  explicit RotaryEmbedding(const NodeInfo& node) : attributes_(node, 1) {
    const auto x = node.input_dims(0);
    require(!x || x->size() == 4 || (x->size() == 3 && attributes_.heads > 0), "X has rank ", x ? x->size() : 0,
            "; it must be 4, or 3 with num_heads");
  }

  void run(Context& context) const override {
    const Tensor &x = context.input(0), &cos = context.input(1), &sin = context.input(2);
    const Tensor* ids = context.find_input(3);
    const Shape& shape = x.shape;
    const auto& [interleaved, rotated, heads] = attributes_;
    Rotation rotation;
    rotation.flat = shape.rank() == 3;
    require(shape.rank() == 4 || (rotation.flat && heads > 0), "X has shape ", shape.str(),
            "; it must have rank 4, or 3 with num_heads");
    rotation.batch = shape[0];
    rotation.rows = shape[rotation.flat ? 1 : 2];
    rotation.heads = rotation.flat ? heads : shape[1];
    require(!rotation.flat || shape[2] % heads == 0, "X ", shape.str(), " cannot be divided into ", heads, " heads");
    rotation.size = rotation.flat ? shape[2] / heads : shape[3];
    rotation.rotated = rotated ? rotated : rotation.size;
    require(rotation.rotated <= rotation.size && rotation.rotated % 2 == 0, rotation.rotated,
            " values of a head are to be rotated, in pairs; a head has ", rotation.size);
    const int64_t half = rotation.rotated / 2;
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
    rotation.interleaved = interleaved;
    rotation.cos = cos.data;
    rotation.sin = sin.data;
    rotation.positions = ids ? wanted[0] : rotation.batch * rotation.rows;
    rotation.position_ids = ids ? ids->as<const int64_t>() : nullptr;
    rotate(context, rotation);
  }

 private:
  RotaryAttributes attributes_;
};

}  // namespace

RotaryAttributes::RotaryAttributes(const NodeInfo& node, int cos_cache)
    : interleaved(node.get_int("interleaved", 0) == 1),
      rotated(node.get_int("rotary_embedding_dim", 0)),
      heads(node.get_int("num_heads", 0)) {
  require(rotated >= 0 && rotated % 2 == 0, "rotary_embedding_dim is ", rotated, "; it must be even and not negative");
  require(heads >= 0, "num_heads is ", heads, "; it cannot be negative");
  for (const int i : {cos_cache, cos_cache + 1})
    if (node.input_type(i) != node.input_type(0))
      fail(Code::not_supported, "the input is ", device::name(node.input_type(0)), " and a cache is ",
           device::name(node.input_type(i)), "; they must be of one type");
}

void rotate(Context& context, const Rotation& r) {
  require(r.size < kIntCap && r.rows < kIntCap, "rotations of ", r.rows, " rows and heads of ", r.size,
          " are more than there are kernels for");
  dispatch(TypeList<float, Half, BFloat16>{}, r.type, [&]<class T> {
    constexpr int kPack = device::pack_size<T>();
    PairLayout layout;
    layout.size = int(r.size);
    layout.half = int(r.rotated / 2);
    layout.rotated_packs = (layout.half + kPack - 1) / kPack;
    layout.interleaved = r.interleaved;
    layout.aligned = layout.half % kPack == 0 && layout.size % kPack == 0 &&
                     device::is_pack_aligned<kPack>(static_cast<const T*>(r.x)) &&
                     device::is_pack_aligned<kPack>(static_cast<const T*>(r.y)) &&
                     device::is_pack_aligned<kPack>(static_cast<const T*>(r.cos)) &&
                     device::is_pack_aligned<kPack>(static_cast<const T*>(r.sin));
    const int64_t packs = layout.rotated_packs + (r.size - r.rotated + kPack - 1) / kPack;
    const int64_t count = checked_product(checked_product(checked_product(r.batch, r.heads), r.rows), packs);
    const auto launch = [&]<bool kStreams> {
      device::for_each_index(
          context.stream(), count,
          Rotate<T, kStreams>{static_cast<const T*>(r.x), static_cast<T*>(r.y), static_cast<const T*>(r.cos),
                              static_cast<const T*>(r.sin), r.position_ids, r.positions, r.batch * r.rows,
                              Divider(packs, count), Divider(r.flat ? r.heads : r.rows, count),
                              Divider(r.flat ? r.rows : r.heads, count), int(r.rows), r.flat, r.one_id, layout,
                              r.streams, context.fault()});
    };
    r.streams.count > 1 ? launch.template operator()<true>() : launch.template operator()<false>();
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
