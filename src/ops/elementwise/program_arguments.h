// What elementwise programs may have at most, and what a compiled one is launched with.
#pragma once
#include "device/divide_small.h"

namespace encore::ops {

inline constexpr int kMostProgramDims = 5, kMostProgramInputs = 24, kMostProgramOutputs = 8;
// Of concatenations: a search looks at so many pieces at a time.
inline constexpr int kMostProgramJoins = 8, kMostProgramPieces = 64, kPiecesAtATime = 8;

// What lies side by side in the rows of concatenations.
template <class Index, class Divider>
struct JoinedPieces {
  struct Piece {
    const void* data;
    Index first;  // column of the rows that all pieces have together; nobody finds one that is beyond these
    Index pitch;  // from one of its own rows to the next
  };
  Divider widths[kMostProgramJoins];  // of the rows
  Piece pieces[kMostProgramPieces];

  // An element of a concatenation, by where it would be if that were in memory; its pieces are those from `begin` on.
  DEVICE_FN const char* find(int join, int begin, int end, Index place, int log_bytes) const {
    Index column;
    const Index row = widths[join](place, column);
    int found = begin;
    UNROLL for (int i = begin + 1; i < end; ++i) found += pieces[i].first <= column;
    const Piece& piece = pieces[found];
    const Index at = row * piece.pitch + (column - piece.first);
    return static_cast<const char*>(piece.data) + (int64_t(at) << log_bytes);
  }
};

struct ProgramArguments {
  // From one output to the next in each dimension, and where along it an input is begun.
  struct Walk {
    int strides[kMostProgramDims], shifts[kMostProgramDims];
  };
  const void* inputs[kMostProgramInputs];
  void* outputs[kMostProgramOutputs];
  device::SmallDivider sizes[kMostProgramDims];
  Walk walks[kMostProgramInputs];
};
struct JoiningProgramArguments : ProgramArguments {
  JoinedPieces<int, device::SmallDivider> joined;
};

}  // namespace encore::ops
