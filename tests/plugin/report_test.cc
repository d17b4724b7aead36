#include "plugin/session/report.h"

#include <gtest/gtest.h>

namespace encore::plugin {
namespace {

TEST(Report, IsJson) {
  EXPECT_EQ(as_json(std::vector<graph::Report>()), "[]\n");
  EXPECT_EQ(as_json(std::vector<graph::Report>{{.id = 3,
                                                .state = graph::State::refused,
                                                .nodes = 1,
                                                .held_bytes = 2,
                                                .retained_bytes = 5,
                                                .replays = 4,
                                                .refusal = "a \"quoted\"\n\\ reason"}}),
            "[{\"id\": 3, \"state\": \"refused\", \"nodes\": 1, \"held_bytes\": 2, "
            "\"retained_bytes\": 5, \"replays\": 4, \"refusal\": \"a \\\"quoted\\\"\\u000a\\\\ reason\"}]\n");
}

TEST(Report, TellsOfRegions) {
  EXPECT_EQ(as_json(std::vector<automatic::RegionReport>{{.name = "a",
                                                          .nodes = 8,
                                                          .keys = 1,
                                                          .graphs = 2,
                                                          .scratch_bytes = 9,
                                                          .captures = 3,
                                                          .replays = 4,
                                                          .staged = 5,
                                                          .first_runs = 6,
                                                          .padded = 12,
                                                          .grown = 13,
                                                          .lengths = {{"total", {256, 512}}},
                                                          .changing = {"mask[1]", "x[0]"},
                                                          .in_captures = 14,
                                                          .moved = 7,
                                                          .crowded = 10,
                                                          .refused = 11,
                                                          .refusal = "why",
                                                          .shapes = {{.inputs = {{"x", {2, 3}}, {"y", {}}},
                                                                      .scratch_bytes = 15,
                                                                      .graphs = 1,
                                                                      .workspace_bytes = 16,
                                                                      .graph_nodes = 17},
                                                                     {.inputs = {{"x", {4, 3}}}}}}}),
            "[{\"region\": \"a\", \"nodes\": 8, \"keys\": 1, \"graphs\": 2, \"scratch_bytes\": 9, \"captures\": 3, "
            "\"replays\": 4, \"staged\": 5, \"first_runs\": 6, \"padded\": 12, \"grown\": 13, \"lengths\": {\"total\": "
            "[256, 512]}, "
            "\"changing\": [\"mask[1]\", \"x[0]\"], \"in_captures\": 14, \"eager\": 28, \"moved\": 7, \"crowded\": 10, "
            "\"refused\": 11, \"refusal\": \"why\", \"shapes\": [{\"inputs\": {\"x\": [2, 3], \"y\": []}, "
            "\"scratch_bytes\": 15, \"graphs\": 1, \"workspace_bytes\": 16, \"graph_nodes\": 17},\n  {\"inputs\": "
            "{\"x\": [4, 3]}, \"scratch_bytes\": 0, \"graphs\": 0, \"workspace_bytes\": 0, \"graph_nodes\": 0}]}]\n");
}

TEST(Report, TellsWhereNodesAre) {
  const std::map<std::string, std::vector<PlacedNode>> placed{
      {"", {{"NonZero node 'n'", false, "", "sized"}, {"Neg node 'm'", true, "Neg to Exp", "a region"}}},
      {"If node 'i', body 'b'", {{"Abs node 'a'", true, "", "alone"}}}};
  EXPECT_EQ(as_json(placed),
            R"([{"node": "NonZero node 'n'", "inside": "", "on_encore": false, "part": null, "why": "sized"},
 {"node": "Neg node 'm'", "inside": "", "on_encore": true, "part": "Neg to Exp", "why": "a region"},
 {"node": "Abs node 'a'", "inside": "If node 'i', body 'b'", "on_encore": true, "part": null, "why": "alone"}]
)");
}

TEST(Report, TracesAreLinesOfJson) {
  EXPECT_EQ(
      as_json_line(device::TraceEntry{reinterpret_cast<void*>(16), device::Traced::synchronize_event, "k<\"x\">", "n"}),
      "{\"stream\": 16, \"what\": \"synchronize event\", \"name\": \"k<\\\"x\\\">\", \"label\": \"n\"}\n");
  EXPECT_EQ(as_json_line(device::TraceEntry{nullptr, device::Traced::driver_free, "", ""}),
            "{\"stream\": 0, \"what\": \"driver free\", \"name\": \"\", \"label\": \"\"}\n");
}

TEST(Report, TellsOfMemory) {
  const std::string unlimited = as_json(MemoryReport{.arena = {.limit_bytes = SIZE_MAX}});
  EXPECT_NE(unlimited.find("\"limit_bytes\": null,"), std::string::npos) << unlimited;
  EXPECT_EQ(as_json(MemoryReport{.arena = {.in_use_bytes = 1, .held_bytes = 2, .graph_bytes = 3, .limit_bytes = 5},
                                 .holders = {{"a \"b\"", 6, 7}, {"c", 8, 9}},
                                 .pinned = {.held_bytes = 10},
                                 .staging_bytes = 11,
                                 .graphs = {14, 15, 16, 17},
                                 .device = {12, 13}}),
            "{\"arena\": {\"in_use_bytes\": 1, \"held_bytes\": 2, \"graph_bytes\": 3, \"peak_in_use_bytes\": 0, "
            "\"limit_bytes\": 5, \"largest_bytes\": 0, \"allocations\": 0, \"reserves\": 0, "
            "\"driver_allocations\": 0, \"shrinks\": 0},\n \"holders\": [{\"name\": \"a \\\"b\\\"\", \"bytes\": 6, "
            "\"blocks\": 7},\n  {\"name\": \"c\", \"bytes\": 8, \"blocks\": 9}],\n \"pinned\": {\"in_use_bytes\": 0, "
            "\"held_bytes\": 10, \"peak_in_use_bytes\": 0, \"allocations\": 0, \"driver_allocations\": 0},\n "
            "\"staging\": {\"held_bytes\": 11},\n \"automatic_graphs\": {\"graphs\": 14, \"workspace_bytes\": 15, "
            "\"node_bytes\": 16, \"limit_bytes\": 17},\n \"device\": {\"free_bytes\": 12, \"total_bytes\": 13}}\n");
}

}  // namespace
}  // namespace encore::plugin
