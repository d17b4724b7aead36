#include "plugin/report.h"

#include <gtest/gtest.h>

namespace encore::plugin {
namespace {

TEST(Report, IsJson) {
  EXPECT_EQ(as_json({}), "[]\n");
  EXPECT_EQ(as_json({{.id = 3,
                      .state = graph::State::refused,
                      .nodes = 1,
                      .held_bytes = 2,
                      .replays = 4,
                      .refusal = "a \"quoted\"\n\\ reason"}}),
            "[{\"id\": 3, \"state\": \"refused\", \"nodes\": 1, \"held_bytes\": 2, \"replays\": 4, "
            "\"refusal\": \"a \\\"quoted\\\"\\u000a\\\\ reason\"}]\n");
}

}  // namespace
}  // namespace encore::plugin
