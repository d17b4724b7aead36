// ScatterND, ScatterElements and Scatter. An index out of range writes nothing and is reported. Which of several
// updates of one element stays without a reduction is open, as in ONNX.
#include "device/atomic.h"
#include "device/divide.h"
#include "device/launch.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/index/indices.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

using device::Divider;

enum class Reduction { none, add, mul, max, min };

Reduction reduction_of(const NodeInfo& node) {
  return read_choice<Reduction>(node, "reduction", "none",
                                {{"none", Reduction::none},
                                 {"add", Reduction::add},
                                 {"mul", Reduction::mul},
                                 {"max", Reduction::max},
                                 {"min", Reduction::min}});
}

// Integers wrap around; of booleans `add` is or, `mul` is and; max and min hand NaN on.
template <class T>
struct Reduce {
  Reduction how;
  DEVICE_FN void operator()(T* to, T update) const {
    if constexpr (sizeof(T) >= 4) {
      if (how == Reduction::add) {
        device::atomic_add(to, update);
        return;
      }
    }
    device::atomic_update(to, [this, update](T held) { return joined(held, update); });
  }

 private:
  DEVICE_FN T joined(T a, T b) const {
    if constexpr (std::is_same_v<T, bool>) {
      return how == Reduction::add || how == Reduction::max ? a || b : a && b;
    } else if constexpr (std::is_integral_v<T>) {
      using Wide = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
      switch (how) {
        case Reduction::add: return T(Wide(a) + Wide(b));
        case Reduction::mul: return T(Wide(a) * Wide(b));
        case Reduction::max: return a > b ? a : b;
        default: return a < b ? a : b;
      }
    } else {
      using C = device::Compute<T>;
      const C x = C(a), y = C(b);
      switch (how) {
        case Reduction::add: return T(x + y);
        case Reduction::mul: return T(x * y);
        case Reduction::max: return x != x || x > y ? a : b;
        default: return x != x || x < y ? a : b;
      }
    }
  }
};
template <class T>
struct Replace {
  DEVICE_FN void operator()(T* to, T update) const { *to = update; }
};

// out[indices[slice, :], inner] = updates[slice, inner]
template <class T, class Write>
struct ScatterSlices {
  T* out;
  const T* updates;
  PickedSlices picked;
  Divider by_inner;
  Write write;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t column;
    const int64_t at = picked(by_inner(i, column));
    if (at >= 0) write(out + at + column, updates[i]);
  }
};

// out[i0, .., indices[i0, .., i_axis, ..], ..] = updates[i0, .., i_axis, ..]
template <class T, class Write>
struct ScatterOne {
  T* out;
  const T* updates;
  PickedElements picked;
  Write write;
  DEVICE_FN void operator()(int64_t i) const {
    const int64_t at = picked(i);
    if (at >= 0) write(out + at, updates[i]);
  }
};

using Reduced = TypeList<float, Half, BFloat16, double, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t,
                         uint64_t, bool>;

// Calls f with the type of what is written and how: what replaces is moved, `bytes` at once.
template <class F>
void with_write(Reduction how, Type type, size_t bytes, F f) {
  if (how == Reduction::none)
    dispatch_size(bytes, [&]<class T>() { f(static_cast<T*>(nullptr), Replace<T>()); });
  else
    dispatch(Reduced{}, type, [&]<class T>() { f(static_cast<T*>(nullptr), Reduce<T>{how}); });
}

// The output, filled with the data. It may be the data's own memory.
Tensor copied_data(Context& context, const Tensor& data, const Tensor& updates) {
  require(updates.type == data.type, "updates are not of the type of the data");
  const Tensor out = context.output(0, data.shape);
  copy_bytes(context.stream(), data.data, out.data, int64_t(data.bytes()));
  return out;
}

class ScatterND : public Op {
 public:
  explicit ScatterND(const NodeInfo& node) : reduction_(reduction_of(node)) {
    if (const auto indices = node.input_dims(1); indices && !indices->empty()) check_depth(indices->back());
  }
  void run(Context& context) const override {
    const Tensor &data = context.input(0), &indices = context.input(1), &updates = context.input(2);
    const int rank = data.shape.rank(), index_rank = indices.shape.rank();
    require(rank >= 1 && index_rank >= 1, "indices of shape ", indices.shape.str(), " for data of shape ",
            data.shape.str());
    const int64_t depth = indices.shape.back();
    require(depth >= 1 && depth <= rank, "indices of depth ", depth, " for data of shape ", data.shape.str());
    check_depth(depth);
    std::vector<int64_t> dims(indices.shape.dims().begin(), indices.shape.dims().end() - 1);
    dims.insert(dims.end(), data.shape.dims().begin() + depth, data.shape.dims().end());
    require(updates.shape == Shape(dims), "updates have shape ", updates.shape.str(), "; with indices of shape ",
            indices.shape.str(), " and data of shape ", data.shape.str(), " it must be ", Shape(dims).str());
    const Tensor out = copied_data(context, data, updates);
    if (updates.count() == 0) return;
    require(data.count() > 0, "no index is within data of shape ", data.shape.str());
    int64_t inner = data.shape.count(int(depth), rank);
    const int64_t narrow = inner;
    size_t bytes = device::size_bytes(data.type);
    if (reduction_ == Reduction::none) widen(inner, bytes, {out.data, updates.data});
    const PickedSlices picked = picked_slices(data.shape, indices, 0, narrow / inner, context.fault());
    const int64_t count = indices.shape.count(0, index_rank - 1) * inner;
    with_write(reduction_, data.type, bytes, [&]<class T, class Write>(T*, Write write) {
      device::for_each_index(
          context.stream(), count,
          ScatterSlices<T, Write>{out.as<T>(), updates.as<const T>(), picked, Divider(inner, count), write});
    });
  }

 private:
  Reduction reduction_;
};

class ScatterElements : public Op {
 public:
  explicit ScatterElements(const NodeInfo& node) : axis_(node.get_int("axis", 0)), reduction_(reduction_of(node)) {}
  void run(Context& context) const override {
    const Tensor &data = context.input(0), &indices = context.input(1), &updates = context.input(2);
    const int axis = checked_axis(axis_, data.shape.rank());
    require(updates.shape == indices.shape, "updates have shape ", updates.shape.str(), ", indices ",
            indices.shape.str());
    const Tensor out = copied_data(context, data, updates);
    for_picked_elements(
        data.shape, indices, axis, context.fault(),
        [&](const PickedElements& picked, int64_t out_from, int64_t from, int64_t count) {
          with_write(reduction_, data.type, device::size_bytes(data.type), [&]<class T, class Write>(T*, Write write) {
            device::for_each_index(
                context.stream(), count,
                ScatterOne<T, Write>{out.as<T>() + out_from, updates.as<const T>() + from, picked, write});
          });
        });
  }

 private:
  int64_t axis_;
  Reduction reduction_;
};

}  // namespace

std::vector<OpRow> scatter_rows() {
  const std::vector<TypeRule> elements{in(0, kNumbers | kBool), in(1, kIndices)};
  const std::vector<std::pair<int, int>> in_place{{0, 0}};
  return {
      {.name = "Scatter",
       .since = 9,
       .until = 10,
       .types = elements,
       .make = make<ScatterElements>,
       .may_reuse = in_place},
      {.name = "ScatterElements", .since = 11, .types = elements, .make = make<ScatterElements>, .may_reuse = in_place},
      {.name = "ScatterND",
       .since = 11,
       .types = {in(0, kNumbers | kBool), in(1, Types{Type::i64})},
       .make = make<ScatterND>,
       .may_reuse = in_place},
  };
}

}  // namespace encore::ops
