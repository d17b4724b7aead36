#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kJoined = R"(in a: f16[n, 4, 4, 64]
in b: f16[n, 8, 8, 64]
in c: f16[n, h, w, 32]
const by_four: f32[4] = [1.0, 4.0, 4.0, 1.0]
const sizes: i64[4] = [1, 16, 16, 64]
up: f16[n, 16, 16, 64] = Resize@19(a, _, by_four) {mode = "linear"}  # "up"
down: f16[n, 16, 16, 64] = Resize@19(b, _, _, sizes)
y: f16[n, 16, 16, 160] = Concat@13(up, c, down) {axis = -1}  # "joined"
out y
)";

TEST(JoinedResizes, AreMadeWhereTheyBelong) {
  EXPECT_EQ(after("joined_resizes", kJoined), R"(in a: f16[n, 4, 4, 64]
in b: f16[n, 8, 8, 64]
in c: f16[n, h, w, 32]
y: f16[n, 16, 16, 160] = encore.JoinedResizes(a, c, b) {resized = [0, 2]}  # "up and joined"
out y
)");
}

TEST(JoinedResizes, AreThoseThatNobodyElseReads) {
  const auto made = [](const char* part, const char* by) {
    return after("joined_resizes", replaced(kJoined, part, by));
  };
  const auto joins = [](const std::string& text, const char* what) { EXPECT_NE(text.find(what), text.npos) << text; };
  joins(made("out y", "out y\nout up"), "JoinedResizes(up, c, b) {resized = [2]}");
  joins(made("out y", "z: f16[n, 16, 16, 64] = Relu(down)\nout y\nout z"), "JoinedResizes(a, c, down) {resized = [0]}");
  joins(made("(up, c, down)", "(up, up, down)"), "JoinedResizes(up, up, b) {resized = [2]}");
  joins(made("const sizes: i64[4] = [1, 16, 16, 64]", "in sizes: i64[4]"), "(a, c, down) {resized = [0]}");
  joins(made("down: f16", "host down: f16"), "JoinedResizes(a, c, down) {resized = [0]}");
}

TEST(JoinedResizes, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("joined_resizes", kJoined, part, by); };
  stays("axis = -1", "axis = 1");
  stays("axis = -1", "axis = 4");
  stays("{axis = -1}  # \"joined\"", " # \"joined\"");
  stays("y: f16[n, 16, 16, 160]", "y: f16");
  stays("y: f16[n, 16, 16, 160] =", "host y: f16[n, 16, 16, 160] =");
  stays("(up, c, down)", "(up, up, down, down)");
  stays("out y", "out y\nout up\nout down");
}

// SegFormer's end.
constexpr const char* kProduct = R"(in a: f16[n, 4, 4, 64]
in b: f16[m, 8]
const w: f16[8, 32]
const bias: f16[32]
const by_four: f32[4] = [1.0, 4.0, 4.0, 1.0]
const tokens: i64[3] = [-1, 256, 32]
const places: i64[4] = [-1, 16, 16, 32]
up: f16[n, 16, 16, 64] = Resize@19(a, _, by_four) {mode = "linear"}  # "up"
rows: f16[m, 32] = Gemm@13(b, w, bias) {transB = 0}  # "product"
c: f16[n, 256, 32] = Reshape@13(rows, tokens)
piece: f16[n, 16, 16, 32] = Reshape@13(c, places)  # "places"
joined: f16[n, 16, 16, 96] = Concat@13(up, piece) {axis = -1}  # "joined"
y: f16[n, 16, 16, 96] = Softmax@13(joined)
out y
)";

TEST(JoinedResizes, LieAroundWhatAProductMakes) {
  EXPECT_EQ(after("joined_resizes", kProduct), R"(in a: f16[n, 4, 4, 64]
in b: f16[m, 8]
const w: f16[8, 32]
const bias: f16[32]
const "places's shape": i64[4] = [-1, 16, 16, 96]
"rows in its columns": f16[m, 96] = Gemm(b, w, bias) {first_column = 64, row_width = 96, transB = 0}  # "product"
"joined with some columns": f16[n, 16, 16, 96] = Reshape("rows in its columns", "places's shape")  # "places"
joined: f16[n, 16, 16, 96] = encore.JoinedResizes(a, "joined with some columns") {in_place = [1, 64, 32], resized = [0]}  # "up and joined"
y: f16[n, 16, 16, 96] = Softmax(joined)
out y
)");
}

TEST(JoinedResizes, LieAroundAProductOfRowsInMoreDimensions) {
  const std::string text = replaced(replaced(replaced(kProduct, "in b: f16[m, 8]", "in b: f16[n, 256, 8]"),
                                             "rows: f16[m, 32]", "rows: f16[n, 256, 32]"),
                                    "Gemm@13(b, w, bias) {transB = 0}", "MatMul(b, w, bias)");
  const std::string made = after("joined_resizes", text);
  EXPECT_NE(made.find("f16[n, 256, 96] = MatMul(b, w, bias) {first_column = 64, row_width = 96}"), made.npos) << made;
  EXPECT_NE(made.find("\"joined with some columns\": f16[n, 16, 16, 96] = Reshape("), made.npos) << made;
  const auto is_beside = [&](const char* part, const char* by) {
    const std::string beside = after("joined_resizes", replaced(text, part, by));
    EXPECT_EQ(beside.find("row_width"), beside.npos) << beside;
  };
  is_beside("MatMul(b, w, bias)", "MatMul(b, w, bias, up)");
  is_beside("MatMul(b, w, bias)", "MatMul(b, w, bias) {activation = \"Relu\"}");
  is_beside("const w: f16[8, 32]", "const w: f16[n, 8, 32]");
}

TEST(JoinedResizes, AreBesideOtherProducts) {
  const auto is_beside = [](const std::string& part, const std::string& by) {
    const std::string made = after("joined_resizes", replaced(kProduct, part, by));
    EXPECT_NE(made.find("encore.JoinedResizes(a, piece) {resized = [0]}"), made.npos) << made;
    EXPECT_EQ(made.find("row_width"), made.npos) << made;
  };
  is_beside("{transB = 0}", "{transB = 0, activation = \"Relu\"}");
  is_beside("out y", "out y\nout joined");
  is_beside("out y", "out y\nout piece");
  is_beside("out y", "out y\nout c");
  is_beside("out y", "out y\nout rows");
  is_beside("out y", "z: f16[m, 32] = Relu(rows)\nout y\nout z");
  is_beside("rows: f16[m, 32]", "rows: f16[m, 16]");
  is_beside("rows: f16[m, 32]", "rows: f16");
  is_beside("up: f16[n, 16, 16, 64]", "up: f16[n, 16, 16, 60]");
  is_beside("up: f16[n, 16, 16, 64]", "up: f16");
  is_beside("piece: f16[n, 16, 16, 32]", "piece: f16[n, h, w, 32]");
}

}  // namespace
}  // namespace encore::fuse::tests
