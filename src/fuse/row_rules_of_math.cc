#include "fuse/row_rules.h"

#include <algorithm>
#include <cstdlib>

#include "ops/registry.h"

namespace encore::fuse {
namespace {

// Version 7 is the first that broadcasts as today.
Rows each(const PaddedStep& step, size_t) {
  if (step.inputs() > 1 && step.node().domain().empty() && step.node().since_version() < 7)
    step.refuse("is of a version that broadcasts otherwise");
  if (step.is_sized() && step.is_sum_of_index()) return kSized;
  return broadcast_axis(step, 0, step.inputs());
}

// The slope has no more than there is to begin with.
Rows by_slope(const PaddedStep& step, size_t output) {
  if (step.axis(0) < 0) step.refuse("has it in the slope alone");
  return each(step, output);
}

// What is beside the first input goes for all of it.
Rows first_alone(const PaddedStep& step, size_t) {
  step.others_unpadded({0});
  return step.axis(0);
}

// What is zero stays so, and what counts.
Rows copy(const PaddedStep& step, size_t output) {
  Rows made = first_alone(step, output);
  made.end_in_zeros = step.rows(0).end_in_zeros;
  made.count = step.rows(0).count, made.first = step.rows(0).first;
  return made;
}

constexpr int64_t kFarthest = int64_t(1) << 40;

// Rows that are counted from elsewhere on.
Rows shifted(const PaddedStep& step, size_t output) {
  Rows made = each(step, output);
  const bool adds = is_onnx(step.node(), "Add");
  for (const size_t i : {0, 1}) {
    const auto by = made.axis >= 0 && step.rows(i).count && (adds || i == 0) ? step.numbers(1 - i) : std::nullopt;
    if (!by || by->size() != 1 || std::abs((*by)[0]) > kFarthest) continue;
    made.count = true, made.first = step.rows(i).first + (adds ? (*by)[0] : -(*by)[0]);
  }
  return made;
}

// Of zeros, whatever the condition.
Rows where(const PaddedStep& step, size_t) {
  Rows made = broadcast_axis(step, 0, 3);
  const auto is_zero = [&](size_t input) {
    return step.axis(input) == kUnpadded ? step.holds_zero(input) : step.rows(input).end_in_zeros;
  };
  made.end_in_zeros = is_zero(1) && is_zero(2);
  return made;
}

Rows biased(const PaddedStep& step, size_t output) {
  if (step.has(1) && step.axis(0) == step.rank(0) - 1) step.refuse("adds a row along it");
  return first_alone(step, output);
}

Rows dropout(const PaddedStep& step, size_t output) {
  if (step.has(2)) step.refuse("may be training");
  return copy(step, output);
}

Rows linear_quantization(const PaddedStep& step, size_t output) {
  const bool is_one_scale = step.rank(1) == 0 || (step.rank(1) == 1 && step.is_one(1, 0));
  if (!is_one_scale && (step.rank(1) != 1 || step.own_axis("axis", 1, step.rank(0)) == step.axis(0)))
    step.refuse("has scales along it");
  return first_alone(step, output);
}

// ---- along other axes

Rows axis_apart(const PaddedStep& step, size_t output, int axis) {
  if (step.axis(0) == axis) step.refuse("goes along it");
  return first_alone(step, output);
}

// Before version 13 of all that comes behind the axis. Along the last one a softmax is attention's, as a rule: its mask
// is a summand, which attention has anyway.
Rows softmax(const PaddedStep& step, size_t output) {
  const bool is_of_one = step.node().since_version() >= 13;
  const int rank = step.rank(0), axis = step.own_axis("axis", is_of_one ? -1 : 1, rank);
  Rows made = first_alone(step, output);
  if (is_of_one ? made.axis != axis : made.axis < axis) return made;
  if (is_onnx(step.node(), "Hardmax") || made.axis != axis || (!is_of_one && axis != rank - 1))
    step.refuse("goes along it");
  const PaddingMask rows = step.rows_mask();
  made.end_in_zeros = is_onnx(step.node(), "Softmax");
  const Type type = step.node().input_type(0);
  const bool is_of_keys = made.end_in_zeros && axis == rank - 1 && (type == Type::f32 || ops::kHalves.has(type));
  made.masks = {is_of_keys ? PaddingMask{PaddingMask::keys, type} : rows};
  return made;
}

Rows last_axis(const PaddedStep& step, size_t output) {
  return axis_apart(step, output, step.own_axis("axis", -1, step.rank(0)));
}

// Of all behind the axis; statistics have ones there.
Rows norm(const PaddedStep& step, size_t output) {
  if (step.axis(0) >= step.own_axis("axis", -1, step.rank(0))) step.refuse("takes the statistics of it");
  return first_alone(step, output);
}

// What is added has all of the rows, or is the same for all in a batch.
Rows norm_of_sum(const PaddedStep& step, size_t) {
  for (size_t i = 2; i < step.inputs(); ++i)
    if (step.axis(i) != kUnpadded) step.refuse("has it in more than what is added up");
  const int axis = step.axis(0);
  const bool is_common =
      step.axis(1) == kUnpadded && axis == 0 && step.rank(0) == 3 && step.is_one(1, step.rank(1) - step.rank(0));
  if (axis < 0 || (step.axis(1) != axis && !is_common)) step.refuse("has an input that need not be as long");
  if (axis >= step.rank(0) - 1) step.refuse("takes the statistics of it");
  return axis;
}

Rows norm_over_axes(const PaddedStep& step, size_t output) {
  const auto axes = step.node().find_ints("axes").value_or(Dims{0, 2, 3});
  for (int64_t axis : axes)
    if (axis == step.axis(0) || axis + step.rank(0) == step.axis(0)) step.refuse("takes the statistics of it");
  return first_alone(step, output);
}

// Nothing is left of the rows: those that are added are left out.
Rows reduced_along(const PaddedStep& step) {
  Rows made;
  made.masks = {step.rows_mask()};
  if (is_onnx(step.node(), "ReduceMean")) {
    const Type type = step.node().input_type(0);
    if (!ops::kFloats.has(type)) step.refuse("takes the mean of integers along it");
    made.masks.push_back({PaddingMask::growth, type});
  }
  return made;
}

Rows reduction(const PaddedStep& step, size_t) {
  step.others_unpadded({0});
  const bool is_given = step.has(1) || step.node().find_ints("axes");
  const auto axes = step.axes_of("axes", 1);
  if (is_given && !axes) step.refuse("reduces along axes that are no constants");
  const bool has_axes = axes && !axes->empty();
  if (!has_axes && step.node().get_int("noop_with_empty_axes", 0) == 1) return step.axis(0);
  std::set<int64_t> reduced;
  for (int64_t axis : axes.value_or(Dims())) reduced.insert(axis < 0 ? axis + step.rank(0) : axis);
  if (!has_axes || reduced.contains(step.axis(0))) return reduced_along(step);
  if (step.node().get_int("keepdims", 1) == 1) return step.axis(0);
  return step.axis(0) - int(std::distance(reduced.begin(), reduced.lower_bound(step.axis(0))));
}

Rows arg_reduction(const PaddedStep& step, size_t) {
  step.others_unpadded({0});
  const int along = step.own_axis("axis", 0, step.rank(0));
  if (step.axis(0) == along) {
    if (step.node().get_int("select_last_index", 0) != 0) step.refuse("takes the last along it");
    return reduced_along(step);
  }
  return step.node().get_int("keepdims", 1) == 1 || along > step.axis(0) ? step.axis(0) : step.axis(0) - 1;
}

// Of what is before each row alone, unless it is in reverse.
Rows cumulated(const PaddedStep& step, size_t output) {
  const auto along = step.numbers(1);
  if (!along || along->size() != 1) step.refuse("goes along an axis that is no constant");
  const int64_t axis = (*along)[0] < 0 ? (*along)[0] + step.rank(0) : (*along)[0];
  if (axis == step.axis(0) && step.node().get_int("reverse", 0) == 0 && step.beside().outside == Volume())
    return first_alone(step, output);
  return axis_apart(step, output, int(axis));
}

// ---- products

// Rows of the first factor, columns of the second, or matrices.
Rows matrix_product(const PaddedStep& step, int a, int b, size_t zero_points) {
  for (size_t i = zero_points; i < step.inputs(); ++i)
    if (int(i) != a && int(i) != b && step.axis(i) != kUnpadded) step.refuse("has it in more than its factors");
  const size_t one = size_t(a), two = size_t(b);
  if (step.axis(one) == kSized || step.axis(two) == kSized) step.refuse("computes with its length");
  const int rank_a = step.rank(one), rank_b = step.rank(two);
  if (rank_a < 2 || rank_b < 2) {
    // A vector is summed up, and its dimension with it.
    if (step.axis(one) >= 0 && step.axis(two) < 0 && step.axis(one) < rank_a - 1) return step.axis(one);
    step.refuse("may sum along it");
  }
  const int rank = std::max(rank_a, rank_b);
  // What is added is zero times something.
  if (step.axis(one) == rank_a - 1 && step.axis(two) == rank_b - 2 && step.rows(one).end_in_zeros) return kUnpadded;
  const auto made = [&](size_t factor, int own_rank, int summed) {
    if (step.axis(factor) < 0) return kUnpadded;
    if (step.axis(factor) == summed) step.refuse("sums along it");
    return step.axis(factor) + rank - own_rank;
  };
  const int of_a = made(one, rank_a, rank_a - 1), of_b = made(two, rank_b, rank_b - 2);
  if (of_a >= 0 && of_b >= 0 && of_a != of_b) step.refuse("has it along two axes");
  const int axis = std::max(of_a, of_b);
  if (axis >= rank - 2) {
    if (of_a >= 0 && of_b >= 0) step.refuse("has it along two axes");
    return axis;
  }
  for (const auto& [factor, own, own_rank] : {std::tuple(one, of_a, rank_a), std::tuple(two, of_b, rank_b)})
    if (own < 0 && !step.is_one(factor, axis - (rank - own_rank)))
      step.refuse(text("has an input ", factor, " that need not be as long"));
  return axis;
}

Rows product(const PaddedStep& step, size_t) { return matrix_product(step, 0, 1, 2); }

// A row or a column of its own is long as the dimension.
void check_is_one_value(const PaddedStep& step, size_t input) {
  if (step.has(input) && step.rank(input) > 0 && (step.rank(input) > 1 || !step.is_one(input, 0)))
    step.refuse(text("has an input ", input, " that may be as long"));
}
Rows integer_product(const PaddedStep& step, size_t output) {
  for (size_t factor : {0, 1})
    if (step.axis(factor) >= 0) check_is_one_value(step, 2 + factor);
  return product(step, output);
}
Rows quantized_product(const PaddedStep& step, size_t) {
  for (size_t factor : {0, 3})
    if (step.axis(factor) >= 0) check_is_one_value(step, factor + 1), check_is_one_value(step, factor + 2);
  return matrix_product(step, 0, 3, 1);
}

Rows fused_product(const PaddedStep& step, size_t output) {
  constexpr struct {
    size_t factor;
    const char *matrix, *batch;
  } kTransposed[] = {{0, "transA", "transBatchA"}, {1, "transB", "transBatchB"}};
  for (const auto& [factor, matrix, batch] : kTransposed)
    if (step.axis(factor) >= 0 && (step.node().get_int(batch, 0) != 0 ||
                                   (step.node().get_int(matrix, 0) != 0 && step.axis(factor) >= step.rank(factor) - 2)))
      step.refuse("transposes it");
  return product(step, output);
}

Rows weights_product(const PaddedStep& step, size_t output) {
  if (step.axis(0) == step.rank(0) - 1) step.refuse("sums along it");
  return first_alone(step, output);
}

Rows gemm(const PaddedStep& step, size_t) {
  const int rows = step.node().get_int("transA", 0) != 0 ? 1 : 0;
  const int columns = step.node().get_int("transB", 0) != 0 ? 0 : 1;
  int axis = kUnpadded;
  if (step.axis(0) >= 0) {
    if (step.axis(0) != rows) step.refuse("sums along it");
    axis = 0;
  }
  if (step.axis(1) >= 0) {
    if (step.axis(1) != columns) step.refuse("sums along it");
    if (axis >= 0) step.refuse("has it along two axes");
    axis = 1;
  }
  if (step.axis(2) == kSized || step.axis(0) == kSized || step.axis(1) == kSized)
    step.refuse("computes with its length");
  if (step.has(2)) {
    const int own = axis - (2 - step.rank(2));
    if (step.axis(2) >= 0 ? axis < 0 || step.axis(2) != own : !step.is_one(2, own))
      step.refuse("has an input 2 that need not be as long");
  }
  return axis;
}

Rows einsum(const PaddedStep& step, size_t) {
  std::string equation = step.node().get_string("equation", "");
  std::erase(equation, ' ');
  const size_t arrow = equation.find("->");
  if (arrow == equation.npos || equation.find('.') != equation.npos) step.refuse("has an equation without letters");
  std::vector<std::string> terms(1);
  for (char letter : equation.substr(0, arrow))
    if (letter == ',')
      terms.emplace_back();
    else
      terms.back() += letter;
  const std::string made = equation.substr(arrow + 2);
  if (terms.size() != step.inputs()) step.refuse("has an equation of other inputs");
  char padded = 0;
  for (size_t i = 0; i < terms.size(); ++i) {
    if (step.axis(i) == kSized) step.refuse("computes with its length");
    if (step.axis(i) < 0) continue;
    if (size_t(step.axis(i)) >= terms[i].size()) step.refuse("has an equation of other inputs");
    const char letter = terms[i][size_t(step.axis(i))];
    if (padded && padded != letter) step.refuse("has it along two axes");
    padded = letter;
  }
  for (size_t i = 0; i < terms.size(); ++i)
    for (size_t at = 0; at < terms[i].size(); ++at)
      if (terms[i][at] == padded && int(at) != step.axis(i))
        step.refuse(text("has an input ", i, " that need not be as long"));
  const size_t at = made.find(padded);
  if (at == made.npos) step.refuse("sums along it");
  return int(at);
}

// ---- images, of a batch

Rows batch(const PaddedStep& step, size_t) {
  step.others_unpadded({0});
  if (step.axis(0) != 0) step.refuse("reads what is beside each row of it");
  return 0;
}

// Along an axis where a kernel is of one element, each is for itself.
Rows convolution(const PaddedStep& step, size_t output) {
  const int axis = step.axis(0), of_kernel = axis - 2, spatial = step.rank(0) - 2;
  if (of_kernel < 0) return batch(step, output);
  const auto has = [&](const char* attribute, int place, int64_t number) {
    const auto list = step.node().find_ints(attribute);
    return !list || (size_t(place) < list->size() && (*list)[size_t(place)] == number);
  };
  if (step.dims(1)[size_t(axis)] != 1 || !has("strides", of_kernel, 1) || !has("pads", of_kernel, 0) ||
      !has("pads", of_kernel + spatial, 0))
    step.refuse("reads what is beside each row of it");
  return first_alone(step, output);
}

Rows batch_norm(const PaddedStep& step, size_t output) {
  const int version = step.node().since_version();
  const bool trains = version >= 14  ? step.node().get_int("training_mode", 0) != 0
                      : version >= 7 ? output > 0
                                     : step.node().get_int("is_test", 0) == 0;
  if (trains) step.refuse("takes the statistics of it");
  return batch(step, output);
}

Rows batch_of_places(const PaddedStep& step, size_t) {
  for (size_t i : {0, 1})
    if (step.axis(i) != 0) step.refuse(text("has an input ", i, " that need not be as long"));
  step.others_unpadded({0, 1});
  return 0;
}

// Where its scale is among scales and sizes; -1: it has none.
int place_of_scale(const PaddedStep& step) {
  const auto axes = step.node().find_ints("axes");
  if (!axes) return step.axis(0);
  for (size_t i = 0; i < axes->size(); ++i)
    if ((*axes)[i] == step.axis(0) || (*axes)[i] + step.rank(0) == step.axis(0)) return int(i);
  return -1;
}

bool has_scale_of_one(const PaddedStep& step, int place) {
  if (const auto scales = step.node().find_floats("scales"))
    return size_t(place) < scales->size() && (*scales)[size_t(place)] == 1;
  const Tensor* const scales = step.constant(step.inputs() == 2 ? 1 : 2);
  return scales && scales->type == Type::f32 && place < scales->count() && scales->as<const float>()[place] == 1;
}

// Nothing may change along what is padded.
Rows resize(const PaddedStep& step, size_t output) {
  if (step.node().get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize") step.refuse("crops");
  const auto sizes = step.lengths(3);
  if (!sizes || sizes->empty()) {
    const int place = place_of_scale(step);
    if (place >= 0 && !has_scale_of_one(step, place)) step.refuse("may resize it");
    return first_alone(step, output);
  }
  step.others_unpadded({0, 3});
  const int place = place_of_scale(step);
  for (int i = 0; i < int(sizes->size()); ++i) {
    const int64_t size = (*sizes)[size_t(i)];
    if (i == place ? !step.is_padded_dim(size) : !step.is_fixed(size)) step.refuse("may resize it");
  }
  return step.axis(0);
}

constexpr RowRules kRules[] = {
    {"",
     "Abs Acos Acosh And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil Celu "
     "Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN "
     "LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or Pow Reciprocal Relu Round Selu Shrink "
     "Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sum Swish Tan Tanh ThresholdedRelu Xor",
     each},
    {"", "Add Sub", shifted},
    {"", "PRelu", by_slope},
    {"", "Where", where},
    {"com.microsoft", "Gelu QuickGelu", each},
    {"com.microsoft", "BiasGelu FastGelu", biased},
    {"", "Cast CastLike Identity", copy},
    {"", "Dropout", dropout},
    {"", "DequantizeLinear QuantizeLinear", linear_quantization},
    {"com.microsoft", "DequantizeLinear QuantizeLinear", linear_quantization},
    {"", "Hardmax LogSoftmax Softmax", softmax},
    {"", "LpNormalization TopK", last_axis},
    {"", "LayerNormalization RMSNormalization SimplifiedLayerNormalization", norm},
    {"com.microsoft", "SkipLayerNormalization SkipSimplifiedLayerNormalization", norm_of_sum},
    {"", "MeanVarianceNormalization", norm_over_axes},
    {"",
     "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
     "ReduceSumSquare",
     reduction},
    {"", "ArgMax ArgMin", arg_reduction},
    {"", "CumSum", cumulated},
    {"", "MatMul", product},
    {"", "MatMulInteger", integer_product},
    {"com.microsoft", "FusedMatMul", fused_product},
    {"", "QLinearMatMul", quantized_product},
    {"com.microsoft", "MatMulBnb4 MatMulNBits", weights_product},
    {"", "Gemm", gemm},
    {"", "Einsum", einsum},
    {"",
     "AveragePool ConvInteger ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool GlobalMaxPool "
     "GroupNormalization InstanceNormalization LRN LpPool MaxPool QLinearConv SpaceToDepth",
     batch},
    {"", "Conv", convolution},
    {"com.microsoft", "FusedConv GroupNorm NhwcConv", batch},
    {"", "BatchNormalization", batch_norm},
    {"", "GridSample", batch_of_places},
    {"", "Resize Upsample", resize},
};

}  // namespace

std::span<const RowRules> rules_of_math() { return kRules; }

}  // namespace encore::fuse
