#include "ops/quantize/scale_grid.h"

namespace encore::ops {

ScaleGrid::ScaleGrid(const Shape& x, const Shape& scale, int64_t axis, int64_t block_size) {
  if (block_size == 0 && scale.is_scalar()) return;
  const int along = checked_axis(axis, x.rank());
  const int64_t dim = x[along];
  if (block_size == 0) {
    require(scale.rank() == 1 && scale[0] == dim, "the scale has shape ", scale.str(), "; dimension ", along,
            " of the input ", x.str(), " wants one value or ", dim);
  } else {
    const int64_t blocks = dim / block_size + (dim % block_size != 0);
    require(scale == x.with(along, blocks), "the scale has shape ", scale.str(), "; blocks of ", block_size,
            " along dimension ", along, " of the input ", x.str(), " want ", x.with(along, blocks).str());
  }
  if (x.count() == 0) return;
  single_ = false;
  const int64_t inner = x.count(along + 1, x.rank());
  inner_ = device::Divider(inner, x.count());
  axis_ = device::Divider(dim, x.count());
  block_ = device::Divider(block_size ? block_size : 1, dim);
  block_step_ = block_size ? inner : 1;
  outer_step_ = block_size ? scale[along] * inner : 0;
  inner_step_ = block_size ? 1 : 0;
}

Scales scales_of(Context& context, const Tensor& x, int64_t axis, int64_t block_size) {
  const Tensor& scale = context.input(1);
  const Tensor* zero = context.find_input(2);
  const ScaleGrid grid(x.shape, scale.shape, axis, block_size);
  if (zero)
    require(zero->shape == scale.shape || (zero->shape.is_scalar() && scale.shape.is_scalar()),
            "the zero point has shape ", zero->shape.str(), ", the scale ", scale.shape.str());
  return {AnyInput(scale.data, scale.type), AnyInput(zero ? zero->data : nullptr, zero ? zero->type : Type::u8), grid};
}

}  // namespace encore::ops
