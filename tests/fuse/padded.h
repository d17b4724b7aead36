// What padding makes of plans, as text.
#pragma once
#include <string>

#include "fuse/padding.h"
#include "fuse/padding_masks.h"
#include "fuse/plan_text.h"

namespace encore::fuse::tests {

// "0 -1 > 0": the axes of inputs and outputs; or why there are none.
inline std::string axes_of(const std::string& text, const std::string& dim = "b", int64_t longest = 8) {
  try {
    const PaddedAxes axes = padded_axes(plan_from(text), dim, longest);
    std::string said;
    for (int axis : axes.inputs) said += std::to_string(axis) + " ";
    said += ">";
    for (int axis : axes.outputs) said += " " + std::to_string(axis);
    return said;
  } catch (const Error& error) {
    return error.what();
  }
}

// What is inserted, a line each.
inline std::string masks_of(const std::string& text, const std::string& dim) {
  Plan plan = plan_from(text);
  const std::string before = text_of(plan);
  add_padding_masks(plan, padded_axes(plan, dim, 8), dim);
  const std::string after = text_of(plan);
  std::string made;
  for (size_t at = 0, end; at < after.size(); at = end + 1) {
    end = after.find('\n', at);
    const std::string line = after.substr(at, end + 1 - at);
    if (before.find(line) == before.npos) made += line;
  }
  return made;
}

}  // namespace encore::fuse::tests
