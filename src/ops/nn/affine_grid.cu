// AffineGrid: where each place of a result lies in an image, for GridSample.
#include "device/divide.h"
#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;

template <class T>
struct AffinePlaces {
  using C = Compute<T>;
  const T* theta;  // [image, dims, dims + 1]
  T* grid;
  int dims;
  bool align_corners;
  Divider sizes[3], by_dims;  // innermost first

  DEVICE_FN void operator()(int64_t i) const {
    int64_t row;
    int64_t rest = by_dims(i, row);
    C at[3] = {};
    UNROLL for (int d = 0; d < 3; ++d) {
      if (d >= dims) break;
      int64_t index;
      rest = sizes[d](rest, index);
      at[d] = place(C(index), C(sizes[d].divisor()));
    }
    const T* of = theta + (rest * dims + row) * (dims + 1);
    C sum = C(of[dims]);
    UNROLL for (int d = 0; d < 3; ++d) {
      if (d < dims) sum += C(of[d]) * at[d];
    }
    grid[i] = T(sum);
  }

 private:
  // From -1 to 1: of the first and the last pixel's middles, or of their outer edges.
  DEVICE_FN C place(C index, C size) const {
    if (align_corners) return size > C(1) ? C(2) * index / (size - C(1)) - C(1) : C(1);
    return (C(2) * index + C(1)) / size - C(1);
  }
};

class AffineGrid : public Op {
 public:
  explicit AffineGrid(const NodeInfo& node) : align_corners_(node.get_int("align_corners", 0) != 0) {}
  void run(Context& context) const override {
    const Tensor& theta = context.input(0);
    const std::vector<int64_t> size = host_ints(context.input(1), "size");
    require(size.size() == 4 || size.size() == 5, "size has ", size.size(), " values; 4 or 5 are wanted");
    const int dims = int(size.size()) - 2;
    require(theta.shape == Shape{size[0], dims, dims + 1}, "theta has shape ", theta.shape.str(), "; [", size[0], ",",
            dims, ",", dims + 1, "] is wanted");
    std::vector<int64_t> shape{size[0]};
    shape.insert(shape.end(), size.begin() + 2, size.end());
    shape.push_back(dims);
    const Tensor grid = context.output(0, Shape(shape));
    const int64_t n = grid.count();
    dispatch(FloatList{}, theta.type, [&]<class T>() {
      AffinePlaces<T> kernel{theta.as<const T>(), grid.as<T>(), dims, align_corners_, {}, Divider(dims, n)};
      for (int d = 0; d < dims; ++d) kernel.sizes[d] = Divider(size[size.size() - 1 - size_t(d)], n);
      device::for_each_index(context.stream(), n, kernel);
    });
  }

 private:
  bool align_corners_;
};

}  // namespace

std::vector<OpRow> affine_grid_rows() {
  return {{.name = "AffineGrid", .since = 20, .types = {in(0, kFloats)}, .make = make<AffineGrid>, .host_inputs = {1}}};
}

}  // namespace encore::ops
