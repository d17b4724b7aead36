#include "fuse/padding_masks.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "device/half.h"
#include "fuse/shape_symbols.h"
#include "ops/index/padded_indices.h"

namespace encore::fuse {
namespace {

// What changes no result of the operator.
template <class T>
T neutral(const std::string& op) {
  using Limits = std::numeric_limits<T>;
  static const std::set<std::string> kOfLargest{"ArgMax", "LogSoftmax", "ReduceLogSumExp", "ReduceMax", "Softmax"};
  if (op == "ReduceProd") return T(1);
  if (op == "ArgMin" || op == "ReduceMin") return Limits::has_infinity ? Limits::infinity() : Limits::max();
  if (kOfLargest.contains(op)) return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  return T(0);
}

std::shared_ptr<OwnTensor> neutral_constant(Type type, const std::string& op) {
  auto made = std::make_shared<OwnTensor>();
  made->bytes.resize(device::size_bytes(type));
  const auto put = [&](auto value) { std::memcpy(made->bytes.data(), &value, sizeof value); };
  if (type == Type::i32)
    put(neutral<int32_t>(op));
  else if (type == Type::i64)
    put(neutral<int64_t>(op));
  else
    put_number(type, neutral<double>(op), made->bytes.data());
  made->view = {type, ops::Where::host, ops::Shape(), made->bytes.data()};
  return made;
}

// Also of doubles, which numbers_of() does not read.
bool holds(const Tensor& constant, double number) {
  if (!constant.data || !ops::kFloats.has(constant.type)) return false;
  const size_t bytes = device::size_bytes(constant.type);
  char wanted[sizeof(double)];
  put_number(constant.type, number, wanted);
  const char* const first = constant.as<const char>();
  for (int64_t i = 0; i < constant.count(); ++i)
    if (std::memcmp(first + size_t(i) * bytes, wanted, bytes) == 0) return true;
  return false;
}

class Masking {
 public:
  Masking(Plan& plan, int mask, int64_t dim) : plan_(plan), mask_(mask), dim_(dim) {}

  // Is added to the mask that is added to the scores, if there is one: that has fewer elements.
  void mask_keys(size_t softmax) {
    if (is_hidden_by_infinity(plan_.steps[softmax].inputs[0])) fill_blind_rows(softmax);
    const int scores = plan_.steps[softmax].inputs[0];
    size_t reader = softmax, input = 0;
    if (const size_t maker = maker_of(scores);
        maker < plan_.steps.size() && plan_.steps[maker].node && is_onnx(*plan_.steps[maker].node, "Add"))
      for (size_t i = 0; i < 2; ++i)
        if (is_mask(plan_.steps[maker].inputs[i], scores)) reader = maker, input = i;
    const int before = plan_.steps[reader].inputs[input];
    const auto [sum, is_new] = sums_.try_emplace(before, -1);
    if (is_new) {
      sum->second = add_sum(before, plan_.steps[reader].node->name());
      ++reader;
    }
    plan_.steps[reader].inputs[input] = sum->second;
  }

  // The mask of attention that is one step, if there is any.
  void mask_attention(size_t at) {
    const Step step = plan_.steps[at];
    const NodeInfo& node = *step.node;
    const bool is_onnxs = node.domain().empty();
    const size_t place = is_onnxs ? 3 : 5;
    std::vector<int> inputs = step.inputs;
    inputs.resize(std::max(inputs.size(), place + 1), -1);
    int mask = mask_;
    if (!is_onnxs) {
      mask = plan_.add({.name = plan_.values[size_t(mask_)].name + " for scores",
                        .type = plan_.values[size_t(mask_)].type,
                        .dims = Dims{1, 1, 1, dim_}});
      insert(at++, {"", "Unsqueeze", 13, {}}, node.name(),
             {mask_, plan_.add_constant(node.name() + "'s axes", own_ints({0, 1, 2}))}, mask);
    } else if (const int before = inputs[place]; before >= 0) {
      mask = plan_.add_like(before, " and padding");
      if (auto& dims = plan_.values[size_t(mask)].dims) dims->back() = dim_;
      const bool is_boolean = plan_.values[size_t(before)].type == Type::boolean;
      insert(at++, {"", is_boolean ? "And" : "Add", is_boolean ? 7 : 14, {}}, node.name(), {before, mask_}, mask);
    }
    const bool is_all = is_onnxs && inputs[place] < 0;
    inputs[place] = mask;
    Operator op = operator_of(node);
    // From version 24 on one value is not for all keys, as it is where inputs disagree, but for the first one.
    constexpr size_t kLengths = 6;
    if (is_all && (inputs.size() <= kLengths || inputs[kLengths] < 0)) op.since_version = 23;
    Step masked = plan_.step(std::move(op), node.name(), std::move(inputs), step.outputs);
    masked.origin = step.origin;
    plan_.steps[at] = std::move(masked);
  }

  void mask_rows(size_t at) {
    const Step& step = plan_.steps[at];
    const std::string name = step.node->name();
    const int before = step.inputs[0];
    const int kept = plan_.add_like(before, " without padding");
    const int otherwise = plan_.add_constant(name + "'s padding",
                                             neutral_constant(plan_.values[size_t(before)].type, step.node->op_type()));
    insert(at, {"", "Where", 16, {}}, name, {mask_, before, otherwise}, kept);
    plan_.steps[at + 1].inputs[0] = kept;
  }

  void scale_mean(size_t at) {
    const int mean = plan_.steps[at].outputs[0];
    const int small = plan_.add_like(mean, " with padding");
    plan_.steps[at].outputs[0] = small;
    insert(at + 1, {"", "Mul", 14, {}}, plan_.steps[at].node->name(), {small, mask_}, mean);
  }

  // A part of what indices are a sum of is looked at before another dimension changes the whole.
  void look_up(size_t at, const Lookup& lookup) {
    const int64_t tuples = is_onnx(*plan_.steps[at].node, "GatherND");
    const int data = plan_.steps[at].inputs[0];
    size_t sum = maker_of(plan_.steps[at].inputs[1]);
    for (; lookup.key >= 0 && plan_.steps[sum].make; sum = maker_of(plan_.steps[at].inputs[1])) at = sum;
    const int indices = plan_.steps[at].inputs[1], made = plan_.add_like(indices, " with padding");
    std::vector<int> reads{data, indices, mask_};
    if (lookup.key >= 0) reads.push_back(plan_.steps[sum].inputs[size_t(lookup.key)]);
    insert(at,
           {kFusions,
            "PaddedIndices",
            1,
            {{"axis", int64_t(lookup.axis)}, {"rows", int64_t(lookup.rows)}, {"tuples", tuples}}},
           plan_.steps[at].node->name(), std::move(reads), made);
    plan_.steps[at].make = ops::make_padded_indices;
    plan_.steps[at + 1].inputs[1] = made;
  }

 private:
  // Of the scores' keys, for several of their rows in common.
  bool is_mask(int v, int scores) const {
    const auto &dims = plan_.values[size_t(v)].dims, &all = plan_.values[size_t(scores)].dims;
    if (!dims || !all || dims->empty() || dims->size() > all->size()) return false;
    return dims->size() < all->size() || std::ranges::count(*dims, 1) > std::ranges::count(*all, 1);
  }

  // Whether a summand, or a choice, may hide all keys from a row.
  bool is_hidden_by_infinity(int scores) const {
    static const std::set<std::string> kHands{"Add",   "Cast",    "Concat", "Expand",    "Identity",  "Mul",  "Reshape",
                                              "Slice", "Squeeze", "Sub",    "Transpose", "Unsqueeze", "Where"};
    std::vector<int> values{scores};
    std::set<int> seen;
    while (!values.empty()) {
      const int v = values.back();
      values.pop_back();
      if (v < 0 || !seen.insert(v).second) continue;
      if (const Tensor* const constant = plan_.values[size_t(v)].constant) {
        if (holds(*constant, -std::numeric_limits<double>::infinity())) return true;
      } else if (const size_t maker = maker_of(v); maker < plan_.steps.size() && plan_.steps[maker].node) {
        const Step& step = plan_.steps[maker];
        if (step.node->domain().empty() && kHands.contains(step.node->op_type()))
          values.insert(values.end(), step.inputs.begin(), step.inputs.end());
      }
    }
    return false;
  }

  // A row that is added may see none of the keys that were there, as that of a window does. It would be no number, and
  // nor would be then what the next layer makes of others, though these give it no weight. So it is zeros, as are rows
  // that were there and see nothing.
  void fill_blind_rows(size_t softmax) {
    const int made = plan_.steps[softmax].outputs[0];
    const auto asks = [&](const Step& step) {
      return step.node && is_onnx(*step.node, "IsNaN") && step.inputs[0] == made;
    };
    if (std::ranges::any_of(plan_.steps, asks)) return;  // whoever asks knows what to do
    const std::string name = plan_.steps[softmax].node->name();
    const int blind = plan_.add_like(made, " of blind rows"), is_blind = plan_.add_like(made, " is of a blind row");
    plan_.values[size_t(is_blind)].type = Type::boolean;
    const int zero = plan_.add_constant(name + " of blind rows", neutral_constant(plan_.values[size_t(made)].type, ""));
    plan_.steps[softmax].outputs[0] = blind;
    insert(softmax + 1, {"", "IsNaN", 13, {}}, name, {blind}, is_blind);
    insert(softmax + 2, {"", "Where", 16, {}}, name, {is_blind, zero, blind}, made);
  }

  void insert(size_t at, Operator op, const std::string& name, std::vector<int> inputs, int output) {
    Step step = plan_.step(std::move(op), name, std::move(inputs), {output});
    plan_.steps.insert(plan_.steps.begin() + ptrdiff_t(at), std::move(step));
  }

  size_t maker_of(int v) const {
    const auto makes = [&](const Step& step) { return std::ranges::find(step.outputs, v) != step.outputs.end(); };
    return size_t(std::ranges::find_if(plan_.steps, makes) - plan_.steps.begin());
  }

  // In front of all that read the value.
  int add_sum(int v, const std::string& name) {
    const int sum = plan_.add_like(v, " and padding");
    if (auto& dims = plan_.values[size_t(sum)].dims) dims->back() = dim_;
    const auto reads = [&](const Step& step) { return std::ranges::find(step.inputs, v) != step.inputs.end(); };
    const auto first = std::ranges::find_if(plan_.steps, reads);
    insert(size_t(first - plan_.steps.begin()), {"", "Add", 14, {}}, name, {v, mask_}, sum);
    return sum;
  }

  Plan& plan_;
  const int mask_;
  const int64_t dim_;
  std::map<int, int> sums_;  // by what the mask was added to
};

Value value_of(const PaddingMask& mask, const std::string& dim, int64_t symbol) {
  if (mask.kind == PaddingMask::growth) return {.name = "growth of " + dim, .type = mask.type, .dims = Dims()};
  if (mask.kind == PaddingMask::length) return {.name = "length of " + dim, .type = mask.type, .dims = Dims{2}};
  Dims dims(size_t(1 + mask.behind), 1);
  dims[0] = symbol;
  return {.name = (mask.kind == PaddingMask::keys ? "padding of " : "rows of ") + dim, .type = mask.type, .dims = dims};
}

}  // namespace

void put_number(Type type, double value, char* to) {
  const auto put = [&](auto number) { std::memcpy(to, &number, sizeof number); };
  if (type == Type::f64) return put(value);
  if (type == Type::f32) return put(float(value));
  if (type == Type::f16) return put(device::Half(float(value)));
  put(device::BFloat16(float(value)));
}

void add_padding_masks(Plan& plan, const PaddedAxes& axes, const std::string& dim) {
  for (const auto& [mask, nodes] : axes.masked) {
    const int64_t symbol = find_dim(plan, dim).value();
    const int input = plan.add(value_of(mask, dim, symbol));
    plan.inputs.push_back(input);
    Masking masking(plan, input, symbol);
    for (int node : nodes) {
      const auto is_it = [&](const Step& step) { return step.origin == std::vector{node} && step.is_operator(); };
      const auto found = std::ranges::find_if(plan.steps, is_it);
      if (found == plan.steps.end())
        fail(Code::not_supported, "what goes along '", dim,
             "' is among convolutions with their channels last; leave it out of 'pad'");
      const size_t at = size_t(found - plan.steps.begin());
      if (found->runs != Runs::on_device)
        fail(Code::not_supported, ops::label_of(*found->node), " goes along '", dim,
             "' on the host; leave it out of 'pad'");
      const bool is_attention = plan.steps[at].node->op_type().ends_with("Attention");
      if (is_attention)
        masking.mask_attention(at);
      else if (mask.kind == PaddingMask::keys)
        masking.mask_keys(at);
      else if (mask.kind == PaddingMask::rows)
        masking.mask_rows(at);
      else if (mask.kind == PaddingMask::length)
        masking.look_up(at, axes.lookups.at(node));
      else
        masking.scale_mean(at);
    }
  }
}

}  // namespace encore::fuse
