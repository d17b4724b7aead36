// Rotary embeddings as models spell them out.
#include <algorithm>
#include <array>
#include <set>

#include "fuse/links.h"
#include "fuse/own_tensor.h"
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
  std::vector<int> steps;  // from what turns x on
  std::vector<int> cuts;   // steps that cut x apart, or widen it
  std::set<int> reads_x;   // steps that do
  int x, cos, sin, y;      // values
  bool interleaved;        // pairs are neighbours
  bool is_turned_narrow;   // and is made float then
  bool is_part = false;    // of heads, whose rest stays
};

// A Mul that only the step reads, or -1.
int product_of(const Match& match, int sum, size_t input) {
  const int v = match.step(sum).inputs[input], made = match.maker(v, "Mul");
  return made >= 0 && match.only_reader(v) == sum && match.node(made).since_version() >= 7 ? made : -1;
}

// What turns halves, or neighbours, whose pairs are one dimension behind it.
std::optional<TurnedPairs> turned_by(const Match& match, int v) {
  const int reshape = match.maker(v, "Reshape");
  if (reshape < 0) return halves_turned_by(match, match.maker(v, "Concat"));
  const int pairs = match.step(reshape).inputs[0];
  auto turned = pairs_turned_by(match, match.only_reader(pairs) < 0 ? -1 : match.maker(pairs, "Concat"));
  const auto& dims = match.value(v).dims;
  if (!turned || !dims || dims != match.value(turned->x).dims || std::ranges::count(*dims, -1)) return std::nullopt;
  turned->steps.push_back(reshape);
  return turned;
}

// The factor that is x, or made of x by a Cast to the type, if there is one; or -1.
int factor_of(const Match& match, int product, int x, std::optional<Type> wide) {
  const std::vector<int>& factors = match.step(product).inputs;
  const auto is_x = [&](int v) {
    const int cast = wide ? match.maker(v, "Cast") : -1;
    return wide ? cast >= 0 && match.step(cast).inputs[0] == x && match.value(v).type == *wide : v == x;
  };
  return std::ranges::count_if(factors, is_x) == 1 ? *std::ranges::find_if(factors, is_x) : -1;
}

std::optional<Rotated> rotated_by(const Match& match, int sum) {
  if (!match.is(sum, "Add") || match.node(sum).since_version() < 7) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    const int product = product_of(match, sum, i), plain = product_of(match, sum, 1 - i);
    if (product < 0 || plain < 0) continue;
    for (const int v : match.step(product).inputs) {
      const int widens = match.only_reader(v) == product ? match.maker(v, "Cast") : -1;
      const int from = widens < 0 ? v : match.step(widens).inputs[0];
      const auto turned =
          match.only_reader(from) < 0 || match.only_reader(v) != product ? std::nullopt : turned_by(match, from);
      if (!turned) continue;
      const auto wide = widens < 0 ? std::nullopt : std::optional(match.value(v).type);
      const int factor = factor_of(match, plain, turned->x, wide);
      if (factor < 0) continue;
      Rotated made{turned->steps,
                   turned->cuts,
                   {turned->cuts.begin(), turned->cuts.end()},
                   turned->x,
                   match.other(plain, factor),
                   match.other(product, v),
                   match.step(sum).outputs[0],
                   match.maker(from, "Reshape") >= 0,
                   widens >= 0};
      made.steps.insert(made.steps.end(), {sum, product, plain});
      if (wide) {
        made.steps.push_back(widens);
        made.cuts.push_back(match.maker(factor));
      }
      made.reads_x.insert(wide ? match.maker(factor) : plain);
      return made;
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
  const int widens = rotated.is_turned_narrow ? -1 : match.maker(rotated.x, "Cast");
  const int narrows = match.only_reader(rotated.y, "Cast");
  if (narrows < 0 || (!rotated.is_turned_narrow && (widens < 0 || !reads_only(match, rotated.reads_x, rotated.x))))
    return;
  const int from = widens < 0 ? rotated.x : match.step(widens).inputs[0], to = match.step(narrows).outputs[0];
  if (!ops::kHalves.has(match.value(from).type) || match.value(from).type != match.value(to).type) return;
  rotated.x = from, rotated.y = to;
  rotated.steps.push_back(narrows);
  if (widens >= 0) rotated.reads_x = {widens};
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

// The table behind rows that are all this number. Whoever wants that, too, finds it.
int behind(Match& match, int table, size_t axis, int64_t rows, double number) {
  const std::string name = match.value(table).name;
  const Type type = match.value(table).type;
  Dims ahead = *match.value(table).dims, all = ahead;
  ahead[axis] = rows, all[axis] += rows;
  const std::vector<double> numbers(size_t(ops::Shape(ahead).count()), number);
  for (const int s : match.readers(table)) {
    const Tensor* const constant = match.is(s, "Concat") ? match.plan().constant(match.step(s), 0) : nullptr;
    if (constant && match.step(s).inputs.size() == 2 && match.step(s).inputs[1] == table &&
        constant->shape == ops::Shape(ahead) && match.value(match.step(s).outputs[0]).dims == all &&
        numbers_of(*constant) == numbers)
      return match.step(s).outputs[0];
  }
  const int first = match.add_constant(name + "'s first rows", own_numbers(type, ops::Shape(ahead), numbers)),
            made = match.add_like(table, " behind others", all);
  match.insert(match.plan().step({ops::kOnnx, "Concat", 13, {{"axis", int64_t(axis)}}}, name, {first, table}, {made}));
  return made;
}

// The part of x that it is, perhaps cut out before it is turned as x is.
std::optional<Part> part_of_turned(const Match& match, int v, int x) {
  if (auto part = part_of(match, v)) return part->x == x ? part : std::nullopt;
  const int turn = match.maker(v, "Transpose"), whole = match.maker(x, "Transpose");
  const auto order = turn < 0 || whole < 0 ? std::nullopt : match.node(turn).find_ints("perm");
  if (!order || order != match.node(whole).find_ints("perm")) return std::nullopt;
  auto part = part_of(match, match.step(turn).inputs[0]);
  if (!part || part->x != match.step(whole).inputs[0]) return std::nullopt;
  part->x = x, part->axis = int(std::ranges::find(*order, part->axis) - order->begin());
  return part;
}

// Rows behind others that stay, as a class token does: those are rotated by nothing.
void take_rows_ahead(Match& match, Rotated& rotated) {
  const int concat = match.only_reader(rotated.y, "Concat");
  const auto own = part_of(match, rotated.x);
  if (concat < 0 || !own || match.step(concat).inputs.size() != 2 || match.step(concat).inputs[1] != rotated.y) return;
  const int first_of_x = match.step(concat).inputs[0];
  const auto first = part_of_turned(match, first_of_x, own->x);
  const auto rank = match.rank(own->x);
  if (!first || rank != kRank || own->axis == int(kRank) - 1 || first->axis != own->axis || first->begin != 0 ||
      first->end != own->begin || own->begin == 0 || own->end != own->size ||
      counted_from_first(match.node(concat).get_int("axis", 0), *rank) != size_t(own->axis))
    return;
  const size_t from_end = kRank - size_t(own->axis);
  for (const int table : {rotated.cos, rotated.sin})
    if (const Dims& dims = *match.value(table).dims;
        dims.size() < from_end || !are_numbers(dims) || dims[dims.size() - from_end] != own->end - own->begin)
      return;
  const auto with_rows = [&](int table, double number) {
    return behind(match, table, match.value(table).dims->size() - from_end, own->begin, number);
  };
  rotated.cos = with_rows(rotated.cos, 1), rotated.sin = with_rows(rotated.sin, 0);
  rotated.reads_x = {match.maker(rotated.x), match.maker(first_of_x)};
  rotated.cuts.insert(rotated.cuts.end(), rotated.reads_x.begin(), rotated.reads_x.end());
  rotated.x = own->x, rotated.y = match.step(concat).outputs[0];
  rotated.steps.push_back(concat);
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
  const auto served = [&](int v) { return kServed.has(match.value(v).type); };
  if (!served(rotated->y) || match.rank(rotated->x) != kRank || match.rank(rotated->y) != kRank ||
      (rotated->is_turned_narrow && match.value(rotated->x).type != match.value(rotated->y).type) || size < 1 ||
      size > ops::kLargestRotatedHead || match.value(rotated->y).dims->back() < size)
    return match.note(sum, "there are no kernels for heads of this type, size and number of dimensions");
  for (const int table : {rotated->cos, rotated->sin})
    if (const auto& of = match.value(table).dims;
        !of || of->empty() || of->size() > kRank || of->back() != size || !served(table))
      return match.note(sum, "cosines or sines are not of the size of heads");
  if (!rotated->is_part) take_rows_ahead(match, *rotated);
  const int y = rotated->y;
  const Dims dims = *match.value(y).dims;
  Origin origin = origin_of(match, *rotated);
  auto& how = origin.how;
  how.interleaved = rotated->interleaved;
  how.y_order.assign(kAxes.begin(), kAxes.end());
  const bool turns = !how.x.empty() && keeps_heads({how.x.back()});
  if (turns) how.y_order = inverse(how.x.back().numbers);
  const std::string name = match.node(sum).name();
  const int made_y = turns ? match.add_like(y, " before it is turned", permuted(dims, how.y_order)) : y;
  std::vector<Step> made;
  std::vector<int> inputs{origin.from, rotated->cos, rotated->sin};
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
