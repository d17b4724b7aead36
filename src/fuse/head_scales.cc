// Scores that each head multiplies by a number of its own, in attention by cosines: queries are multiplied instead.
#include <algorithm>

#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

// A constant with a number for each head, or for more than a head, of scores of this rank.
bool is_of_heads(const Match& match, int v, size_t rank) {
  const auto& dims = match.value(v).dims;
  return match.value(v).is_constant && dims && dims->size() >= 3 && dims->size() <= rank && dims->back() == 1 &&
         (*dims)[dims->size() - 2] == 1;
}

// Whether there is a factor, or the one of all, for each of these, and no more.
bool is_for_each(const Dims& factors, const std::optional<Dims>& of) {
  if (!of || of->size() < factors.size()) return false;
  return std::equal(factors.rbegin(), factors.rend(), of->rbegin(),
                    [](int64_t factor, int64_t dim) { return factor == 1 || factor == dim; });
}

// Rows whose length is one, so that halves have room for their multiples; turned or not.
bool are_of_length_one(const Match& match, int v) {
  while (match.maker(v, "Transpose") >= 0) v = match.step(match.maker(v)).inputs[0];
  const int made = match.producer(v);
  return made >= 0 && match.step(made).node && match.node(made).op_type() == "L2Norm" &&
         match.node(made).domain() == kFusions;
}

}  // namespace

void scale_heads(Match& match, int product) {
  if (!match.is(product, "MatMul")) return;
  const Step step = match.step(product);
  const int scores = step.outputs[0], scaling = match.only_reader(scores, "Mul");
  const auto rank = match.rank(scores);
  if (scaling < 0 || !rank || step.inputs.size() != 2 || match.rank(step.inputs[0]) != rank ||
      !kServed.has(match.value(scores).type) || !are_of_length_one(match, step.inputs[0]))
    return;
  const int factors = match.other(scaling, scores);
  if (!is_of_heads(match, factors, *rank) ||
      match.value(scores).dims != match.value(match.step(scaling).outputs[0]).dims ||
      !is_for_each(*match.value(factors).dims, match.value(step.inputs[0]).dims) ||
      !goes_to_a_softmax(match, match.step(scaling).outputs[0]))
    return;
  const std::string name = match.node(scaling).name();
  const int queries = match.add_like(step.inputs[0], " by heads");
  match.replace({product, scaling},
                std::vector{match.plan().step({ops::kOnnx, "Mul", 14}, name, {step.inputs[0], factors}, {queries}),
                            match.plan().step({ops::kOnnx, "MatMul", step.node->since_version()}, step.node->name(),
                                              {queries, step.inputs[1]}, match.step(scaling).outputs)});
}

}  // namespace encore::fuse
