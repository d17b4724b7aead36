// How the inputs of an elementwise program lie for packs of its outputs, whether it is interpreted or compiled.
#pragma once
#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "ops/elementwise/index_space.h"
#include "ops/elementwise/program_arguments.h"
#include "ops/shape/movement.h"
#include "ops/tensor.h"

namespace encore::ops {

struct ProgramLayout {
  // As the outputs do, one value for all, or otherwise.
  enum class Way : uint8_t { flat, single, walk };
  struct Input {
    int index;         // of the node
    const void* data;  // none of a concatenation
    Type type;
    Way way;
    int walk, join;  // -1: it is none
    bool repeats;    // one value for all of a pack
    bool is_whole;   // each pack is aligned, and can be read at once
  };
  struct Walk {
    std::array<int64_t, kMostProgramDims> strides{}, shifts{};  // innermost first, as the sizes
    bool is_rolled = false;
  };
  // A concatenation that is read from its pieces.
  struct Join {
    struct Piece {
      const void* data;
      int64_t first, width, pitch;
    };
    int input;
    int64_t width = 0;  // of a row
    std::vector<Piece> pieces;
    int begin = 0, end = 0;  // places of its pieces among those of all

    Join(int input, const std::vector<Cut>& parts, int axis);
    bool holds_packs(int pack) const;  // a pack of neighbours is in one piece
  };
  int pack;
  int64_t packs;
  std::vector<int64_t> sizes;
  std::vector<Input> inputs;  // that are read; those that walk alike come one after the other
  std::vector<Walk> walks;
  std::vector<Join> joins;

  // Of the inputs for which there is a tensor, whose part that is read the source says. The space has no more
  // dimensions than programs. Values of more than `widest` bytes are read one by one.
  ProgramLayout(int pack, int64_t widest, const IndexSpace& space, const std::vector<const Tensor*>& tensors,
                const std::vector<Source>& sources, std::vector<Join> joins);

  // As a kernel has them.
  template <class Joined, class MakeDivider>
  void fill(Joined& joined, MakeDivider make_divider) const {
    using Index = decltype(Joined::Piece::first);
    std::ranges::fill(joined.pieces, typename Joined::Piece{nullptr, std::numeric_limits<Index>::max(), 0});
    for (size_t j = 0; j < joins.size(); ++j) {
      joined.widths[j] = make_divider(joins[j].width);
      for (size_t p = 0; p < joins[j].pieces.size(); ++p) {
        const Join::Piece& piece = joins[j].pieces[p];
        joined.pieces[size_t(joins[j].begin) + p] = {piece.data, Index(piece.first), Index(piece.pitch)};
      }
    }
  }
};

}  // namespace encore::ops
