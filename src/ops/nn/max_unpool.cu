// MaxUnpool: what MaxPool has taken goes back where it was found; all else is zero.
#include "device/launch.h"
#include "device/memory.h"
#include "ops/dispatch.h"
#include "ops/nn/window.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

template <class T>
struct PutBack {
  const T* x;
  const int64_t* places;
  T* y;
  int64_t count;  // of y
  device::FaultRef fault;
  DEVICE_FN void operator()(int64_t i) const {
    const int64_t place = places[i];
    if (place < 0 || place >= count)
      fault.report(device::FaultKind::index_out_of_range, place, count);
    else
      y[place] = x[i];
  }
};

class MaxUnpool : public Op {
 public:
  explicit MaxUnpool(const NodeInfo& node) : attributes_(node) {
    require(attributes_.kernel_shape().has_value(), "kernel_shape is missing");
  }
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &places = context.input(1);
    require(places.shape == x.shape && places.type == Type::i64, "the indices have shape ", places.shape.str(), " of ",
            device::name(places.type), "; ", x.shape.str(), " of int64 is wanted");
    const Tensor y = context.output(0, shape_of(context, x.shape));
    device::fill(context.stream(), y.data, 0, y.bytes());
    dispatch_size(device::size_bytes(x.type), [&]<class T>() {
      device::for_each_index(
          context.stream(), x.count(),
          PutBack<T>{x.as<const T>(), places.as<const int64_t>(), y.as<T>(), y.count(), context.fault()});
    });
  }

 private:
  // The shape that is given is what MaxPool has seen, which the indices are of, too.
  Shape shape_of(Context& context, const Shape& x) const {
    if (const Tensor* given = context.find_input(2)) {
      const Shape shape(host_ints(*given, "output_shape"));
      require(shape.rank() == x.rank(), "output_shape is ", shape.str(), ", and X has shape ", x.str());
      return shape;
    }
    const Window w = attributes_.slide_transposed(x, *attributes_.kernel_shape());
    return with_spatial(x, x[1], w.in);
  }

  WindowAttributes attributes_;
};

}  // namespace

std::vector<OpRow> max_unpool_rows() {
  return {{.name = "MaxUnpool", .since = 9, .types = {in(0, kFloats)}, .make = make<MaxUnpool>, .host_inputs = {2}}};
}

}  // namespace encore::ops
