// DepthToSpace and SpaceToDepth: one strided copy in either layout.
#include "ops/choice.h"
#include "ops/nn/window.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

// Strides of [batch, channels, height, width], however they are stored.
struct Strides {
  int64_t batch, channel, row, column;
};
Strides strides_of(const Shape& channels_first, Layout layout) {
  const int64_t c = channels_first[1], h = channels_first[2], w = channels_first[3];
  if (layout == Layout::channels_last) return {h * w * c, 1, w * c, c};
  return {c * h * w, h * w, w, 1};
}

// A walk over [batch, channels, block, block, height, width], in which depth and space are seen alike.
template <bool kToSpace>
class Rearrange : public Op {
 public:
  explicit Rearrange(const NodeInfo& node)
      : layout_(layout_of(node)), block_(node.get_int("blocksize", 0)), channels_outside_(is_crd(node)) {
    require(block_ > 0 && block_ < (int64_t(1) << 31), "blocksize is ", block_, "; it must be positive");
  }

  void run(Context& context) const override {
    const Tensor& in = context.input(0);
    require(in.shape.rank() == 4, "the input has shape ", in.shape.str(), "; it must have four dimensions");
    const Shape from = channels_first(in.shape, layout_);
    if (kToSpace)
      require(from[1] % (block_ * block_) == 0, from[1], " channels cannot be dealt to blocks of ", block_, " x ",
              block_);
    else
      require(from[2] % block_ == 0 && from[3] % block_ == 0, "the input of shape ", in.shape.str(),
              " cannot be cut to blocks of ", block_, " x ", block_);
    const Shape to =
        kToSpace ? Shape{from[0], from[1] / (block_ * block_), checked_product(from[2], block_),
                         checked_product(from[3], block_)}
                 : Shape{from[0], checked_product(from[1], block_ * block_), from[2] / block_, from[3] / block_};
    const Tensor out = context.output(0, stored(to, layout_));
    if (out.count() == 0) return;
    const Shape &deep = kToSpace ? from : to, &wide = kToSpace ? to : from;
    const Strides d = strides_of(deep, layout_), s = strides_of(wide, layout_);
    const int64_t channels = wide[1];
    const int64_t per_channel = channels_outside_ ? block_ * block_ : 1, per_block = channels_outside_ ? 1 : channels;
    StridedCopy copy;
    const auto add = [&](int64_t size, int64_t in_depth, int64_t in_space) {
      kToSpace ? copy.add(size, in_depth, in_space) : copy.add(size, in_space, in_depth);
    };
    const auto add_channels = [&] { add(channels, per_channel * d.channel, s.channel); };
    const auto add_rows = [&] { add(deep[2], d.row, block_ * s.row); };
    const auto add_columns = [&] { add(deep[3], d.column, block_ * s.column); };
    const auto add_block_rows = [&] { add(block_, block_ * per_block * d.channel, s.row); };
    const auto add_block_columns = [&] { add(block_, per_block * d.channel, s.column); };
    // In the order of the output, so that it is written side by side.
    add(deep[0], d.batch, s.batch);
    if (kToSpace) {
      if (layout_ == Layout::channels_first) add_channels();
      add_rows(), add_block_rows(), add_columns(), add_block_columns();
      if (layout_ == Layout::channels_last) add_channels();
    } else if (layout_ == Layout::channels_first) {
      if (channels_outside_) add_channels();
      add_block_rows(), add_block_columns();
      if (!channels_outside_) add_channels();
      add_rows(), add_columns();
    } else {
      add_rows(), add_columns();
      if (channels_outside_) add_channels();
      add_block_rows(), add_block_columns();
      if (!channels_outside_) add_channels();
    }
    copy.run(context.stream(), in.data, out.data, device::size_bytes(in.type));
  }

 private:
  static bool is_crd(const NodeInfo& node) {
    return read_choice<bool>(node, "mode", "DCR", {{"DCR", false}, {"CRD", true}});
  }

  Layout layout_;
  int64_t block_;
  bool channels_outside_;
};

}  // namespace

std::vector<OpRow> depth_rows() {
  const std::vector<TypeRule> all{in(0, kNumbers | kBool)}, channels_last{in(0, kChannelsLastFloats)};
  return {
      {.name = "DepthToSpace", .since = 1, .types = all, .make = make<Rearrange<true>>},
      {.name = "SpaceToDepth", .since = 1, .types = all, .make = make<Rearrange<false>>},
      {.domain = kChannelsLast,
       .name = "DepthToSpace",
       .since = 1,
       .types = channels_last,
       .make = make<Rearrange<true>>},
      {.domain = kChannelsLast,
       .name = "SpaceToDepth",
       .since = 1,
       .types = channels_last,
       .make = make<Rearrange<false>>},
  };
}

}  // namespace encore::ops
