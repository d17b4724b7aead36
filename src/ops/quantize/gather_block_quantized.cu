// com.microsoft's GatherBlockQuantized: rows of a quantized table, as an embedding has them. An index that points
// nowhere gives zeros.
#include <algorithm>
#include <bit>

#include "device/divide.h"
#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/elementwise/any_type.h"
#include "ops/index/indices.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;

constexpr Types kQuantizedFloats = kFloat8 | Types{Type::f4e2m1};

// Where the scale and the zero point of an element of the table lie.
struct BlockGrid {
  static constexpr int kMostAxes = 8;
  struct Axis {
    Divider size, block;  // block: 1 but for the quantized axis
    int64_t scale_step, zero_step;
  };
  struct Place {
    int64_t scale, zero;
  };
  Axis axes[kMostAxes];  // innermost first
  int rank = 0;

  DEVICE_FN Place operator()(int64_t element) const {
    Place place = {};
    for (int i = 0; i < rank; ++i) {
      int64_t at, rest;
      element = axes[i].size(element, at);
      at = axes[i].block(at, rest);
      place.scale += at * axes[i].scale_step;
      place.zero += at * axes[i].zero_step;
    }
    return place;
  }
};

// out[outer, j, inner] = table[outer, indices[j], inner], kCount neighbours of one block at once.
template <class T, int kCount>
struct GatherDequantized {
  AnyInput table, scales, zeros;  // zeros.data: null if there are none
  int32_t zero;                   // for all, then
  bool from_floats;
  T* out;
  Indices indices;
  int64_t dim, inner;
  Divider by_inner, by_indices;
  BlockGrid grid;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t column, j;
    const int64_t outer = by_indices(by_inner(i * kCount, column), j);
    device::Pack<T, kCount> made;
    UNROLL for (int e = 0; e < kCount; ++e) made.at[e] = T(0.f);
    const int64_t index = indices[j];
    if (index >= -dim && index < dim) {
      const int64_t from = (outer * dim + (index < 0 ? index + dim : index)) * inner + column;
      const auto place = grid(from);
      const float scale = scales.floats<1>(place.scale).at[0];
      if (from_floats) {
        const auto values = table.floats<kCount>(from);
        UNROLL for (int e = 0; e < kCount; ++e) made.at[e] = T(values.at[e] * scale);
      } else {
        const auto values = table.integers<int32_t, kCount>(from);
        const int32_t less = zeros.data ? zeros.integers<int32_t, 1>(place.zero).at[0] : zero;
        UNROLL for (int e = 0; e < kCount; ++e) made.at[e] = T(float(values.at[e] - less) * scale);
      }
    }
    constexpr int kPack = std::min(kCount, device::pack_size<T>());
    UNROLL for (int first = 0; first < kCount; first += kPack) {
      device::Pack<T, kPack> pack;
      UNROLL for (int e = 0; e < kPack; ++e) pack.at[e] = made.at[first + e];
      *reinterpret_cast<device::Pack<T, kPack>*>(out + i * kCount + first) = pack;
    }
  }
};

class GatherBlockQuantized : public Op {
 public:
  explicit GatherBlockQuantized(const NodeInfo& node)
      : gather_axis_(node.get_int("gather_axis", 0)),
        quantize_axis_(node.get_int("quantize_axis", 1)),
        block_(node.get_int("block_size", 128)),
        bits_(node.get_int("bits", 4)) {
    const Type type = node.input_type(0);
    const bool floats = kQuantizedFloats.has(type);
    require((floats && block_ == 0) || (block_ >= 16 && std::has_single_bit(uint64_t(block_))), "block_size is ",
            block_, "; it must be a power of two, and at least 16");
    if (floats) {
      require(!node.has_input(3), "there are zero_points, but ", device::name(type), " has none");
    } else if (type == Type::u8) {
      require(bits_ == 2 || bits_ == 4 || bits_ == 8, "bits is ", bits_, "; of uint8 it must be 2, 4 or 8");
    } else {
      require(bits_ == 4, "bits is ", bits_, "; of ", device::name(type), " it must be 4");
    }
    if (node.has_input(3))
      require(node.input_type(3) == type, "zero_points are ", device::name(node.input_type(3)), ", data is ",
              device::name(type));
  }

  void run(Context& context) const override {
    const Tensor &data = context.input(0), &indices = context.input(1), &scales = context.input(2);
    const Tensor* zeros = context.find_input(3);
    const int rank = data.shape.rank();
    const int gathered = checked_axis(gather_axis_, rank, "gather_axis"),
              quantized = checked_axis(quantize_axis_, rank, "quantize_axis");
    Type type = data.type;
    Shape table = data.shape;  // of elements, several of which may be in a byte
    const bool bytes = type == Type::u8;
    if (bytes) {
      require(gathered == 0 && quantized == rank - 1 && rank > 1, "data of uint8 and shape ", data.shape.str(),
              " must be gathered along its first axis and quantized along its last, not ", gathered, " and ",
              quantized);
      table = table.with(rank - 1, checked_product(table.back(), 8 / bits_));
      type = bits_ == 2 ? Type::u2 : bits_ == 4 ? Type::u4 : Type::u8;
    }
    std::vector<int64_t> dims(table.dims().begin(), table.dims().begin() + gathered);
    dims.insert(dims.end(), indices.shape.dims().begin(), indices.shape.dims().end());
    dims.insert(dims.end(), table.dims().begin() + gathered + 1, table.dims().end());
    const Tensor out = context.output(0, Shape(dims));
    const int64_t block = block_ ? block_ : std::max<int64_t>(table[quantized], 1);
    const BlockGrid grid = grid_of(table, scales, zeros, quantized, block, bytes ? 8 / bits_ : 1);
    if (out.count() == 0) return;

    const int64_t dim = table[gathered], inner = table.count(gathered + 1, rank);
    const AnyInput codes(data.data, type);
    const bool at_once = codes.aligned && reinterpret_cast<uintptr_t>(out.data) % 16 == 0 && gathered < rank - 1 &&
                         quantized == rank - 1 && table.back() % 8 == 0;
    dispatch(TypeList<float, Half, BFloat16>{}, out.type, [&]<class T> {
      const auto launch = [&]<int kCount> {
        device::for_each_index(
            context.stream(), out.count() / kCount,
            GatherDequantized<T, kCount>{codes, AnyInput(scales.data, scales.type),
                                         AnyInput(zeros ? zeros->data : nullptr, type), bytes ? 1 << (bits_ - 1) : 0,
                                         kQuantizedFloats.has(type), out.as<T>(), indices_of(indices), dim, inner,
                                         Divider(inner, out.count()), Divider(indices.count(), out.count()), grid});
      };
      if (at_once)
        launch.template operator()<8>();
      else
        launch.template operator()<1>();
    });
  }

 private:
  // `in_byte`: zero points of a row's blocks that are in one.
  static BlockGrid grid_of(const Shape& table, const Tensor& scales, const Tensor* zeros, int quantized, int64_t block,
                           int64_t in_byte) {
    const int rank = table.rank();
    const int64_t blocks = (table[quantized] + block - 1) / block;
    const Shape wanted = table.with(quantized, blocks);
    const bool may_repeat = !zeros && scales.shape.rank() == rank;
    for (int i = 0; i < rank; ++i)
      require(scales.shape.rank() == rank &&
                  (scales.shape[i] == wanted[i] || (may_repeat && i != quantized && scales.shape[i] == 1)),
              "scales have shape ", scales.shape.str(), "; blocks of ", block, " along dimension ", quantized,
              " of a table ", table.str(), " want ", wanted.str());
    const int64_t bytes = (blocks + in_byte - 1) / in_byte;
    if (zeros)
      require(zeros->shape == wanted.with(quantized, bytes), "zero_points have shape ", zeros->shape.str(), ", not ",
              wanted.with(quantized, bytes).str());
    BlockGrid grid;
    if (table.count() == 0) return grid;
    int64_t scale_step = 1, zero_step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      const int64_t step = scales.shape[i] == 1 ? 0 : scale_step;
      const bool here = i == quantized;
      scale_step *= scales.shape[i];
      const int64_t zero = zero_step;
      zero_step *= here ? bytes * in_byte : wanted[i];
      if (table[i] == 1) continue;
      // Neighbours along which both go on are one axis.
      if (grid.rank > 0 && !here && i + 1 != quantized) {
        auto& last = grid.axes[grid.rank - 1];
        const int64_t size = last.size.divisor();
        if (step == last.scale_step * size && (!zeros || zero == last.zero_step * size)) {
          last.size = Divider(size * table[i], table.count());
          last.block = Divider(1, size * table[i]);
          continue;
        }
      }
      if (grid.rank == BlockGrid::kMostAxes)
        fail(Code::not_supported, "scales of shape ", scales.shape.str(), " for a table ", table.str(),
             " are repeated along too many axes");
      grid.axes[grid.rank++] = {Divider(table[i], table.count()), Divider(here ? block : 1, table[i]), step, zero};
    }
    return grid;
  }

  int64_t gather_axis_, quantize_axis_, block_, bits_;
};

}  // namespace

std::vector<OpRow> gather_block_quantized_rows() {
  const Types integers{Type::i4, Type::u4, Type::u8}, floats{Type::f32, Type::f16, Type::bf16};
  return {{.domain = kMicrosoft,
           .name = "GatherBlockQuantized",
           .since = 1,
           .until = 1,
           .types = {in(0, integers | kQuantizedFloats), in(1, kIndices), in(2, floats), in(3, integers)},
           .make = make<GatherBlockQuantized>}};
}

}  // namespace encore::ops
