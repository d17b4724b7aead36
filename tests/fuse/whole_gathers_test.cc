#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kOfMask = R"(in mask: bool[2, 3]
const places: i64[2, 1, 1, 3, 2] = [0, 0, 0, 1, 0, 2, 1, 0, 1, 1, 1, 2]
seen: bool[2, 1, 1, 3] = GatherND(mask, places)  # "keys"
y: bool[2, 1, 1, 3] = Not(seen)
out y
)";

constexpr const char* kOfRows = R"(in x: f16[n, 3, 4]
const rows: i64[3] = [0, 1, 2]
all: f16[n, 3, 4] = Gather(x, rows) {axis = 1}
y: f16[n, 3, 4] = Relu(all)
out y
)";

TEST(WholeGathers, OfTuplesGiveAnotherShape) {
  EXPECT_EQ(after("whole_gathers", kOfMask), R"(in mask: bool[2, 3]
const "keys's shape": i64[4] = [2, 1, 1, 3]
seen: bool[2, 1, 1, 3] = Reshape(mask, "keys's shape")  # "keys"
y: bool[2, 1, 1, 3] = Not(seen)
out y
)");
}

TEST(WholeGathers, OfRowsOrOfOneAreNone) {
  const std::string rows = after("whole_gathers", kOfRows);
  EXPECT_NE(rows.find("Identity(x)"), std::string::npos) << rows;
  const std::string one = R"(in x: f16[2, 1, 4]
const first: i64[] = 0
row: f16[2, 4] = Gather(x, first) {axis = -2}
y: f16[2, 4] = Relu(row)
out y
)";
  const std::string row = after("whole_gathers", one);
  EXPECT_NE(row.find("Reshape(x, "), std::string::npos) << row;
}

TEST(WholeGathers, OfNothingStay) {
  const std::string text =
      "in x: f16[4, 0]\nconst rows: i64[2, 2] = [0, 1, 2, 3]\ny: f16[2, 2, 0] = Gather(x, rows)\nout y\n";
  EXPECT_EQ(after("whole_gathers", text), text_of(plan_from(text)));
}

TEST(WholeGathers, OfLessOrInAnotherOrderStay) {
  const auto stays = [](const char* part, const char* by) { expect_stays("whole_gathers", kOfMask, part, by); };
  stays("[0, 0, 0, 1, 0, 2, 1, 0, 1, 1, 1, 2]", "[0, 0, 0, 2, 0, 1, 1, 0, 1, 1, 1, 2]");
  stays("[0, 0, 0, 1, 0, 2, 1, 0, 1, 1, 1, 2]", "[0, 0, 0, 1, 0, 3, 1, 0, 1, 1, 1, 2]");
  stays("[0, 0, 0, 1, 0, 2, 1, 0, 1, 1, 1, 2]", "[0, 0, 0, 1, 0, 2, -1, 0, -1, 1, -1, 2]");
  stays("in mask: bool[2, 3]", "in mask: bool[3, 3]");
  stays("in mask: bool[2, 3]", "in mask: bool[2, 4]");
  stays("in mask: bool[2, 3]", "in mask: bool[n, 3]");
  stays("const places: i64[2, 1, 1, 3, 2] = [0, 0, 0, 1, 0, 2, 1, 0, 1, 1, 1, 2]", "in places: i64[2, 1, 1, 3, 2]");
  stays("GatherND(mask, places)", "GatherND(mask, places) {batch_dims = 1}");
}

constexpr const char* kOfSomeRows = R"(in x: f16[6, n, 4]
const places: i64[2, 1] = [3, 4]
y: f16[2, n, 4] = GatherND(x, places)  # "keys"
out y
)";

TEST(WholeGathers, OfRowsThatFollowEachOtherAreSlices) {
  const std::string slice = R"(in x: f16[6, n, 4]
const "keys's places": i64[1] = [3]
const "keys's places~2": i64[1] = [5]
const "keys's places~3": i64[1] = [0]
y: f16[2, n, 4] = Slice(x, "keys's places", "keys's places~2", "keys's places~3")  # "keys"
out y
)";
  EXPECT_EQ(after("whole_gathers", kOfSomeRows), slice);
  EXPECT_EQ(after("whole_gathers", replaced(kOfSomeRows, "[3, 4]", "[-3, 4]")), slice);
  const std::string gather = replaced(replaced(kOfSomeRows, "places: i64[2, 1]", "places: i64[2]"),
                                      "GatherND(x, places)", "Gather(x, places)");
  EXPECT_EQ(after("whole_gathers", gather), slice);
}

TEST(WholeGathers, OfRowsElsewhereStay) {
  const auto stays = [](const char* part, const char* by) { expect_stays("whole_gathers", kOfSomeRows, part, by); };
  stays("[3, 4]", "[4, 3]");
  stays("[3, 4]", "[3, 5]");
  stays("[3, 4]", "[5, 6]");
  stays("[3, 4]", "[-7, -6]");
  stays("in x: f16[6, n, 4]", "in x: f16[m, n, 4]");
  stays("const places: i64[2, 1] = [3, 4]", "in places: i64[2, 1]");
}

}  // namespace
}  // namespace encore::fuse::tests
