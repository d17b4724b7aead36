// OneHot, EyeLike and Trilu: elements that depend on where they are.
#include "device/divide.h"
#include "device/launch.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;

// Of any type: there are too many combinations with that of the values.
struct AnyIndices {
  const void* data;
  Type type;
  DEVICE_FN int64_t operator()(int64_t i) const {
    switch (type) {
      case Type::i64: return at<int64_t>(i);
      case Type::i32: return at<int32_t>(i);
      case Type::i16: return at<int16_t>(i);
      case Type::i8: return at<int8_t>(i);
      case Type::u64: return at<uint64_t>(i) > uint64_t(INT64_MAX) ? INT64_MIN : int64_t(at<uint64_t>(i));
      case Type::u32: return at<uint32_t>(i);
      case Type::u16: return at<uint16_t>(i);
      case Type::u8: return at<uint8_t>(i);
      case Type::f64: return truncated(at<double>(i));
      case Type::f32: return truncated(at<float>(i));
      case Type::f16: return truncated(float(at<Half>(i)));
      default: return truncated(float(at<BFloat16>(i)));
    }
  }

 private:
  template <class T>
  DEVICE_FN T at(int64_t i) const {
    return static_cast<const T*>(data)[i];
  }
  // What no index can be, such as NaN, is one that is nowhere.
  DEVICE_FN static int64_t truncated(double value) {
    return value > -9e18 && value < 9e18 ? int64_t(value) : INT64_MIN;
  }
};

// out[i] = f(i), written in packs.
template <class T, class F>
struct ByPlace {
  static constexpr int kPack = device::pack_size<T>();
  int64_t count;
  T* out;
  F f;
  bool aligned;
  DEVICE_FN void operator()(int64_t pack) const {
    const int64_t first = pack * kPack;
    const int some = count - first < kPack ? int(count - first) : kPack;
    device::Pack<T, kPack> values;
    UNROLL for (int i = 0; i < kPack; ++i) values.at[i] = f(first + (i < some ? i : 0));
    device::store_pack(out + first, values, aligned, some);
  }
};
template <class T, class F>
void fill_by_place(StreamRef stream, int64_t count, T* out, const F& f) {
  constexpr int kPack = ByPlace<T, F>::kPack;
  device::for_each_index(stream, (count + kPack - 1) / kPack,
                         ByPlace<T, F>{count, out, f, device::is_pack_aligned<kPack>(out)});
}

template <class T>
struct MarkIndices {
  AnyIndices indices;
  T off, on;
  int64_t depth, inner;
  Divider by_inner, by_depth;
  DEVICE_FN T operator()(int64_t i) const {
    int64_t column, j;
    const int64_t outer = by_depth(by_inner(i, column), j);
    const int64_t index = indices(outer * inner + column);
    return index == j || (index < 0 && index >= -depth && index + depth == j) ? on : off;
  }
};

class OneHot : public Op {
 public:
  explicit OneHot(const NodeInfo& node) : axis_(node.get_int("axis", -1)) {}
  void run(Context& context) const override {
    const Tensor &indices = context.input(0), &values = context.input(2);
    const int axis = checked_axis(axis_, indices.shape.rank() + 1);
    const int64_t depth = told_depth(context.input(1));
    require(values.count() == 2, "values has shape ", values.shape.str(), "; it must be two, off and on");
    std::vector<int64_t> dims(indices.shape.dims().begin(), indices.shape.dims().end());
    dims.insert(dims.begin() + axis, depth);
    const Tensor out = context.output(0, Shape(dims));
    if (out.count() == 0) return;
    const int64_t inner = indices.shape.count(axis, indices.shape.rank());
    dispatch_size(device::size_bytes(values.type), [&]<class T>() {
      if constexpr (sizeof(T) <= 8) {
        const T* const both = values.as<const T>();
        fill_by_place(context.stream(), out.count(), out.as<T>(),
                      MarkIndices<T>{{indices.data, indices.type},
                                     both[0],
                                     both[1],
                                     depth,
                                     inner,
                                     Divider(inner, out.count()),
                                     Divider(depth, out.count())});
      }
    });
  }

 private:
  static int64_t told_depth(const Tensor& given) {
    require(given.count() == 1, "depth has ", given.count(), " values; it must have one");
    int64_t depth = 0;
    dispatch(NumberList{}, given.type, [&]<class T>() {
      const T told = *given.as<const T>();
      if constexpr (std::is_integral_v<T>) {
        require(told > 0 && uint64_t(told) <= uint64_t(INT64_MAX), "depth is ", told, "; it must be positive");
        depth = int64_t(told);
      } else {
        const double wide = double(device::Compute<T>(told));
        require(wide >= 1 && wide < 9e18, "depth is ", wide, "; it must be positive");
        depth = int64_t(wide);
      }
    });
    return depth;
  }

  int64_t axis_;
};

template <class T>
struct Eye {
  T one;
  int64_t k;
  Divider by_columns;
  DEVICE_FN T operator()(int64_t i) const {
    int64_t column;
    const int64_t row = by_columns(i, column);
    return column - row == k ? one : T(0);
  }
};

uint64_t one_of(Type type) {
  switch (type) {
    case Type::f32: return 0x3f800000;
    case Type::f64: return 0x3ff0000000000000;
    case Type::f16: return 0x3c00;
    case Type::bf16: return 0x3f80;
    default: return 1;
  }
}

class EyeLike : public Op {
 public:
  explicit EyeLike(const NodeInfo& node) : k_(node.get_int("k", 0)) {}
  void run(Context& context) const override {
    const Tensor& like = context.input(0);
    require(like.shape.rank() == 2, "the input has shape ", like.shape.str(), "; it must be a matrix");
    const Tensor out = context.output(0, like.shape);
    if (out.count() == 0) return;
    dispatch_size(device::size_bytes(out.type), [&]<class T>() {
      if constexpr (sizeof(T) <= 8)
        fill_by_place(context.stream(), out.count(), out.as<T>(),
                      Eye<T>{T(one_of(out.type)), k_, Divider(like.shape[1], out.count())});
    });
  }

 private:
  int64_t k_;
};

// In packs, which may go on in the next row.
template <class T>
struct KeepTriangle {
  static constexpr int kPack = device::pack_size<T>();
  int64_t count;
  const T* in;
  T* out;
  bool upper, aligned;
  int64_t k, rows;
  Divider by_columns, by_rows;
  DEVICE_FN void operator()(int64_t pack) const {
    const int64_t first = pack * kPack, columns = by_columns.divisor();
    const int some = count - first < kPack ? int(count - first) : kPack;
    int64_t column, row;
    by_rows(by_columns(first, column), row);
    device::Pack<T, kPack> values = device::load_pack<kPack>(in + first, aligned, some);
    UNROLL for (int i = 0; i < kPack; ++i) {
      const int64_t diagonal = column - row;
      if (!(upper ? diagonal >= k : diagonal <= k)) values.at[i] = T(0);
      if (++column == columns) {
        column = 0;
        if (++row == rows) row = 0;
      }
    }
    device::store_pack(out + first, values, aligned, some);
  }
};

class Trilu : public Op {
 public:
  explicit Trilu(const NodeInfo& node) : upper_(node.get_int("upper", 1) != 0) {}
  void run(Context& context) const override {
    const Tensor& in = context.input(0);
    const int rank = in.shape.rank();
    require(rank >= 2, "the input has shape ", in.shape.str(), "; it must have two dimensions or more");
    int64_t k = 0;
    if (const Tensor* given = context.find_input(1)) {
      require(given->count() == 1, "k has ", given->count(), " values; it must have one");
      k = host_ints(*given, "k")[0];
    }
    const Tensor out = context.output(0, in.shape);
    const int64_t count = out.count();
    if (count == 0) return;
    dispatch_size(device::size_bytes(in.type), [&]<class T>() {
      if constexpr (sizeof(T) <= 8) {
        using Kernel = KeepTriangle<T>;
        const T* const from = in.as<const T>();
        T* const to = out.as<T>();
        const bool aligned = device::is_pack_aligned<Kernel::kPack>(from) && device::is_pack_aligned<Kernel::kPack>(to);
        device::for_each_index(context.stream(), (count + Kernel::kPack - 1) / Kernel::kPack,
                               Kernel{count, from, to, upper_, aligned, k, in.shape[rank - 2],
                                      Divider(in.shape[rank - 1], count), Divider(in.shape[rank - 2], count)});
      }
    });
  }

 private:
  bool upper_;
};

}  // namespace

std::vector<OpRow> diagonal_rows() {
  const auto trilu = [](const char* domain, int since) {
    return OpRow{.domain = domain,
                 .name = "Trilu",
                 .since = since,
                 .types = {in(0, kNumbers | kBool)},
                 .make = make<Trilu>,
                 .host_inputs = {1},
                 .may_reuse = {{0, 0}}};
  };
  return {
      {.name = "OneHot",
       .since = 9,
       .types = {in(0, kNumbers), in(1, kNumbers), in(2, kNumbers | kBool)},
       .make = make<OneHot>,
       .host_inputs = {1, 2}},
      {.name = "EyeLike",
       .since = 9,
       .types = {in(0, kNumbers | kBool), out(0, kNumbers | kBool)},
       .make = make<EyeLike>},
      trilu(kOnnx, 14),
      trilu(kMicrosoft, 1),
  };
}

}  // namespace encore::ops
