#include "ops/norm/clipped_norm.h"

#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/matmul/product_norm.h"
#include "ops/norm/few_row_norm.h"
#include "ops/overlap.h"
#include "ops/reduce/any.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

struct Clip {
  RowClip by;
  DEVICE_FN Half operator()(Half x) const { return Half((*by.is_so ? by.if_so : by.otherwise)(float(x))); }
};

class ClippedNorm : public Op {
 public:
  explicit ClippedNorm(const NodeInfo& node)
      : is_centred_(node.get_int(kCentred, 1) != 0), epsilon_(node.get_float("epsilon", 1e-5f)) {
    const auto bounds = node.find_floats(kBounds).value_or(std::vector<float>());
    require(bounds.size() == 4, "there are ", bounds.size(), " bounds, not 4");
    clip_ = {{bounds[0], bounds[1]}, {bounds[2], bounds[3]}};
  }

  void run(Context& context) const override {
    const Tensor &x = context.input(0), &scale = context.input(1);
    const Tensor *const bias = context.find_input(2), *const is_so = context.find_input(3);
    const int rank = x.shape.rank();
    require(rank > 0 && x.type == Type::f16, "there are no rows of float16");
    const int64_t width = x.shape.back();
    for (const Tensor* const one : {&scale, bias})
      require(!one || (one->shape == Shape{width} && one->type == scale.type), "rows ", x.shape.str(),
              " want a scale and a bias of [", width, "]");
    require(!is_so || is_so->count() == 1, "what says which bounds hold has shape ", is_so ? is_so->shape.str() : "");
    RowNorm norm{x.shape.count(0, rank - 1), width, x.data};
    norm.gamma.data = scale.data;
    if (bias) norm.beta.data = bias->data;
    norm.centred = is_centred_;
    norm.epsilon = epsilon_;
    const Tensor y = context.output(0, x.shape);
    norm.y = y.data;
    Tensor clipped{x.type, Where::device, x.shape, nullptr};
    if (context.wants_output(1)) clipped = context.output(1, x.shape);
    norm.sum = clipped.data;
    if (x.count() == 0) return;
    RowClip clip = clip_;
    if (is_so) clip.is_so = is_so->as<const bool>();
    // Who asks for itself reads what others may have written.
    const bool asks_alone = !is_so && x.bytes() <= kMostAsked && !overlap(x, y) && !(norm.sum && overlap(x, clipped));
    const auto ask = [&] {
      auto* const found = static_cast<bool*>(context.scratch(sizeof(bool)));
      find_any(context.stream(), x, Odd(), found);
      clip.is_so = found;
    };
    if (!is_so && !asks_alone) ask();
    if (clip_and_normalize_few_rows(context.stream(), norm, clip, scale.type)) return;
    if (!clip.is_so) ask();
    if (!clipped.data) clipped.data = context.scratch(clipped.bytes());
    device::transform(context.stream(), x.count(), clipped.as<Half>(), Clip{clip}, x.as<const Half>());
    norm.x = clipped.data;
    norm.sum = nullptr;
    normalize_rows(context.stream(), norm, {x.type, scale.type, x.type});
  }

 private:
  // Bytes of rows that each block looks through.
  static constexpr size_t kMostAsked = 16 * 1024;

  bool is_centred_;
  float epsilon_;
  RowClip clip_;
};

}  // namespace

std::unique_ptr<Op> make_clipped_norm(const NodeInfo& node) { return std::make_unique<ClippedNorm>(node); }

}  // namespace encore::ops
