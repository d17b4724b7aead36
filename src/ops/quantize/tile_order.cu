// QuantizeWithOrder, DequantizeWithOrder, and the elementwise and row-wise operators on matrices in such orders.
#include "ops/quantize/tile_order.h"

#include <algorithm>
#include <cmath>

#include "device/divide.h"
#include "device/launch.h"
#include "device/transform.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::Pack;

float host_scale(Context& context, int input, const char* what) {
  const Tensor& scale = context.input(input);
  require(scale.count() == 1, what, " has ", scale.count(), " values; it must have one");
  return *scale.as<const float>();
}

struct ToInt8 {
  float inverse;
  DEVICE_FN int8_t operator()(float x) const { return to_int8(x * inverse); }
  DEVICE_FN int8_t operator()(Half x) const { return to_int8(float(x) * inverse); }
};
struct FromInt8 {
  float scale;
  DEVICE_FN float operator()(int8_t x) const { return scale * float(x); }
};
struct Same {
  DEVICE_FN int8_t operator()(int8_t x) const { return x; }
};

// From one order to another; a thread moves kPack neighbours of a row.
template <class In, class Out, int kPack, class F>
struct Reorder {
  const In* x;
  Out* y;
  TileOrderPlace from, to;
  Divider packs, rows;  // of a row; of a matrix
  F f;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack, row;
    const int64_t matrix = rows(packs(i, pack), row), base = matrix * from.rows * from.columns;
    const In* const in = x + base + from(row, pack * kPack);
    Out* const out = y + base + to(row, pack * kPack);
    const auto values = device::load_pack<kPack>(in, device::is_pack_aligned<kPack>(in));
    Pack<Out, kPack> made;
    UNROLL for (int k = 0; k < kPack; ++k) made.at[k] = Out(f(values.at[k]));
    device::store_pack(out, made, device::is_pack_aligned<kPack>(out));
  }
};

template <class In, class Out, class F>
void reorder(StreamRef stream, const TileOrderShape& shape, TileOrder in, TileOrder out, const In* x, Out* y, F f) {
  const int64_t count = shape.batch * shape.rows * shape.columns;
  if (in == out) return device::transform(stream, count, y, f, x);
  const TileOrderPlace from{in, shape.rows, shape.columns}, to{out, shape.rows, shape.columns};
  const auto launch = [&]<int kPack> {
    device::for_each_index(stream, count / kPack,
                           Reorder<In, Out, kPack, F>{x, y, from, to, Divider(shape.columns / kPack, count),
                                                      Divider(shape.rows, count), f});
  };
  if (in == TileOrder::columns || out == TileOrder::columns)
    launch.template operator()<1>();
  else
    launch.template operator()<4>();  // which all the others have side by side
}

class QuantizeWithOrder : public Op {
 public:
  explicit QuantizeWithOrder(const NodeInfo& node)
      : in_(tile_order_of(node, "order_input", TileOrder::rows)),
        out_(tile_order_of(node, "order_output", TileOrder::rows)) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const TileOrderShape shape(x.shape);
    check_tile_order(in_, shape.rows, shape.columns, "the input");
    check_tile_order(out_, shape.rows, shape.columns, "the output");
    const ToInt8 f{1.f / host_scale(context, 1, "scale_input")};
    const Tensor y = context.output(0, x.shape);
    if (y.count() == 0) return;
    dispatch(TypeList<float, Half>{}, x.type,
             [&]<class T> { reorder(context.stream(), shape, in_, out_, x.as<const T>(), y.as<int8_t>(), f); });
  }

 private:
  TileOrder in_, out_;
};

class DequantizeWithOrder : public Op {
 public:
  explicit DequantizeWithOrder(const NodeInfo& node)
      : in_(tile_order_of(node, "order_input", TileOrder::rows)),
        out_(tile_order_of(node, "order_output", TileOrder::rows)) {
    const int64_t to = node.get_int("to", 0);
    constexpr int64_t kFloat = 1, kFloat16 = 10;  // as ONNX numbers types
    require(to == kFloat || to == kFloat16, "to is ", to, "; it must be 1, float, or 10, float16");
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const TileOrderShape shape(x.shape);
    check_tile_order(in_, shape.rows, shape.columns, "the input");
    check_tile_order(out_, shape.rows, shape.columns, "the output");
    const FromInt8 f{host_scale(context, 1, "scale_input")};
    const Tensor y = context.output(0, x.shape);
    if (y.count() == 0) return;
    dispatch(TypeList<float, Half>{}, y.type,
             [&]<class T> { reorder(context.stream(), shape, in_, out_, x.as<const int8_t>(), y.as<T>(), f); });
  }

 private:
  TileOrder in_, out_;
};

// y = table[x], of a table that every block makes anew.
struct GeluByTable {
  static constexpr int kThreads = 256, kPack = 16, kPacks = 4;  // packs of a thread
  static constexpr int kMaxThreads = kThreads;
  struct Shared {
    int8_t table[256];
  };
  const int8_t* x;
  int8_t* y;
  int64_t count;
  float scale, inverse;
  bool aligned;

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    b.threads([&](int t, Shared& s) {
      const float value = scale * float(t - 128);
      s.table[t] = to_int8(inverse * (value * 0.5f * (1.f + erff(value * 0.70710678118654752f))));
    });
    b.threads([&](int t, Shared& s) {
      const int64_t begin = (b.index() * kPacks * kThreads + t) * kPack;
      Pack<int8_t, kPack> packs[kPacks];
      UNROLL for (int p = 0; p < kPacks; ++p) {
        const int64_t first = begin + int64_t(p) * kThreads * kPack, left = count - first;
        if (left > 0) packs[p] = device::load_pack<kPack>(x + first, aligned, left < kPack ? int(left) : kPack);
      }
      UNROLL for (int p = 0; p < kPacks; ++p) {
        const int64_t first = begin + int64_t(p) * kThreads * kPack, left = count - first;
        if (left <= 0) continue;
        UNROLL for (int k = 0; k < kPack; ++k) packs[p].at[k] = s.table[int(packs[p].at[k]) + 128];
        device::store_pack(y + first, packs[p], aligned, left < kPack ? int(left) : kPack);
      }
    });
  }
};

class QOrderedGelu : public Op {
 public:
  explicit QOrderedGelu(const NodeInfo& node) {
    const TileOrder x = tile_order_of(node, "order_X", TileOrder::rows);
    require(tile_order_of(node, "order_Y", x) == x, "order_Y is another one than order_X");
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const float scale = host_scale(context, 1, "scale_X"), inverse = 1.f / host_scale(context, 2, "scale_Y");
    const Tensor y = context.output(0, x.shape);
    using Kernel = GeluByTable;
    const int64_t each = int64_t(Kernel::kThreads) * Kernel::kPack * Kernel::kPacks, count = x.count();
    const bool aligned = device::is_pack_aligned<Kernel::kPack>(x.as<const int8_t>()) &&
                         device::is_pack_aligned<Kernel::kPack>(y.as<int8_t>());
    device::block_kernel<Kernel::Shared>(context.stream(), {(count + each - 1) / each, Kernel::kThreads},
                                         Kernel{x.as<const int8_t>(), y.as<int8_t>(), count, scale, inverse, aligned});
  }
};

// A block for each row; sums of integers are exact.
template <class T>
struct NormInt8 {
  static constexpr int kPack = 4, kMaxThreads = 512;
  struct Sums {
    int64_t sum, squares;
  };
  const int8_t* x;
  const T *gamma, *beta;  // beta may be null
  int8_t* y;
  int64_t width;
  float scale, inverse, epsilon;

  DEVICE_FN void operator()(device::Block<device::NoShared>& b, const device::NoShared&) const {
    const int8_t* const row = x + b.index() * width;
    int8_t* const to = y + b.index() * width;
    const bool aligned = device::is_pack_aligned<kPack>(row) && device::is_pack_aligned<kPack>(to);
    const auto each = [&](int t, auto f) {
      for (int64_t first = int64_t(t) * kPack; first < width; first += int64_t(b.size()) * kPack) {
        const int count = width - first < kPack ? int(width - first) : kPack;
        f(first, count, device::load_pack<kPack>(row + first, aligned, count));
      }
    };
    const Sums sums = b.reduce(
        Sums{0, 0},
        [&](int t) {
          Sums all{0, 0};
          each(t, [&](int64_t, int count, const Pack<int8_t, kPack>& pack) {
            int sum = 0, squares = 0;
            UNROLL for (int k = 0; k < kPack; ++k) {
              const int value = k < count ? int(pack.at[k]) : 0;
              sum += value;
              squares += value * value;
            }
            all.sum += sum, all.squares += squares;
          });
          return all;
        },
        [](const Sums& a, const Sums& c) {
          return Sums{a.sum + c.sum, a.squares + c.squares};
        });
    const double mean = double(sums.sum) / double(width);
    const double variance = double(sums.squares) / double(width) - mean * mean;
    const float middle = float(mean * double(scale));
    const float factor = 1.f / sqrtf(float(double(scale) * double(scale) * variance) + epsilon);
    b.threads([&](int t, device::NoShared&) {
      each(t, [&](int64_t first, int count, const Pack<int8_t, kPack>& pack) {
        Pack<int8_t, kPack> made;
        UNROLL for (int k = 0; k < kPack; ++k) {
          const int64_t at = first + (k < count ? k : 0);
          float value = (scale * float(pack.at[k]) - middle) * factor * float(gamma[at]);
          if (beta) value += float(beta[at]);
          made.at[k] = to_int8(value * inverse);
        }
        device::store_pack(to + first, made, aligned, count);
      });
    });
  }
};

class QOrderedLayerNormalization : public Op {
 public:
  explicit QOrderedLayerNormalization(const NodeInfo& node)
      : axis_(node.get_int("axis", -1)), epsilon_(node.get_float("epsilon", 1e-5f)) {
    for (const char* attribute : {"order_X", "order_Y"})
      if (tile_order_of(node, attribute, TileOrder::rows) != TileOrder::rows)
        fail(Code::not_supported, attribute, " must be 1, row after row");
  }
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &gamma = context.input(2);
    const Tensor* const beta = context.find_input(3);
    const int rank = x.shape.rank(), axis = checked_axis(axis_, rank);
    const int64_t rows = x.shape.count(0, axis), width = x.shape.count(axis, rank);
    for (const Tensor* parameter : {&gamma, beta})
      require(!parameter || (parameter->count() == width && parameter->type == gamma.type),
              "scale or B has another type or count than the ", width, " of a row");
    const float scale = host_scale(context, 1, "scale_X"), inverse = 1.f / host_scale(context, 4, "scale_Y");
    const Tensor y = context.output(0, x.shape);
    if (y.count() == 0) return;
    dispatch(TypeList<float, Half>{}, gamma.type, [&]<class T> {
      using Kernel = NormInt8<T>;
      const int64_t packs = (width + Kernel::kPack - 1) / Kernel::kPack;
      const int threads = int(std::min<int64_t>((packs + 31) / 32 * 32, Kernel::kMaxThreads));
      device::block_kernel<device::NoShared>(
          context.stream(), {rows, threads},
          Kernel{x.as<const int8_t>(), gamma.as<const T>(), beta ? beta->as<const T>() : nullptr, y.as<int8_t>(), width,
                 scale, inverse, epsilon_});
    });
  }

 private:
  int64_t axis_;
  float epsilon_;
};

}  // namespace

TileOrder tile_order_of(const NodeInfo& node, const char* attribute, TileOrder otherwise) {
  return read_choice<TileOrder>(node, attribute, int64_t(otherwise),
                                {{0, TileOrder::columns},
                                 {1, TileOrder::rows},
                                 {2, TileOrder::col32},
                                 {3, TileOrder::col4_4r2_8c},
                                 {4, TileOrder::col32_2r_4r4}});
}

void check_tile_order(TileOrder order, int64_t rows, int64_t columns, const char* what) {
  if (order == TileOrder::rows || order == TileOrder::columns) return;
  const int64_t tile = order == TileOrder::col4_4r2_8c ? 8 : order == TileOrder::col32_2r_4r4 ? 32 : 1;
  require(columns % 32 == 0 && rows % tile == 0, what, "'s matrices of ", rows, " x ", columns,
          " do not fill the tiles of order ", int(order), ", of ", tile, " x 32");
}

TileOrderShape::TileOrderShape(const Shape& shape) {
  const int rank = shape.rank();
  columns = rank ? shape[rank - 1] : 1;
  rows = rank > 1 ? shape[rank - 2] : 1;
  batch = rank > 2 ? shape.count(0, rank - 2) : 1;
}

void to_rows(StreamRef stream, TileOrder order, int64_t batch, int64_t rows, int64_t columns, const int8_t* from,
             int8_t* to) {
  TileOrderShape shape(Shape{batch, rows, columns});
  reorder(stream, shape, order, TileOrder::rows, from, to, Same{});
}

std::vector<OpRow> tile_order_rows() {
  const Types floats{Type::f32, Type::f16}, whole{Type::i8}, scale{Type::f32};
  return {{.domain = kMicrosoft,
           .name = "QuantizeWithOrder",
           .since = 1,
           .types = {in(0, floats), in(1, scale)},
           .make = make<QuantizeWithOrder>,
           .host_inputs = {1}},
          {.domain = kMicrosoft,
           .name = "DequantizeWithOrder",
           .since = 1,
           .types = {in(0, whole), in(1, scale), out(0, floats)},
           .make = make<DequantizeWithOrder>,
           .host_inputs = {1}},
          {.domain = kMicrosoft,
           .name = "QOrderedGelu",
           .since = 1,
           .types = {in(0, whole), in(1, scale), in(2, scale)},
           .make = make<QOrderedGelu>,
           .host_inputs = {1, 2}},
          {.domain = kMicrosoft,
           .name = "QOrderedLayerNormalization",
           .since = 1,
           .types = {in(0, whole), in(1, scale), in(2, floats), in(4, scale)},
           .make = make<QOrderedLayerNormalization>,
           .host_inputs = {1, 4}}};
}

}  // namespace encore::ops
