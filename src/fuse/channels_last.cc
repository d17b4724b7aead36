#include "fuse/channels_last.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <string_view>

#include "ops/registry.h"

namespace encore::fuse {
namespace {

using Names = std::set<std::string_view>;

const Names kWindowed{"Conv",          "ConvTranspose",      "MaxPool",      "AveragePool",  "GlobalAveragePool",
                      "GlobalMaxPool", "BatchNormalization", "DepthToSpace", "SpaceToDepth", "LRN"};
const Names kOfOne{"Relu", "LeakyRelu",  "Clip",     "HardSigmoid", "HardSwish", "Sigmoid",  "Tanh", "Elu",
                   "Selu", "Softplus",   "Gelu",     "Mish",        "Swish",     "Exp",      "Sqrt", "Abs",
                   "Neg",  "Reciprocal", "Identity", "Erf",         "Celu",      "Softsign", "Cast"};
const Names kOfMany{"Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "Mean", "Pow", "PRelu"};
const Names kReductions{"ReduceMean", "ReduceSum",    "ReduceMax",       "ReduceMin",  "ReduceL1",
                        "ReduceL2",   "ReduceLogSum", "ReduceLogSumExp", "ReduceProd", "ReduceSumSquare"};

// An operand that is broadcast over pictures, null if it can't be: a single number stays as it is.
std::shared_ptr<OwnTensor> turned_operand(const Tensor& constant, size_t rank) {
  const size_t size = device::size_bytes(constant.type), own_rank = size_t(constant.shape.rank());
  if (own_rank > rank || device::size_bits(constant.type) % 8 != 0) return nullptr;
  if (constant.count() == 1) return own(constant.type, constant.shape, constant.data);
  std::vector<int64_t> dims(rank - own_rank, 1);
  for (int64_t dim : constant.shape.dims()) dims.push_back(dim);
  auto made = own(constant.type, ops::Shape(permuted(dims, to_channels_last(rank))), constant.data);
  const int64_t channels = dims[1], places = ops::Shape(dims).count(2, int(rank));
  const auto* from = static_cast<const char*>(constant.data);
  for (int64_t n = 0; n < dims[0]; ++n)
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t i = 0; i < places; ++i, from += size)
        std::memcpy(made->bytes.data() + size_t((n * places + i) * channels + c) * size, from, size);
  return made;
}

// Axis `axis` of pictures, as attributes give it; nothing if there is no such one.
std::optional<int64_t> turned_axis(int64_t axis, size_t rank) {
  if (axis < -int64_t(rank) || axis >= int64_t(rank)) return std::nullopt;
  if (axis < 0) axis += int64_t(rank);
  return to_channels_first(rank)[size_t(axis)];
}

std::optional<std::vector<int64_t>> turned_axes(const std::vector<int64_t>& axes, size_t rank) {
  std::vector<int64_t> list;
  for (int64_t axis : axes) {
    const auto one = turned_axis(axis, rank);
    if (!one) return std::nullopt;
    list.push_back(*one);
  }
  return list;
}

class ToChannelsLast {
 public:
  ToChannelsLast(const std::vector<Value>& values, std::shared_ptr<const NodeInfo> node, const std::vector<int>& inputs)
      : values_(values), node_(std::move(node)), inputs_(inputs), info_(*node_) {}

  std::optional<ChannelsLast> run() {
    if (!info_.domain().empty()) return std::nullopt;
    made_.rank = find_rank();
    if (made_.rank == 0) return std::nullopt;
    if (!is_dynamic_picture(0) && !kOfMany.contains(info_.op_type())) return std::nullopt;
    made_.node = std::make_shared<Variant>(node_);
    made_.inputs.resize(size_t(info_.input_count()));
    made_.constants.resize(size_t(info_.input_count()));
    if (!by_kind(info_.op_type())) return std::nullopt;
    for (int i = 0; i < info_.input_count(); ++i) {
      Variant::Slot& slot = made_.node->inputs()[size_t(i)];
      if (made_.inputs[size_t(i)]) {
        slot.dims = permuted(*values_[size_t(inputs_[size_t(i)])].dims, to_channels_last(made_.rank));
        for (int64_t& dim : *slot.dims) dim = std::max<int64_t>(dim, -1);
      }
      if (const auto& constant = made_.constants[size_t(i)]) {
        slot.constant = &constant->view;
        const auto dims = constant->view.shape.dims();
        slot.dims.emplace(dims.begin(), dims.end());
      }
    }
    return std::move(made_);
  }

 private:
  // That of the first picture; zero if there is none.
  size_t find_rank() const {
    for (int i = 0; i < info_.input_count(); ++i) {
      if (!info_.has_input(i)) continue;
      const Value& value = values_[size_t(inputs_[size_t(i)])];
      if (!value.is_constant && is_picture(value)) return value.dims->size();
    }
    return 0;
  }
  bool is_dynamic_picture(int input) const {
    if (!info_.has_input(input)) return false;
    const Value& value = values_[size_t(inputs_[size_t(input)])];
    return !value.is_constant && is_picture(value) && value.dims->size() == made_.rank;
  }
  bool is_constant(int input) const {
    return info_.has_input(input) && values_[size_t(inputs_[size_t(input)])].is_constant && info_.constant_input(input);
  }
  bool only_first_output() const {
    for (int i = 1; i < info_.output_count(); ++i)
      if (info_.has_output(i)) return false;
    return true;
  }
  bool others_are_constant(int from) const {
    for (int i = from; i < info_.input_count(); ++i)
      if (info_.has_input(i) && !values_[size_t(inputs_[size_t(i)])].is_constant) return false;
    return true;
  }

  bool by_kind(const std::string& op) {
    if (kWindowed.contains(op)) return windowed(op);
    if (kOfOne.contains(op)) return of_one(op);
    if (kOfMany.contains(op)) return of_many(op);
    if (op == "Concat") return concat();
    if (kReductions.contains(op)) return reduction();
    if (op == "Resize" || op == "Upsample") return resize();
    if (op == "Pad") return pad();
    if (op == "Split") return split();
    if (op == "GroupNormalization") return group_norm();
    if (op == "Slice") return slice();
    if (op == "Softmax" || op == "LogSoftmax") return info_.since_version() >= 13 && along_an_axis(-1);
    return false;
  }

  bool windowed(const std::string& op) {
    if (!only_first_output() || !others_are_constant(1)) return false;
    if (!ops::find_row(ops::kChannelsLast, op, info_.since_version())) return false;
    made_.node->set_operator(ops::kChannelsLast, op, info_.since_version());
    return made_.inputs[0] = true;
  }

  bool of_one(const std::string& op) {
    if (!only_first_output()) return false;
    for (int i = 1; i < info_.input_count(); ++i)  // Clip's limits
      if (info_.has_input(i) && (!is_constant(i) || info_.constant_input(i)->count() != 1)) return false;
    // To a type that is no picture's is not for here.
    if (op == "Cast" && info_.output_type(0) != Type::f16 && info_.output_type(0) != Type::f32) return false;
    return made_.inputs[0] = true;
  }

  // One operand may be a constant, whose dimensions then are brought in the same order.
  bool of_many(const std::string& op) {
    if (info_.since_version() < 7 && op != "Sum" && op != "Min" && op != "Max") return false;  // other broadcasting
    bool any = false;
    for (int i = 0; i < info_.input_count(); ++i) {
      if (is_dynamic_picture(i)) {
        any = made_.inputs[size_t(i)] = true;
        continue;
      }
      if (!is_constant(i) || !(made_.constants[size_t(i)] = turned_operand(*info_.constant_input(i), made_.rank)))
        return false;
    }
    return any;
  }

  bool concat() {
    for (int i = 1; i < info_.input_count(); ++i)
      if (!(made_.inputs[size_t(i)] = is_dynamic_picture(i))) return false;
    return along_an_axis(1);
  }
  bool along_an_axis(int64_t otherwise) {
    const auto axis = turned_axis(info_.get_int("axis", otherwise), made_.rank);
    if (axis) made_.node->set("axis", *axis);
    return (made_.inputs[0] = axis.has_value());
  }

  // Sizes are the same along whichever axis.
  bool split() { return others_are_constant(1) && along_an_axis(0); }

  bool slice() {
    if (info_.since_version() < 10 || !is_constant(1) || !is_constant(2) || !is_constant(3)) return false;
    if (info_.has_input(4) && !is_constant(4)) return false;
    const auto axes = turned_axes(ops::host_ints(*info_.constant_input(3), "axes"), made_.rank);
    if (!axes) return false;
    made_.constants[3] = own_ints(*axes);
    return made_.inputs[0] = true;
  }

  bool reduction() {
    if (info_.get_int("keepdims", 1) != 1) return false;
    if (const auto given = info_.find_ints("axes")) {
      const auto axes = turned_axes(*given, made_.rank);
      if (axes) made_.node->set("axes", *axes);
      return (made_.inputs[0] = axes.has_value());
    }
    if (!is_constant(1)) return false;
    const auto axes = turned_axes(ops::host_ints(*info_.constant_input(1), "axes"), made_.rank);
    if (!axes || axes->empty()) return false;
    made_.constants[1] = own_ints(*axes);
    return made_.inputs[0] = true;
  }

  // There is another operator for channels last.
  bool group_norm() {
    if (info_.since_version() < 21 || !is_constant(1) || !is_constant(2)) return false;
    made_.node->set_operator(ops::kMicrosoft, "GroupNorm", 1);
    made_.node->set("groups", info_.get_int("num_groups", 1));
    made_.node->set("epsilon", info_.get_float("epsilon", 1e-5f));
    return made_.inputs[0] = true;
  }

  // Scales or sizes for all dimensions.
  bool resize() {
    if (info_.find_ints("axes") || info_.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize")
      return false;
    for (int i = 1; i < info_.input_count(); ++i) {
      if (!info_.has_input(i)) continue;
      if (!is_constant(i)) return false;
      const Tensor& list = *info_.constant_input(i);
      if (list.count() == 0) continue;  // roi, or scales where there are sizes
      if (list.count() != int64_t(made_.rank) || list.shape.rank() != 1) return false;
      made_.constants[size_t(i)] = own(list.type, list.shape, list.data);
      const size_t size = device::size_bytes(list.type);
      for (size_t d = 0; d < made_.rank; ++d)
        std::memcpy(made_.constants[size_t(i)]->bytes.data() + d * size,
                    static_cast<const char*>(list.data) + size_t(to_channels_last(made_.rank)[d]) * size, size);
    }
    if (const auto scales = info_.find_floats("scales")) {
      if (scales->size() != made_.rank) return false;
      std::vector<float> list;
      for (int64_t d : to_channels_last(made_.rank)) list.push_back((*scales)[size_t(d)]);
      made_.node->set("scales", list);
    }
    return made_.inputs[0] = true;
  }

  bool pad() {
    if (!is_constant(1) || info_.has_input(3)) return false;
    if (info_.has_input(2) && !is_constant(2)) return false;
    const std::vector<int64_t> pads = ops::host_ints(*info_.constant_input(1), "pads");
    if (pads.size() != 2 * made_.rank) return false;
    std::vector<int64_t> list;
    for (size_t side = 0; side < 2; ++side)
      for (int64_t d : to_channels_last(made_.rank)) list.push_back(pads[side * made_.rank + size_t(d)]);
    made_.constants[1] = own_ints(list);
    return made_.inputs[0] = true;
  }

  const std::vector<Value>& values_;
  const std::shared_ptr<const NodeInfo> node_;
  const std::vector<int>& inputs_;
  const NodeInfo& info_;
  ChannelsLast made_;
};

}  // namespace

std::span<const int64_t> to_channels_last(size_t rank) {
  static constexpr std::array<int64_t, 3> kLine{0, 2, 1};
  static constexpr std::array<int64_t, 4> kPicture{0, 2, 3, 1};
  return rank == kLine.size() ? std::span<const int64_t>(kLine) : kPicture;
}
std::span<const int64_t> to_channels_first(size_t rank) {
  static constexpr std::array<int64_t, 3> kLine{0, 2, 1};
  static constexpr std::array<int64_t, 4> kPicture{0, 3, 1, 2};
  return rank == kLine.size() ? std::span<const int64_t>(kLine) : kPicture;
}

std::vector<int64_t> permuted(const std::vector<int64_t>& dims, std::span<const int64_t> order) {
  std::vector<int64_t> out;
  for (int64_t from : order) out.push_back(dims[size_t(from)]);
  return out;
}

bool is_picture(const Value& value) {
  constexpr ops::Types kPictures{Type::f16, Type::f32};  // for which kernels for channels last are compiled
  return kPictures.has(value.type) && value.dims && is_picture_rank(value.dims->size());
}

bool is_single(const Value& value) {
  const auto& dims = value.dims;
  if (!dims || !is_picture_rank(dims->size())) return false;
  return (*dims)[1] == 1 || std::all_of(dims->begin() + 2, dims->end(), [](int64_t dim) { return dim == 1; });
}

bool goes_between(const std::string& op) {
  return kOfOne.contains(op) || kOfMany.contains(op) || kReductions.contains(op) || op == "Concat" || op == "Pad" ||
         op == "Resize";
}

std::optional<ChannelsLast> with_channels_last(const std::vector<Value>& values, std::shared_ptr<const NodeInfo> node,
                                               const std::vector<int>& inputs) {
  return ToChannelsLast(values, std::move(node), inputs).run();
}

}  // namespace encore::fuse
