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

TEST(Report, TracesAreLinesOfJson) {
  EXPECT_EQ(
      as_json_line(device::TraceEntry{reinterpret_cast<void*>(16), device::Traced::synchronize_event, "k<\"x\">", "n"}),
      "{\"stream\": 16, \"what\": \"synchronize event\", \"name\": \"k<\\\"x\\\">\", \"label\": \"n\"}\n");
  EXPECT_EQ(as_json_line(device::TraceEntry{nullptr, device::Traced::driver_free, "", ""}),
            "{\"stream\": 0, \"what\": \"driver free\", \"name\": \"\", \"label\": \"\"}\n");
}

}  // namespace
}  // namespace encore::plugin
