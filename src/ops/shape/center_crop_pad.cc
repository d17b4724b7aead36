// CenterCropPad: what lies in the middle, of another size.
#include <algorithm>

#include "device/memory.h"
#include "ops/host_vector.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

class CenterCropPad : public Op {
 public:
  explicit CenterCropPad(const NodeInfo& node) : axes_(node.find_ints("axes")) {}
  void run(Context& context) const override {
    const Tensor& in = context.input(0);
    const int rank = in.shape.rank();
    const std::vector<int64_t> wanted = host_vector(context.input(1), "shape");
    const int64_t named = axes_ ? int64_t(axes_->size()) : rank;
    require(int64_t(wanted.size()) == named, "shape has ", wanted.size(), " values; ", named, " are wanted");
    std::vector<int64_t> dims(in.shape.dims().begin(), in.shape.dims().end());
    std::vector<bool> seen(size_t(rank), false);
    for (size_t i = 0; i < wanted.size(); ++i) {
      const auto axis = size_t(axes_ ? checked_axis((*axes_)[i], rank, "axes") : int64_t(i));
      require(!seen[axis], "axes names dimension ", axis, " twice");
      seen[axis] = true;
      dims[axis] = wanted[i];
    }
    const Shape shape(dims);
    const Tensor out = context.output(0, shape);
    if (out.count() == 0) return;

    const auto in_strides = strides_of(in.shape), out_strides = strides_of(shape);
    StridedCopy copy;
    int64_t from = 0, to = 0, moved = 1;
    for (int i = 0; i < rank; ++i) {
      const int64_t both = std::min(in.shape[i], shape[i]);
      from += (in.shape[i] - both) / 2 * in_strides[size_t(i)];
      to += (shape[i] - both) / 2 * out_strides[size_t(i)];
      moved *= both;
      copy.add(both, in_strides[size_t(i)], out_strides[size_t(i)]);
    }
    const size_t size = device::size_bytes(in.type);
    if (moved < out.count()) device::fill(context.stream(), out.data, 0, out.bytes());
    if (moved > 0)
      copy.run(context.stream(), static_cast<const char*>(in.data) + size_t(from) * size,
               static_cast<char*>(out.data) + size_t(to) * size, size);
  }

 private:
  std::optional<std::vector<int64_t>> axes_;
};

}  // namespace

std::vector<OpRow> center_crop_pad_rows() {
  return {{.name = "CenterCropPad",
           .since = 18,
           .types = {in(0, kFixedSize)},
           .make = make<CenterCropPad>,
           .host_inputs = {1}}};
}

}  // namespace encore::ops
