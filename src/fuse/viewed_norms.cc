// Heads over their lengths, as attention by cosines has them, of which a product has made all.
#include <algorithm>

#include "fuse/links.h"
#include "fuse/passes.h"
#include "ops/norm/l2_norm.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr size_t kMostAxes = 5;

bool is_l2_norm(const Step& step) {
  return step.node && step.make && step.node->op_type() == "L2Norm" && step.node->domain() == kFusions &&
         step.inputs.size() == 1 && !step.node->find_string("x");
}

// The constant that alone multiplies the heads, and has no more than a number for each; or -1.
int factors_of(const Match& match, int heads, int scaling) {
  if (scaling < 0 || match.node(scaling).since_version() < 7) return -1;
  const int factors = match.other(scaling, heads);
  const Value &of = match.value(factors), &like = match.value(heads);
  return of.is_constant && of.type == like.type && of.dims && !of.dims->empty() &&
                 of.dims->size() <= like.dims->size() && of.dims->back() == 1 &&
                 match.value(match.step(scaling).outputs[0]).dims == like.dims
             ? factors
             : -1;
}

}  // namespace

// No path leaves both and comes back, for what multiplies is a constant.
void view_l2_norm(Match& match, int norm) {
  if (!is_l2_norm(match.step(norm))) return;
  int x = match.step(norm).inputs[0], y = match.step(norm).outputs[0];
  const auto& dims = match.value(y).dims;
  if (!dims || dims->empty() || dims->size() > kMostAxes || std::ranges::count(*dims, -1) > 0) return;
  std::vector<int> steps{norm};
  const int scaling = match.only_reader(y, "Mul"), factors = factors_of(match, y, scaling);
  if (factors >= 0) {
    steps.push_back(scaling);
    y = match.step(scaling).outputs[0];
  }
  const auto links = Links(match).above(x);
  if (links.empty() && factors < 0) return;
  std::vector<ops::ViewStep> views;
  for (const Link& link : links) {
    views.insert(views.begin(), *link.view);
    x = link.from;
  }
  Operator viewed = operator_of(match.node(norm));
  viewed.attributes["x"] = ops::text_of(views);
  std::vector<int> inputs{x};
  if (factors >= 0) inputs.push_back(factors);
  const int above = match.maker(match.step(norm).inputs[0]);
  Step made = match.plan().step(std::move(viewed), match.node(norm).name(), std::move(inputs), {y});
  made.make = ops::make_viewed_l2_norm;
  match.replace(std::move(steps), std::move(made));
  if (above >= 0 && !links.empty()) drop_unread(match, above);
}

}  // namespace encore::fuse
