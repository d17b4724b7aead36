#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// What a convolution with its channels last has made, as patches for a transformer.
constexpr const char* kPatches = R"(in x: f16[n, 6, 4, 8]
const sizes: i64[3] = [0, 8, 24]
a: f16[n, 8, 6, 4] = Transpose(x) {perm = [0, 3, 1, 2]}
b: f16[n, 8, 24] = Reshape(a, sizes)
y: f16[n, 24, 8] = Transpose(b) {perm = [0, 2, 1]}  # "patches"
out y
)";

TEST(Movements, LeaveAllWhereItIs) {
  EXPECT_EQ(after("movements", kPatches), R"(in x: f16[n, 6, 4, 8]
y: f16[n, 24, 8] = encore.View(x) {steps = "transpose 0,3,1,2; reshape 0,8,24; transpose 0,2,1"}  # "patches"
out y
)");
}

// The windows of Swin, whose channels are then made first.
TEST(Movements, AreOneCopy) {
  EXPECT_EQ(after("movements", R"(in x: f16[n, 14, 14, 32]
const windows: i64[6] = [0, 2, 7, 2, 7, 32]
const rows: i64[3] = [-1, 49, 32]
a: f16[n, 2, 7, 2, 7, 32] = Reshape(x, windows)
b: f16[n, 2, 2, 7, 7, 32] = Transpose(a) {perm = [0, 1, 3, 2, 4, 5]}
c: f16[m, 49, 32] = Reshape(b, rows)
y: f16[m, 32, 49] = Transpose(c) {perm = [0, 2, 1]}
out y
)"),
            R"(in x: f16[n, 14, 14, 32]
y: f16[m, 32, 49] = encore.View(x) {steps = "reshape 0,2,7,2,7,32; transpose 0,1,3,2,4,5; reshape -1,49,32; transpose 0,2,1"}
out y
)");
}

// The patches of MobileViT, whose pixels are batches.
TEST(Movements, PatchesAreOneCopy) {
  Plan plan = plan_from(R"(in x: f16[n, 8, 6, 16]
const four: i64[1] = [4]
const tokens: i64[1] = [12]
const left: i64[1] = [-1]
const first: i64[1] = [0]
const cut: i64[4] = [-1, 2, 3, 2]
const patches: i64[4] = [-1, 16, 12, 4]
a: f16[n, 16, 8, 6] = Transpose(x) {perm = [0, 3, 1, 2]}
b: f16 = Reshape(a, cut)
c: f16 = Transpose(b) {perm = [0, 2, 1, 3]}
d: f16 = Reshape(c, patches)
e: f16 = Transpose(d) {perm = [0, 3, 2, 1]}
s: i64[4] = Shape(x)
n: i64[1] = Gather(s, first)
all: i64[1] = Mul(n, four)
rows: i64[3] = Concat(all, tokens, left) {axis = 0}
y: f16 = Reshape(e, rows)
out y
)");
  for (const char* name : {"dims", "movements"})
    run(*std::ranges::find(passes(), std::string_view(name), &Pass::name), plan);
  const std::string made = text_of(plan);
  EXPECT_NE(made.find("e: f16[n, 4, 12, 16] = encore.View(x) {steps = \"transpose 0,3,1,2; reshape -1,2,3,2; transpose "
                      "0,2,1,3; reshape -1,16,12,4; transpose 0,3,2,1\"}"),
            made.npos)
      << made;
  EXPECT_NE(made.find("y: f16[?1, 12, 16] = Reshape(e, rows)"), made.npos) << made;
}

// Swin's way back.
constexpr const char* kShifted = R"(in x: f16[m, 49, 32]
in z: f16[n, 14, 14, 32]
const windows: i64[6] = [-1, 2, 2, 7, 7, 32]
const picture: i64[4] = [-1, 14, 14, 32]
const sizes: i64[2] = [3, 11]
a: f16[n, 2, 2, 7, 7, 32] = Reshape(x, windows)
b: f16[n, 2, 7, 2, 7, 32] = Transpose(a) {perm = [0, 1, 3, 2, 4, 5]}
c: f16[n, 14, 14, 32] = Reshape(b, picture)
above: f16[n, 3, 14, 32], below: f16[n, 11, 14, 32] = Split@13(c, sizes) {axis = 1}
d: f16[n, 14, 14, 32] = Concat@13(below, above) {axis = 1}
y: f16[n, 14, 14, 32] = Softmax(d)
out y
)";

std::string with_rolls(const std::string& text) {
  Plan plan = plan_from(text);
  for (const Pass& pass : passes())
    if (const std::string_view name = pass.name; name == "rolls" || name == "movements") run(pass, plan);
  return text_of(plan);
}

TEST(Movements, RollsAreAmongThem) {
  EXPECT_EQ(with_rolls(kShifted), R"(in x: f16[m, 49, 32]
in z: f16[n, 14, 14, 32]
d: f16[n, 14, 14, 32] = encore.View(x) {steps = "reshape -1,2,2,7,7,32; transpose 0,1,3,2,4,5; reshape -1,14,14,32; roll -3,3"}
y: f16[n, 14, 14, 32] = Softmax(d)
out y
)");
}

// Who reads a roll in place.
TEST(Movements, ButNotThoseOfPrograms) {
  const std::string made = with_rolls(replaced(kShifted, "Softmax(d)", "Add(d, z)"));
  EXPECT_NE(made.find("d: f16[n, 14, 14, 32] = encore.Roll(c)"), made.npos) << made;
}

TEST(Movements, OthersReadWhatIsBetween) {
  const std::string made = after("movements", std::string(kPatches) + "out a\n");
  EXPECT_NE(made.find("a: f16[n, 8, 6, 4] = Transpose(x)"), made.npos) << made;
  EXPECT_NE(made.find("y: f16[n, 24, 8] = encore.View(x)"), made.npos) << made;
}

TEST(Movements, StayWhereNothingIsSaved) {
  const auto stays = [](const char* part, const char* by) { expect_stays("movements", kPatches, part, by); };
  stays("perm = [0, 2, 1]", "perm = [0, 1, 2]");
  stays("perm = [0, 3, 1, 2]", "perm = [0, 1, 2, 3]");
  stays("y: f16[n, 24, 8] = Transpose(b)", "r: f16[n, 8, 24] = Relu(b)\ny: f16[n, 24, 8] = Transpose(r)");
  stays("const sizes: i64[3] = [0, 8, 24]", "in sizes: i64[3]");
  stays("b: f16[n, 8, 24] = Reshape(a, sizes)",
        "const one: f16[] = 1.0\nd: f16[n, 8, 6, 4] = Div(a, one)\nb: f16[n, 8, 24] = Reshape(d, sizes)");
  stays("in x: f16[n, 6, 4, 8]", "in x: f16");
}

}  // namespace
}  // namespace encore::fuse::tests
