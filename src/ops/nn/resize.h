// Interpolation between grids: the arithmetic behind Resize and Upsample.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "ops/op.h"

namespace encore::ops {

enum class ResizeMode { nearest, linear, cubic };
// How a position in the result maps to one in the input.
enum class CoordinateMode {
  half_pixel,
  half_pixel_symmetric,
  pytorch_half_pixel,
  align_corners,
  asymmetric,
  tf_half_pixel_for_nn,
  tf_crop_and_resize
};
enum class Nearest {
  round_prefer_floor,
  round_prefer_ceil,
  floor,
  ceil,
  simple,  // of Upsample and the first Resize: down when enlarging, up when reducing
};

// What becomes of one dimension.
struct ResizeAxis {
  int in, out;
  float scale;
  float roi_start = 0, roi_end = 1;  // for tf_crop_and_resize
};

struct ResizeRule {
  ResizeMode mode = ResizeMode::nearest;
  CoordinateMode coordinates = CoordinateMode::half_pixel;
  Nearest nearest = Nearest::round_prefer_floor;
  float cubic_coefficient = -0.75f;
  bool exclude_outside = false;
  bool antialias = false;   // linear and cubic: where the result is smaller, what it leaves out counts, too
  float extrapolation = 0;  // where tf_crop_and_resize looks outside the input
};

// Neighbouring dimensions that stay as they are count as one; throws Error{not_supported} if more are left.
inline constexpr int kMostResizeDims = 12;

// One axis for each dimension of x.
void resize(StreamRef stream, const ResizeRule& rule, const std::vector<ResizeAxis>& axes, const Tensor& x,
            const Tensor& y);

// The same into columns of wider rows, which are `row_width` elements apart: only if makes_columns(), and if rows, too,
// are a multiple of 16 bytes.
bool makes_columns(const ResizeRule& rule, const std::vector<ResizeAxis>& axes, const Tensor& x);
void resize_into_columns(StreamRef stream, const ResizeRule& rule, const std::vector<ResizeAxis>& axes, const Tensor& x,
                         const Tensor& columns, int64_t row_width);

// The same with rule.antialias.
void resize_antialiased(Context& context, const ResizeRule& rule, const std::vector<ResizeAxis>& axes, const Tensor& x,
                        const Tensor& y);

// Tensors side by side along the last dimension, each resized as its node says, if it has one: inputs that the node has
// besides are constants. One may have been made in its columns of what is as wide as all: kInPlace, of the node for
// all, has the input, the first column and their count.
inline constexpr const char* kInPlace = "in_place";
std::unique_ptr<Op> make_joined_resizes(const NodeInfo& node, std::span<const std::shared_ptr<const NodeInfo>> resizes);

}  // namespace encore::ops
