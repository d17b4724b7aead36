// Sums of convolutions of one picture, as RepVGG, MobileOne, RepViT and FastViT are trained with: what is linear in a
// picture is one convolution, whose weights are the sum of all.
#include <algorithm>
#include <functional>

#include "fuse/batch_norms.h"
#include "fuse/passes.h"
#include "fuse/window_dims.h"
#include "ops/nn/window.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

using Numbers = std::vector<double>;

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};
constexpr size_t kMostSteps = 64;  // of a sum; a value that is read twice counts twice

// A convolution of the picture, or the picture itself, which is a window of one tap; each channel times its factor.
struct Summand {
  int conv;  // or -1
  ops::Window window;
  Numbers factors;
};

struct Sum {
  int x;
  Type type;
  std::string domain;  // of the convolutions, which says where channels are
  Dims dims, weights;  // of the picture, channels first, and of the convolution that was found first
  int64_t groups;
  std::vector<int> steps = {};
  std::vector<Summand> summands = {};
  Numbers biases = {};

  size_t channels() const { return size_t(weights[0]); }  // of what is made
  size_t depth() const { return size_t(weights[1]); }
  // A row's dimensions behind its channels are so many.
  size_t behind() const { return domain == ops::kChannelsLast ? 0 : weights.size() - 2; }
};

// The dimensions of its weights, if these and its bias are constants. Nobody else reads the weights: others would need
// another copy.
std::optional<Dims> constant_weights(const Match& match, const Step& conv) {
  const Tensor *const weights = match.plan().constant(conv, 1), *const bias = match.plan().constant(conv, 2);
  const bool has_bias = conv.inputs.size() > 2 && conv.inputs[2] >= 0;
  if (!weights || match.readers(conv.inputs[1]).size() != 1 || !kServed.has(weights->type) ||
      weights->type != match.value(conv.inputs[0]).type || weights->shape.rank() < 3)
    return std::nullopt;
  if (has_bias && (!bias || bias->type != weights->type || bias->shape != ops::Shape{weights->shape[0]}))
    return std::nullopt;
  const auto dims = weights->shape.dims();
  return Dims(dims.begin(), dims.end());
}

// Nothing if the model doesn't tell how long x is where padding depends on it.
std::optional<ops::Window> window_of(const NodeInfo& conv, const Dims& x, const Dims& weights) {
  const std::span<const int64_t> kernel(weights.begin() + 2, weights.end());
  const auto given = conv.find_ints("kernel_shape");
  if (given && !given->empty() && !std::ranges::equal(*given, kernel)) return std::nullopt;
  const auto window = slid(conv, x, kernel);
  const bool follows = conv.get_string("auto_pad", "NOTSET").starts_with("SAME");
  for (size_t i = 2; window && follows && i < x.size(); ++i)
    if (x[i] < 0 && window->stride[size_t(ops::kSpatial) - x.size() + i] != 1) return std::nullopt;
  return window;
}

// One that stays where it is.
ops::Window window_of_one(const ops::Window& like) {
  ops::Window one;
  std::ranges::copy(like.in, one.in);
  std::ranges::copy(like.in, one.out);
  return one;
}

// Of nothing yet, and for the convolutions that can be summed up with this one.
std::optional<Sum> sum_for(const Match& match, int conv) {
  if (!is_conv(match, conv)) return std::nullopt;
  const Step& step = match.step(conv);
  const Value& x = match.value(step.inputs[0]);
  const auto weights = constant_weights(match, step);
  const int64_t groups = step.node->get_int("group", 1);
  if (!weights || !x.dims || weights->size() != x.dims->size() || weights->at(0) < 1 || weights->at(1) < 1 ||
      groups < 1 || weights->at(0) % groups != 0)
    return std::nullopt;
  Dims dims = *x.dims;
  if (step.node->domain() == ops::kChannelsLast) std::rotate(dims.begin() + 1, dims.end() - 1, dims.end());
  return Sum{step.inputs[0], x.type, step.node->domain(), std::move(dims), *weights, groups};
}

// A constant that has a number for each channel, or one for all; else nothing.
Numbers row_of(const Match& match, int v, const Sum& sum) {
  const Tensor* const constant = match.value(v).constant;
  if (!constant || constant->type != sum.type) return {};
  const auto dims = constant->shape.dims();
  const size_t channels = sum.channels(), behind = sum.behind();
  if (dims.size() > sum.weights.size()) return {};
  if (constant->count() == 1) return Numbers(channels, numbers_of(*constant).at(0));
  if (size_t(constant->count()) != channels || dims.size() <= behind ||
      size_t(dims[dims.size() - 1 - behind]) != channels)
    return {};
  return numbers_of(*constant);
}

void add_row(Sum& sum, const Numbers& factors, const Numbers& row) {
  sum.biases.resize(sum.channels());
  for (size_t c = 0; c < row.size(); ++c) sum.biases[c] += factors[c] * row[c];
}

Numbers product(Numbers factors, const Numbers& row) {
  std::ranges::transform(factors, row, factors.begin(), std::multiplies());
  return factors;
}

bool add_convolution(const Match& match, int conv, const Numbers& factors, Sum& sum) {
  const Step& step = match.step(conv);
  const auto dims = constant_weights(match, step);
  if (step.inputs[0] != sum.x || step.node->domain() != sum.domain || step.node->get_int("group", 1) != sum.groups ||
      !dims || dims->size() != sum.weights.size() || !std::equal(dims->begin(), dims->begin() + 2, sum.weights.begin()))
    return false;
  const auto window = window_of(*step.node, sum.dims, *dims);
  if (!window) return false;
  if (const Tensor* const bias = match.plan().constant(step, 2)) add_row(sum, factors, numbers_of(*bias));
  sum.summands.push_back({conv, *window, factors});
  return true;
}

// Adds what the value is, times the factors, if that is linear in the picture.
bool add(const Match& match, int v, const Numbers& factors, Sum& sum) {
  if (match.value(v).type != sum.type) return false;
  if (v == sum.x) {
    sum.summands.push_back({-1, {}, factors});
    return sum.channels() == sum.depth() * size_t(sum.groups);
  }
  if (const Numbers row = row_of(match, v, sum); !row.empty()) {
    add_row(sum, factors, row);
    return true;
  }
  const int s = match.maker(v);
  if (s < 0 || sum.steps.size() == kMostSteps) return false;
  sum.steps.push_back(s);
  const std::vector<int>& inputs = match.step(s).inputs;
  if (is_conv(match, s)) return add_convolution(match, s, factors, sum);
  if (is_norm_of_constants(match, s) && match.node(s).domain() == sum.domain) {
    const NormRows rows = rows_of_norm(match, match.step(s), sum.weights[0]);
    if (rows.factors.empty()) return false;
    add_row(sum, factors, rows.summands);
    return add(match, inputs[0], product(factors, rows.factors), sum);
  }
  if (match.node(s).since_version() < 7) return false;
  if (match.is(s, "Mul")) {
    for (size_t i = 0; i < 2; ++i)
      if (const Numbers row = row_of(match, inputs[i], sum); !row.empty())
        return add(match, inputs[1 - i], product(factors, row), sum);
    return false;
  }
  if (!match.is(s, "Add") && !match.is(s, "Sub")) return false;
  const Numbers signs(sum.channels(), match.is(s, "Add") ? 1 : -1);
  return add(match, inputs[0], factors, sum) && add(match, inputs[1], product(factors, signs), sum);
}

// Whether nobody reads what is between.
bool is_closed(const Match& match, const Sum& sum, int last) {
  const auto is_inside = [&](int s) { return std::ranges::count(sum.steps, s) > 0; };
  return std::ranges::all_of(sum.steps, [&](int s) {
    const int made = match.step(s).outputs[0];
    return s == last || (!match.value(made).is_output && std::ranges::all_of(match.readers(made), is_inside));
  });
}

// The convolution of the most taps.
const Summand& widest(const Sum& sum) {
  return *std::ranges::max_element(sum.summands, {},
                                   [](const Summand& one) { return one.conv < 0 ? 0 : one.window.taps(); });
}

// Where the taps of a window are among those of a wider one along a dimension.
struct Taps {
  int64_t first, step;
};

// Nothing if some are not, or if one window stops at other places than the other. How long x is may not be known.
std::optional<Taps> taps_in(const ops::Window& wide, const ops::Window& window, int d, bool is_known) {
  const auto surplus = [d](const ops::Window& w) {
    return int64_t(w.before[d]) + w.after[d] - int64_t(w.kernel[d] - 1) * w.dilation[d];
  };
  if (window.stride[d] != wide.stride[d] ||
      (is_known ? window.out[d] != wide.out[d] : surplus(window) != surplus(wide)))
    return std::nullopt;
  const int64_t unit = wide.dilation[d], step = window.kernel[d] > 1 ? window.dilation[d] : unit,
                ahead = wide.before[d] - window.before[d];
  if (ahead < 0 || ahead % unit != 0 || step % unit != 0 ||
      ahead / unit + (window.kernel[d] - 1) * (step / unit) >= wide.kernel[d])
    return std::nullopt;
  return Taps{ahead / unit, step / unit};
}

// Each tap's place in the wider window; nothing if some have none.
std::vector<size_t> places_in(const ops::Window& wide, const ops::Window& window, const Dims& x) {
  std::vector<size_t> places{0};
  for (size_t i = 2; i < x.size(); ++i) {
    const int d = ops::kSpatial - int(x.size() - i);
    const auto taps = taps_in(wide, window, d, x[i] >= 0);
    if (!taps) return {};
    std::vector<size_t> finer;
    for (const size_t place : places)
      for (int64_t tap = 0; tap < window.kernel[d]; ++tap)
        finer.push_back(place * size_t(wide.kernel[d]) + size_t(taps->first + tap * taps->step));
    places = std::move(finer);
  }
  return places;
}

// What the summand multiplies by, as a convolution has it.
Numbers weights_of(const Match& match, const Summand& summand, const Sum& sum) {
  if (summand.conv >= 0) return numbers_of(*match.value(match.step(summand.conv).inputs[1]).constant);
  Numbers ones(sum.channels() * sum.depth());
  for (size_t c = 0; c < sum.channels(); ++c) ones[c * sum.depth() + c % sum.depth()] = 1;
  return ones;
}

// In windows like the widest.
Numbers summed_weights(const Match& match, const Sum& sum) {
  const ops::Window& wide = widest(sum).window;
  const size_t rows = sum.channels() * sum.depth(), all = size_t(wide.taps());
  Numbers weights(rows * all);
  for (const Summand& summand : sum.summands) {
    const Numbers numbers = weights_of(match, summand, sum);
    const std::vector<size_t> places = places_in(wide, summand.window, sum.dims);
    for (size_t row = 0; row < rows; ++row)
      for (size_t tap = 0; tap < places.size(); ++tap)
        weights[row * all + places[tap]] += summand.factors[row / sum.depth()] * numbers[row * places.size() + tap];
  }
  return weights;
}

// The largest sum that the convolution is a part of.
std::optional<Sum> find_sum(const Match& match, int conv) {
  const std::optional<Sum> none = sum_for(match, conv);
  std::optional<Sum> found;
  if (!none) return found;
  for (int s = match.only_reader(match.step(conv).outputs[0]); s >= 0;) {
    const int y = match.step(s).outputs[0];
    Sum sum = *none;
    if (y < 0 || !add(match, y, Numbers(sum.channels(), 1), sum)) break;
    for (Summand& summand : sum.summands)
      if (summand.conv < 0) summand.window = window_of_one(widest(sum).window);
    const bool fits = std::ranges::all_of(sum.summands, [&](const Summand& summand) {
      return !places_in(widest(sum).window, summand.window, sum.dims).empty();
    });
    if (fits && is_closed(match, sum, s)) found.emplace(std::move(sum));
    s = match.only_reader(y);
  }
  return found;
}

}  // namespace

void join_convolution_sum(Match& match, int conv) {
  std::optional<Sum> sum = find_sum(match, conv);
  if (!sum) return;
  const int wide = widest(*sum).conv;
  std::vector<int> inputs{sum->x};
  const Value weights = match.value(match.step(wide).inputs[1]);
  auto summed = own_rows(weights.type, weights.constant->shape, summed_weights(match, *sum));
  if (!summed) return;
  auto biases = own_finite_numbers(weights.type, ops::Shape{sum->weights[0]}, sum->biases);
  if (!biases) return;
  std::ranges::sort(sum->steps);
  sum->steps.erase(std::unique(sum->steps.begin(), sum->steps.end()), sum->steps.end());
  std::string name;
  for (const int s : sum->steps)
    if (is_conv(match, s)) name += (name.empty() ? "" : " and ") + match.node(s).name();
  inputs.push_back(match.add_constant(weights.name, std::move(summed)));
  if (std::ranges::any_of(sum->biases, [](double bias) { return bias != 0; }))
    inputs.push_back(match.add_constant(name + "'s biases", std::move(biases)));
  const int last = sum->steps.back();
  match.replace(sum->steps, match.plan().step(operator_of(match.node(wide)), name, std::move(inputs),
                                              {match.step(last).outputs[0]}));
}

}  // namespace encore::fuse
