// Which tensors become longer when a dimension is padded at its end, and whether the rows that were there stay as they
// are: no operator may bring rows of that dimension together, but for those that a mask keeps from what is added.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fuse/plan.h"

namespace encore::fuse {

// Leaves what is added out of what a step sums up.
struct PaddingMask {
  enum Kind {
    keys,    // [dim]: zeros, and -infinity for what is added; a summand of attention's scores
    rows,    // bool [dim, 1, ...]: whether the row was there; else the step reads what changes no result
    growth,  // []: how much longer the dimension is; a mean is multiplied by it
    length   // i64 [2]: how many rows there were, and how many are added, for indices along the axis
  };
  Kind kind;
  Type type = Type::i64;
  int behind = 0;  // dimensions of one behind rows
  auto operator<=>(const PaddingMask&) const = default;
};

// What a step's second input picks along an axis that is padded. It may count from the end.
struct Lookup {
  int axis;       // of the first input
  int rows = -1;  // of the indices' axes, what has the dimension, too
  int key = -1;   // of an Add that makes the indices: what picks along the axis, if the other summand skips all of it
  bool operator==(const Lookup&) const = default;
};

struct PaddedAxes {
  std::vector<int> inputs, outputs;                // by input and by output of a plan: the axis that is padded, or -1
  std::map<PaddingMask, std::vector<int>> masked;  // steps
  std::map<int, Lookup> lookups;                   // by step, those that `length` is for
  bool any() const;
};

// What has been compiled before, as a part of a body, and is told by whom.
class CompiledPart {
 public:
  virtual ~CompiledPart() = default;
  virtual const std::string& nodes() const = 0;                             // from the first to the last
  virtual const PaddedAxes* padded_axes(const std::string& dim) const = 0;  // null: nothing of it has the dimension
  virtual bool has_masks() const = 0;                                       // of any dimension, as further inputs
};

// The symbol of the dimension that has this name where the plan's inputs have it.
std::optional<int64_t> find_dim(const Plan& plan, const std::string& name);

// Of the dimension that has this name where the plan's inputs have it, and becomes at most so long.
// Error{not_supported} names the node of which nobody knows that it leaves rows apart.
PaddedAxes padded_axes(Plan plan, const std::string& dim, int64_t longest);
// Of steps with bodies, in a plan of which the others need not pass: why they don't.
std::map<int, std::string> refused_bodies(Plan plan, const std::string& dim, int64_t longest);

}  // namespace encore::fuse
