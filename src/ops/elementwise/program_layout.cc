#include "ops/elementwise/program_layout.h"

#include <algorithm>
#include <compare>
#include <utility>

namespace encore::ops {

ProgramLayout::Join::Join(int input, const std::vector<Cut>& parts, int axis) : input(input) {
  for (const auto& [part, pitch] : parts) {
    const int64_t columns = part.shape.count(axis, part.shape.rank());
    if (columns) pieces.push_back({part.data, width, columns, pitch});
    width += columns;
  }
}

bool ProgramLayout::Join::holds_packs(int pack) const {
  return std::ranges::all_of(pieces,
                             [&](const Piece& piece) { return piece.width % pack == 0 && piece.pitch % pack == 0; });
}

ProgramLayout::ProgramLayout(int pack, int64_t widest, const IndexSpace& space,
                             const std::vector<const Tensor*>& tensors, const std::vector<Source>& sources,
                             std::vector<Join> joined)
    : pack(pack), packs(space.count / pack), sizes(space.sizes), joins(std::move(joined)) {
  int pieces = 0;
  for (Join& join : joins) {
    join.begin = pieces;
    join.end = pieces += int(join.pieces.size() + kPiecesAtATime - 1) / kPiecesAtATime * kPiecesAtATime;
  }
  const auto compare = [&](size_t a, size_t b) {
    for (size_t d = 0; d < sizes.size(); ++d) {
      const auto of = [&](size_t k) { return std::pair(space.strides[d][k], space.shifts[d][k]); };
      if (const auto order = of(a) <=> of(b); order != 0) return order;
    }
    return std::strong_ordering::equal;
  };
  std::vector<size_t> order;
  for (size_t k = 0; k < tensors.size(); ++k)
    if (tensors[k]) order.push_back(k);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return compare(a, b) < 0; });
  inputs.reserve(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t k = order[i];
    const auto bytes = int64_t(device::size_bytes(tensors[k]->type));
    Input& input = inputs.emplace_back();
    input.index = int(k);
    const auto join = std::ranges::find(joins, int(k), &Join::input);
    input.join = join == joins.end() ? -1 : int(join - joins.begin());
    input.data = input.join >= 0 ? nullptr : static_cast<const char*>(tensors[k]->data) + sources[k].first * bytes;
    input.type = tensors[k]->type;
    const auto is_aligned = [&](const void* at) {
      return reinterpret_cast<uintptr_t>(at) % uintptr_t(pack * bytes) == 0;
    };
    input.repeats = space.strides[0][k] == 0;
    input.is_whole = !input.repeats && pack * bytes >= 4 && bytes <= widest && space.are_rows_aligned(k, pack) &&
                     is_aligned(input.data) &&
                     (input.join < 0 || std::ranges::all_of(join->pieces, is_aligned, &Join::Piece::data));
    if (space.is_flat(k) || space.is_single(k)) {
      input.way = space.is_flat(k) ? Way::flat : Way::single;
      continue;
    }
    if (i == 0 || compare(k, order[i - 1]) != 0) {
      Walk& walk = walks.emplace_back();
      for (size_t d = 0; d < sizes.size(); ++d) {
        walk.strides[d] = space.strides[d][k];
        walk.shifts[d] = space.shifts[d][k];
      }
      walk.is_rolled = space.is_rolled(k);
    }
    input.way = Way::walk;
    input.walk = int(walks.size()) - 1;
  }
}

}  // namespace encore::ops
