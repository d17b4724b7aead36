// Plans before and after a pass, as text.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fuse/passes.h"
#include "fuse/plan_text.h"

namespace encore::fuse::tests {

inline Plan plan_after(std::string_view pass, const std::string& text, const Compute& compute = {}) {
  Plan plan = plan_from(text);
  plan.compute = compute;
  const auto found = std::ranges::find(passes(), pass, &Pass::name);
  EXPECT_NE(found, passes().end()) << "there is no pass '" << pass << "'";
  if (found != passes().end()) run(*found, plan);
  return plan;
}

inline std::string after(std::string_view pass, const std::string& text, const Compute& compute = {}) {
  return text_of(plan_after(pass, text, compute));
}

// Why the pass left what it nearly joined.
using Notes = std::vector<std::string>;
inline Notes notes_of(std::string_view pass, const std::string& text) { return plan_after(pass, text).notes; }

inline std::string replaced(std::string text, const std::string& part, const std::string& by) {
  const size_t at = text.find(part);
  EXPECT_NE(at, std::string::npos) << "'" << part << "' is not there";
  return at == std::string::npos ? text : text.replace(at, part.size(), by);
}

// One part of the text is another, and the pass has nothing to do any more.
inline void expect_stays(std::string_view pass, const std::string& text, const std::string& part,
                         const std::string& by) {
  const std::string other = replaced(text, part, by);
  EXPECT_EQ(after(pass, other), text_of(plan_from(other)));
}

}  // namespace encore::fuse::tests
