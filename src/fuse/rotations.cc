// Rotary embeddings as models spell them out.
#include <algorithm>
#include <array>
#include <set>

#include "fuse/links.h"
#include "fuse/passes.h"
#include "fuse/rolls.h"
#include "ops/attention/rotary/viewed_rotation.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

using ops::ViewStep;

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};
constexpr size_t kRank = 4;
constexpr std::array<int64_t, kRank> kAxes{0, 1, 2, 3};

struct Rotated {
  std::vector<int> steps;  // from the negation of a half on
  std::vector<int> cuts;   // steps that cut halves
  std::set<int> reads_x;   // steps that do
  int x, cos, sin, y;      // values
  bool is_part = false;    // of heads, whose rest stays
};

// A Mul that only the step reads, or -1.
int product_of(const Match& match, int sum, size_t input) {
  const int v = match.step(sum).inputs[input], made = match.maker(v, "Mul");
  return made >= 0 && match.only_reader(v) == sum && match.node(made).since_version() >= 7 ? made : -1;
}

std::optional<Rotated> rotated_by(const Match& match, int sum) {
  if (!match.is(sum, "Add") || match.node(sum).since_version() < 7) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    const int turned = product_of(match, sum, i), plain = product_of(match, sum, 1 - i);
    if (turned < 0 || plain < 0) continue;
    for (const int v : match.step(turned).inputs) {
      const int concat = match.maker(v, "Concat");
      const auto halves = concat < 0 || match.only_reader(v) != turned ? std::nullopt : halves_turned_by(match, concat);
      const std::vector<int>& factors = match.step(plain).inputs;
      if (!halves || std::ranges::count(factors, halves->x) != 1) continue;
      std::set<int> readers(halves->cuts.begin(), halves->cuts.end());
      readers.insert(plain);
      return Rotated{{sum, turned, plain, concat, halves->negation},
                     halves->cuts,
                     std::move(readers),
                     halves->x,
                     match.other(plain, halves->x),
                     match.other(turned, v),
                     match.step(sum).outputs[0]};
    }
  }
  return std::nullopt;
}

bool reads_only(const Match& match, const std::set<int>& steps, int v) {
  return !match.value(v).is_output &&
         std::ranges::all_of(match.readers(v), [&](int reader) { return steps.contains(reader); });
}

// Halves that are rotated in float.
void narrow(const Match& match, Rotated& rotated) {
  const int widens = match.maker(rotated.x, "Cast"), narrows = match.only_reader(rotated.y, "Cast");
  if (widens < 0 || narrows < 0 || !reads_only(match, rotated.reads_x, rotated.x)) return;
  const int from = match.step(widens).inputs[0], to = match.step(narrows).outputs[0];
  if (!ops::kHalves.has(match.value(from).type) || match.value(from).type != match.value(to).type) return;
  rotated.x = from, rotated.y = to;
  rotated.steps.push_back(narrows);
  rotated.reads_x = {widens};
}

// The first part of heads, behind which the rest is put again.
void widen(const Match& match, Rotated& rotated) {
  const int concat = match.only_reader(rotated.y, "Concat");
  const auto own = part_of(match, rotated.x);
  if (concat < 0 || !own || match.step(concat).inputs.size() != 2 || match.step(concat).inputs[0] != rotated.y) return;
  const int rest_of_x = match.step(concat).inputs[1];
  const auto rest = part_of(match, rest_of_x);
  const auto rank = match.rank(own->x);
  if (!rest || rest->x != own->x || rank != kRank || own->axis != int(kRank) - 1 || rest->axis != own->axis ||
      own->begin != 0 || rest->begin != own->end || rest->end != own->size ||
      counted_from_first(match.node(concat).get_int("axis", 0), *rank) != size_t(own->axis))
    return;
  rotated.cuts.insert(rotated.cuts.end(), {match.maker(rotated.x), match.maker(rest_of_x)});
  rotated.x = own->x, rotated.y = match.step(concat).outputs[0];
  rotated.steps.push_back(concat);
  rotated.is_part = true;
}

// What of heads becomes x, and how.
struct Origin {
  int from = -1, gamma = -1;
  ops::ViewedRotation how;
};

bool keeps_heads(const std::vector<ViewStep>& steps) {
  return std::ranges::all_of(steps, [](const ViewStep& step) {
    return step.kind == ViewStep::transpose && std::ranges::is_permutation(step.numbers, kAxes) &&
           step.numbers.back() == kAxes.back();
  });
}

Origin origin_of(const Match& match, const Rotated& rotated) {
  const Links links(match);
  Origin made{rotated.x, -1, {}};
  std::set<int> readers = rotated.reads_x;
  for (;;) {
    const int norm = match.maker(made.from, "RMSNormalization");
    const bool is_own = reads_only(match, readers, made.from);
    if (norm >= 0 && is_own && !rotated.is_part && made.gamma < 0 && is_norm_of_rows(match, norm) &&
        keeps_heads(made.how.x)) {
      made.from = match.step(norm).inputs[0], made.gamma = match.step(norm).inputs[1];
      made.how.epsilon = match.node(norm).get_float("epsilon", 1e-5f);
      readers = {norm};
      continue;
    }
    const auto link = links.to(made.from);
    if (!link || !link->view) return made;
    if (is_own) readers.insert(link->steps.begin(), link->steps.end());
    made.how.x.insert(made.how.x.begin(), *link->view);
    made.from = link->from;
  }
}

std::vector<int64_t> inverse(const std::vector<int64_t>& order) {
  std::vector<int64_t> made(order.size());
  for (size_t i = 0; i < order.size(); ++i) made[size_t(order[i])] = int64_t(i);
  return made;
}

}  // namespace

// No path leaves them and comes back, for nobody else reads what is between.
void join_rotation(Match& match, int sum) {
  auto rotated = rotated_by(match, sum);
  if (!rotated) return;
  narrow(match, *rotated);
  const auto& part = match.value(rotated->x).dims;
  const int64_t size = part && !part->empty() ? part->back() : -1;
  widen(match, *rotated);
  const int cos = rotated->cos, sin = rotated->sin, y = rotated->y;
  const auto dims = match.value(y).dims;
  if (!kServed.has(match.value(y).type) || match.rank(rotated->x) != kRank || !dims || dims->size() != kRank ||
      size < 1 || size > ops::kLargestRotatedHead || dims->back() < size)
    return;
  for (const int table : {cos, sin})
    if (const auto& of = match.value(table).dims;
        !of || of->empty() || of->size() > kRank || of->back() != size || !kServed.has(match.value(table).type))
      return;
  Origin origin = origin_of(match, *rotated);
  auto& how = origin.how;
  how.y_order.assign(kAxes.begin(), kAxes.end());
  const bool turns = !how.x.empty() && keeps_heads({how.x.back()});
  if (turns) how.y_order = inverse(how.x.back().numbers);
  const std::string name = match.node(sum).name();
  const int made_y = turns ? match.add_like(y, " before it is turned", permuted(*dims, how.y_order)) : y;
  std::vector<Step> made;
  std::vector<int> inputs{origin.from, cos, sin};
  if (origin.gamma >= 0) inputs.push_back(origin.gamma);
  made.push_back(
      match.plan().step({kFusions, "Rotation", 1, ops::attributes_of(how)}, name, std::move(inputs), {made_y}));
  made.back().make = ops::make_viewed_rotation;
  if (turns) made.push_back(transposition(match, inverse(how.y_order), name, made_y, y));
  match.replace(rotated->steps, std::move(made));
  for (const int s : rotated->cuts)
    if (match.is_there(s)) drop_unread(match, s);
}

}  // namespace encore::fuse
