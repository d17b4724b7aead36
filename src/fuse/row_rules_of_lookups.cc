#include "fuse/row_rules.h"

#include <algorithm>

namespace encore::fuse {
namespace {

// By indices of which nothing else is known than that they are as they were, of an axis that is nowhere else.
Rows looked_up(Rows made, Lookup lookup) {
  made.masks = {{PaddingMask::length}};
  made.lookup = lookup;
  return made;
}

// Of an axis that has other dimensions, too.
struct FlatIndex {
  std::optional<IndexTerm> own;  // what counts along the dimension
  std::optional<IndexTerm> key;  // what else there is that goes along it
  bool skips = false;            // all of the dimension
};

// Whether what is added to multiples of a row's size never leaves the row.
bool stay_inside(const PaddedStep& step, std::vector<IndexTerm> terms, const Volume& inside) {
  Volume bound;  // below it is what the terms come to
  while (!terms.empty()) {
    const auto next = std::ranges::find(terms, bound, &IndexTerm::factor);
    const auto count = next == terms.end() ? std::nullopt : volume_of(next->count, step.volumes());
    const auto all = count ? product(bound, *count) : std::nullopt;
    if (!all) return false;
    bound = *all;
    terms.erase(next);
  }
  return quotient(inside, bound).has_value();
}

// Of terms that padding leaves as they are, but for their factors.
std::optional<FlatIndex> flat_index(const PaddedStep& step, const Volume& inside) {
  const auto all = product(inside, Volume{1, {step.dim()}});
  if (!all) return std::nullopt;
  FlatIndex made;
  std::vector<IndexTerm> smaller;
  for (const IndexTerm& term : step.index_terms(1)) {
    const bool counts = step.is_padded_dim(term.count) && term.factor == inside;
    if (counts && !made.own)
      made.own = term;
    else if (!step.is_unpadded(term.value))
      return std::nullopt;
    else if (quotient(term.factor, *all))
      made.skips = true;
    else if (inside == Volume() && term.factor == inside && !made.key)
      made.key = term;
    else
      smaller.push_back(term);
  }
  if ((made.own && made.key) || !stay_inside(step, smaller, inside)) return std::nullopt;
  return made;
}

Rows gather_along(const PaddedStep& step, int along) {
  const Beside beside = *step.rows(0).beside;
  const int indices = step.axis(1);
  if (indices == kUnpadded) {
    const auto picked = step.numbers(1);
    const bool is_first = picked && std::ranges::count(*picked, 0) == std::ssize(*picked);
    if (beside.outside != Volume() || !step.has_unpadded(1)) step.refuse("picks rows of it");
    return is_first || step.holds_finds(1) ? Rows() : looked_up({}, {along});
  }
  const auto found = flat_index(step, beside.inside);
  if (found && found->own && (indices == kSized || !found->skips)) {
    const int axis = step.rank(1) - found->own->axis;
    if (axis >= 0 && (indices == axis || (indices == kSized && step.is_padded_dim(step.dims(1)[size_t(axis)]))))
      return {along + axis, Beside()};
  }
  if (found && found->key && found->skips && indices == kSized)
    if (const auto key = step.place_of_summand(1, found->key->value)) return looked_up({}, {along, -1, *key});
  if (indices == kSized) step.refuse("computes with its length");
  if (beside.outside != Volume() || *step.rows(1).beside != Beside()) step.refuse("has it in both inputs");
  return looked_up({along + indices, Beside()}, {along, indices});
}

// Rows of a table, or along another axis.
Rows gather(const PaddedStep& step, size_t) {
  const int along = step.own_axis("axis", 0, step.rank(0));
  if (step.axis(0) == along) return gather_along(step, along);
  if (step.axis(0) == kSized || step.axis(1) == kSized) step.refuse("computes with its length");
  if (step.axis(1) >= 0) {
    if (step.axis(0) >= 0) step.refuse("has it in both inputs");
    if (step.rows(1).count) step.check_is_long_enough(along, step.rows(1).first);
    return along + step.axis(1);
  }
  return step.axis(0) < along ? step.axis(0) : step.axis(0) + step.rank(1) - 1;
}

Rows each_of_its_row(const PaddedStep& step, size_t) {
  const int along = step.own_axis("axis", 0, step.rank(0));
  step.all_along_one_axis();
  if (along == step.axis(0)) step.refuse("picks rows of it");
  return step.axis(0);
}

// As many as the indices: of their own row each, of a table, or of the first row alone.
Rows gather_each(const PaddedStep& step, size_t output) {
  const int along = step.own_axis("axis", 0, step.rank(0));
  if (step.axis(0) == kUnpadded && step.axis(1) == along) {
    if (step.rows(1).count) step.check_is_long_enough(along, step.rows(1).first);
    return along;
  }
  const int own = step.axis(0);
  if (own < 0 || !step.has_unpadded(1) || step.beside().outside != Volume()) return each_of_its_row(step, output);
  if (own == along) return looked_up({}, {along});
  return step.is_one(1, own) ? Rows() : each_of_its_row(step, output);
}

// Of its own row each, or along it.
Rows gather_tuples(const PaddedStep& step, size_t) {
  const int own = step.axis(0);
  if (step.node().get_int("batch_dims", 0) == 0 && own >= 0) {
    if (step.axis(1) >= 0 && step.rows(1).counting == own) return step.axis(1);
    if (step.has_unpadded(1) && step.beside().outside == Volume() && own < step.dims(1).back())
      return step.holds_finds(1, own) ? Rows() : looked_up({}, {own});
  }
  step.refuse("may pick other rows of it");
}

// Each tuple to its own row.
Rows scatter_tuples(const PaddedStep& step, size_t) {
  const int own = step.axis(0), tuples = step.axis(1);
  if (own < 0 || tuples < 0 || step.rows(1).counting != own || step.axis(2) != tuples || tuples >= step.rank(1) - 1)
    step.refuse("may write to other rows of it");
  return own;
}

constexpr RowRules kRules[] = {
    {"", "Gather", gather},          {"", "GatherElements", gather_each}, {"", "ScatterElements", each_of_its_row},
    {"", "GatherND", gather_tuples}, {"", "ScatterND", scatter_tuples},
};

}  // namespace

std::span<const RowRules> rules_of_lookups() { return kRules; }

}  // namespace encore::fuse
