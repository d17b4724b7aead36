// Heads whose batch is not seen apart from them, as torch.bmm wants them, around masks that do so. Attention is found
// where all have four dimensions.
#include <algorithm>
#include <map>

#include "fuse/own_tensor.h"
#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr size_t kFlat = 3, kApart = 4;

bool ends_alike(const Dims& a, const Dims& b) {
  return std::equal(a.end() - 2, a.end(), b.end() - 2) && std::count(a.end() - 2, a.end(), -1) == 0;
}
// Whether a Reshape takes the first dimension apart, or puts the first two together, and leaves the last two.
bool reshapes(const Match& match, int s, size_t from, size_t to) {
  if (!match.is(s, "Reshape")) return false;
  const auto &x = match.value(match.step(s).inputs[0]).dims, &y = match.value(match.step(s).outputs[0]).dims;
  return x && y && x->size() == from && y->size() == to && ends_alike(*x, *y);
}

// [batch * heads, ...] as [batch, heads, ...], if no more than one of these is no number.
std::optional<Dims> apart(const Match& match, int flat, const Dims& like) {
  const auto& dims = match.value(flat).dims;
  if (!dims || dims->size() != kFlat) return std::nullopt;
  Dims made{like[0], like[1], (*dims)[1], (*dims)[2]};
  const bool is_known = std::ranges::count_if(made, [](int64_t dim) { return dim < 0; }) <= 1;
  return is_known && std::ranges::count(made, 0) == 0 ? std::optional(made) : std::nullopt;
}
bool is_of(const Match& match, int v, int64_t heads) {
  const auto& dims = match.value(v).dims;
  return heads != -1 && dims && dims->size() == kFlat && dims->front() == heads;
}
// A value that is so, which one more step makes.
int add_apart(Match& match, int flat, const Dims& dims) {
  Dims numbers = dims;
  for (int64_t& number : numbers) number = std::max<int64_t>(number, -1);
  const std::string name = match.value(flat).name;
  const int shape = match.add_constant(name + "'s heads", own_ints(numbers));
  const int y = match.add_like(flat, " by heads", dims);
  match.insert(match.plan().step({ops::kOnnx, "Reshape", 13}, name, {flat, shape}, {y}));
  return y;
}

// Steps from a product of heads to scores, the last one first.
struct Scores {
  std::vector<int> steps;
  int product = -1;
};

// One that is added to scores by heads as it is, or may be seen so.
bool is_mask(const Match& match, int v, int64_t heads, const Dims& like) {
  const auto& dims = match.value(v).dims;
  if (!dims || dims->size() > kFlat) return false;
  return dims->size() < kFlat || dims->front() == 1 || (dims->front() == heads && apart(match, v, like));
}
// A multiple of a product, or that itself.
bool leads_on(const Match& match, int v) {
  const int made = match.only_reader(v) < 0 ? -1 : match.maker(v);
  return made >= 0 && match.rank(v) == kFlat && (match.is(made, "MatMul") || match.scaled(made));
}

std::optional<Scores> scores_of(const Match& match, int v, const Dims& like) {
  Scores found;
  const int64_t heads = match.value(v).dims->front();
  while (heads != -1 && match.only_reader(v) >= 0) {
    const int made = match.maker(v);
    if (made < 0 || match.rank(v) != kFlat || match.value(v).dims->front() != heads) break;
    found.steps.push_back(made);
    const std::vector<int>& inputs = match.step(made).inputs;
    if (match.is(made, "MatMul") && inputs.size() == 2) {
      const auto is_own = [&](int factor) { return apart(match, factor, like) && is_of(match, factor, heads); };
      found.product = made;
      return std::ranges::all_of(inputs, is_own) ? std::optional(found) : std::nullopt;
    }
    if (const auto by = match.scaled(made)) {
      v = by->from;
    } else if (match.is(made, "Add")) {
      const size_t scores = leads_on(match, inputs[0]) ? 0 : 1;
      if (!leads_on(match, inputs[scores]) || !is_mask(match, inputs[1 - scores], heads, like)) break;
      v = inputs[scores];
    } else {
      break;
    }
  }
  return std::nullopt;
}

// A product of probabilities by values, on both sides of which heads are seen apart.
void part_values(Match& match, int product) {
  const Step step = match.step(product);
  const int flat = match.only_reader(step.inputs[0]) < 0 ? -1 : match.maker(step.inputs[0], "Reshape");
  const int back = match.only_reader(step.outputs[0], "Reshape");
  if (step.inputs.size() != 2 || flat < 0 || back < 0 || !reshapes(match, flat, kApart, kFlat) ||
      !reshapes(match, back, kFlat, kApart))
    return;
  const int p = match.step(flat).inputs[0], y = match.step(back).outputs[0];
  const Dims like = *match.value(p).dims, of_y = *match.value(y).dims;
  const auto values = apart(match, step.inputs[1], like);
  if (!values || of_y[0] != like[0] || of_y[1] != like[1] ||
      !is_of(match, step.inputs[1], match.value(step.inputs[0]).dims->front()))
    return;
  const int v = add_apart(match, step.inputs[1], *values);
  match.replace({flat, product, back}, match.plan().step({ops::kOnnx, "MatMul", 13}, step.node->name(), {p, v}, {y}));
}

// A softmax of rows comes before the Reshape that is ahead of it.
void flatten_behind(Match& match, int softmax) {
  const Step& step = match.step(softmax);
  const int scores = step.inputs[0], y = step.outputs[0];
  const int flat = match.only_reader(scores) < 0 ? -1 : match.maker(scores, "Reshape");
  const int64_t axis = step.node->get_int("axis", -1);
  if (flat < 0 || step.node->since_version() < 13 || !reshapes(match, flat, kApart, kFlat) ||
      (axis != -1 && axis != int64_t(kFlat) - 1))
    return;
  const Step& reshape = match.step(flat);
  Operator by_heads = operator_of(*step.node);
  by_heads.attributes["axis"] = int64_t(-1);
  const int p = match.add_like(y, " by heads", match.value(reshape.inputs[0]).dims);
  match.replace(
      {flat, softmax},
      std::vector{match.plan().step(std::move(by_heads), step.node->name(), {reshape.inputs[0]}, {p}),
                  match.plan().step(operator_of(*reshape.node), reshape.node->name(), {p, reshape.inputs[1]}, {y})});
}

// Scores that masks or a softmax see by heads are made so, with what is added before.
void part_scores(Match& match, int reshape) {
  if (!reshapes(match, reshape, kFlat, kApart)) return;
  const int flat = match.step(reshape).inputs[0], y = match.step(reshape).outputs[0];
  const Dims like = *match.value(y).dims;
  const auto found = scores_of(match, flat, like);
  if (!found || !goes_to_a_softmax(match, y)) return;
  std::map<int, int> by_heads;
  std::vector<Step> made;
  for (auto s = found->steps.rbegin(); s != found->steps.rend(); ++s) {
    const Step step = match.step(*s);
    std::vector<int> inputs = step.inputs;
    for (int& v : inputs) {
      const auto& dims = match.value(v).dims;
      const bool is_flat = dims && dims->size() == kFlat && (*s == found->product || dims->front() != 1);
      if (is_flat && !by_heads.contains(v)) by_heads[v] = add_apart(match, v, *apart(match, v, like));
      if (by_heads.contains(v)) v = by_heads[v];
    }
    const int scores = step.outputs[0];
    by_heads[scores] = scores == flat ? y : match.add_like(scores, " by heads", like);
    made.push_back(
        match.plan().step(operator_of(*step.node), step.node->name(), std::move(inputs), {by_heads[scores]}));
  }
  std::vector<int> steps = found->steps;
  steps.push_back(reshape);
  match.replace(std::move(steps), std::move(made));
}

}  // namespace

void part_heads(Match& match, int s) {
  if (match.is(s, "Softmax")) return flatten_behind(match, s);
  if (match.is(s, "MatMul")) return part_values(match, s);
  part_scores(match, s);
}

}  // namespace encore::fuse
