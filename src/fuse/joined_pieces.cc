#include "fuse/joined_pieces.h"

#include <algorithm>

#include "fuse/links.h"
#include "fuse/passes.h"
#include "ops/shape/joined_cuts.h"

namespace encore::fuse {
namespace {

// Along which the Concat joins, counted from the end.
std::optional<int> axis_of(const Match& match, int concat) {
  if (!match.is(concat, "Concat")) return std::nullopt;
  const auto rank = match.rank(match.step(concat).outputs[0]);
  const auto axis = rank ? counted_from_first(match.node(concat).get_int("axis", 1), *rank) : std::nullopt;
  return axis ? std::optional(int(*axis) - int(*rank)) : std::nullopt;
}

bool is_only_joined(const Match& match, int v, int axis) {
  return !match.value(v).is_output &&
         std::ranges::all_of(match.readers(v), [&](int s) { return axis_of(match, s) == axis; });
}

// What of a Concat's pieces a part begins and ends with: from the first one to beyond the last.
std::optional<std::pair<size_t, size_t>> whole_pieces(const Match& match, const std::vector<int>& pieces,
                                                      const Part& part) {
  std::optional<size_t> first, last;
  int64_t at = 0;
  for (size_t i = 0; i <= pieces.size(); ++i) {
    if (at == part.begin && !first) first = i;
    if (at == part.end && !last && first) last = i;
    if (i == pieces.size()) break;
    const auto& dims = match.value(pieces[i]).dims;
    if (!dims || (*dims)[size_t(part.axis)] < 1) return std::nullopt;
    at += (*dims)[size_t(part.axis)];
  }
  return first && last && *first < *last ? std::optional(std::pair(*first, *last)) : std::nullopt;
}

}  // namespace

std::optional<Pieces> pieces_of(const Match& match, int concat) {
  const auto axis = axis_of(match, concat);
  if (!axis) return std::nullopt;
  Pieces pieces{*axis, {}};
  for (const int v : match.step(concat).inputs) {
    Piece& piece = pieces.all.emplace_back(Piece{v});
    const auto part = v < 0 ? std::nullopt : part_of(match, v);
    if (!part || part->axis - int(*match.rank(part->x)) != *axis || part->begin == part->end) continue;
    if (is_only_joined(match, v, *axis)) piece = {part->x, part->begin, part->end};
  }
  return pieces;
}

// No path leaves them and comes back, for what is read now was read before.
void take_pieces(Match& match, int cut) {
  constexpr size_t kMost = 64;
  if (!match.is(cut, "Slice") && !match.is(cut, "Split")) return;
  const std::vector<int> outputs = match.step(cut).outputs;
  for (const int v : outputs) {
    const auto part = v < 0 ? std::nullopt : part_of(match, v);
    const int concat = part ? match.maker(part->x, "Concat") : -1;
    const auto axis = concat < 0 ? std::nullopt : axis_of(match, concat);
    if (!axis || part->axis - int(*match.rank(part->x)) != *axis || match.value(v).is_output) continue;
    const std::vector<int> joined = match.step(concat).inputs;
    const auto own = whole_pieces(match, joined, *part);
    if (!own) continue;
    const std::vector<int> pieces(joined.begin() + ptrdiff_t(own->first), joined.begin() + ptrdiff_t(own->second));
    if (pieces.size() == 1) {
      match.substitute(v, pieces[0]);
    } else if (is_only_joined(match, v, *axis)) {
      const std::vector<int> readers = match.readers(v);
      for (const int s : readers) {
        if (!match.step(s).node || std::ranges::count(match.step(s).inputs, v) == 0) continue;  // it is done
        std::vector<int> inputs;
        for (const int input : match.step(s).inputs) {
          if (input == v)
            inputs.insert(inputs.end(), pieces.begin(), pieces.end());
          else
            inputs.push_back(input);
        }
        if (inputs.size() > kMost) continue;
        const NodeInfo& node = match.node(s);
        match.replace({s}, match.plan().step(operator_of(node), node.name(), std::move(inputs), match.step(s).outputs));
      }
    }
  }
  drop_unread(match, cut);
}

// No path leaves them and comes back, for all that is read is read in place of what was made of it.
void join_cuts(Match& match, int concat) {
  const auto pieces = pieces_of(match, concat);
  if (!pieces || std::ranges::none_of(pieces->all, &Piece::is_part)) return;
  std::vector<int> inputs;
  std::vector<int64_t> begins, ends;
  for (const Piece& piece : pieces->all) {
    if (piece.of < 0) return;
    inputs.push_back(piece.of), begins.push_back(piece.begin), ends.push_back(piece.end);
  }
  const std::vector<int> cut = match.step(concat).inputs;
  ops::Attributes attributes{
      {"axis", int64_t(pieces->axis)}, {ops::kBegins, std::move(begins)}, {ops::kEnds, std::move(ends)}};
  Step made = match.plan().step({kFusions, "JoinedCuts", 1, std::move(attributes)}, match.node(concat).name(),
                                std::move(inputs), match.step(concat).outputs);
  made.make = ops::make_joined_cuts;
  match.replace({concat}, std::move(made));
  for (const int v : cut)
    if (const int by = match.producer(v); by >= 0) drop_unread(match, by);
}

}  // namespace encore::fuse
