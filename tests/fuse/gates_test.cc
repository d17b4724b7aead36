#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kGate = R"(in x: f16[n, 8]
in up: f16[n, 8]
s: f16[n, 8] = Sigmoid(x)
silu: f16[n, 8] = Mul(x, s)
y: f16[n, 8] = Mul(silu, up)  # "gate"
out y
)";

TEST(Gates, ThreeNodesAreOne) {
  EXPECT_EQ(after("gates", kGate), R"(in x: f16[n, 8]
in up: f16[n, 8]
y: f16[n, 8] = encore.Gate(x, up)  # "gate"
out y
)");
}

TEST(Gates, SoAreSwishAndAProduct) {
  const std::string swish = R"(in x: f16[n, 8]
in up: f16[n, 8]
silu: f16[n, 8] = Swish(x)
y: f16[n, 8] = Mul(up, silu)  # "gate"
out y
)";
  EXPECT_EQ(after("gates", swish), after("gates", kGate));
  expect_stays("gates", swish, "Swish(x)", "Swish(x) {alpha = 1.5}");
}

TEST(Gates, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("gates", kGate, part, by); };
  stays("Mul(x, s)", "Mul(up, s)");
  stays("in up", "const up");
  stays("Mul(x, s)", "Mul@6(x, s)");
  stays("out y", "out y\nout s");
  stays("out y", "out y\nout silu");
  stays("out y", "z = Relu(silu)\nout y\nout z");
  stays("silu: f16", "elsewhere silu: f16");
}

constexpr const char* kProducts = R"(in rows: f16[n, 4]
const wx: f16[4, 8]
const wy: f16[4, 8]
x: f16[n, 8] = MatMul(rows, wx)  # "left"
up: f16[n, 8] = MatMul(rows, wy)  # "right"
s: f16[n, 8] = Sigmoid(x)
silu: f16[n, 8] = Mul(x, s)
y: f16[n, 8] = Mul(silu, up)  # "gate"
out y
)";

TEST(Gates, ProductsOfTheSameRowsComeAlong) {
  EXPECT_EQ(after("gates", kProducts), R"(in rows: f16[n, 4]
const wx: f16[4, 16]
y: f16[n, 8] = encore.GatedMatMul(rows, wx) {gated = 1}  # "left and right"
out y
)");
}

TEST(Gates, ColumnsAlternate) {
  std::string text = replaced(kProducts, "wx: f16[4, 8]", "wx: f16[1, 8] = [1, 2, 3, 4, 5, 6, 7, 8]");
  text = replaced(text, "wy: f16[4, 8]", "wy: f16[1, 8] = [11, 12, 13, 14, 15, 16, 17, 18]");
  Plan plan = plan_from(replaced(text, "rows: f16[n, 4]", "rows: f16[n, 1]"));
  rewrite(plan, {});
  ASSERT_EQ(plan.steps.size(), 1u);
  EXPECT_EQ(plan.steps[0].origin, (std::vector<int>{0, 1, 2, 3, 4}));
  const Tensor* const both = plan.steps[0].node->constant_input(1);
  ASSERT_TRUE(both);
  EXPECT_EQ(both->shape, ops::Shape({1, 16}));
  EXPECT_EQ(float(both->as<device::Half>()[7]), 8);
  EXPECT_EQ(float(both->as<device::Half>()[8]), 11);
}

// A product with a bias is none that gates.
constexpr const char* kParts = R"(in rows: f16[n, 4]
const w: f16[4, 16]
const b: f16[16]
p: f16[n, 16] = MatMul(rows, w)
both: f16[n, 16] = Add(p, b)
x: f16[n, 8], up: f16[n, 8] = Split(both) {axis = 1, num_outputs = 2}
s: f16[n, 8] = Sigmoid(x)
silu: f16[n, 8] = Mul(x, s)
y: f16[n, 8] = Mul(silu, up)
out y
)";

TEST(Gates, PartsAreReadInPlaceByAProgram) {
  EXPECT_EQ(after("gates", kParts), text_of(plan_from(kParts)));
  const std::string made = after("gates", replaced(kParts, "out y", "z: f16[n, 8] = Softmax(up)\nout y\nout z"));
  EXPECT_NE(made.find("encore.Gate(x, up)"), made.npos) << made;
}

void expect_gate_alone(const std::string& text) {
  const std::string made = after("gates", text);
  EXPECT_NE(made.find("encore.Gate(x, up)"), made.npos) << made;
}

TEST(Gates, OtherProductsStayOutside) {
  const auto stays = [](const char* part, const char* by) { expect_gate_alone(replaced(kProducts, part, by)); };
  stays("const wx", "in wx");
  stays("wx: f16[4, 8]", "wx: f16[4, 16]");
  stays("wx: f16[4, 8]", "wx: f32[4, 8]");
  stays("wy: f16[4, 8]", "wy: f16[1, 4, 8]");
  stays("up: f16[n, 8] = MatMul(rows,", "other = Relu(rows)\nup: f16[n, 8] = MatMul(other,");
  stays("MatMul(rows, wy)", "MatMul(rows, wx)");
  stays("out y", "out y\nout up");
  stays("out y", "z = Relu(x)\nout y\nout z");
  stays("up: f16", "elsewhere up: f16");
}

// Of one product, as Phi-3 has them.
constexpr const char* kHalves = R"(in rows: f16[n, 1]
const w: f16[1, 16] = [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 18]
both: f16[n, 16] = MatMul(rows, w)  # "both"
x: f16[n, 8], up: f16[n, 8] = Split@18(both, _) {axis = -1, num_outputs = 2}
s: f16[n, 8] = Sigmoid(x)
silu: f16[n, 8] = Mul(x, s)
y: f16[n, 8] = Mul(silu, up)  # "gate"
out y
)";

// As Gemma has it.
constexpr const char* kGeluGate = R"(in rows: f16[n, 4]
const wx: f16[4, 8]
const wy: f16[4, 8]
x: f16[n, 8] = MatMul(rows, wx)  # "left"
up: f16[n, 8] = MatMul(rows, wy)  # "right"
gelu: f16[n, 8] = com.microsoft.FastGelu(x)
y: f16[n, 8] = Mul(gelu, up)  # "gate"
out y
)";

std::string gated_by_programs(const std::string& text) {
  Plan plan = plan_from(text);
  plan.settings.fuses_elementwise = true;
  run(*std::ranges::find(passes(), std::string_view("gated_products"), &Pass::name), plan);
  return text_of(plan);
}

TEST(Gates, ProductsOfOtherGatesAreOne) {
  const std::string made = gated_by_programs(kGeluGate);
  EXPECT_NE(made.find("\"x and up\": f16[n, 16] = MatMul(rows, wx)  # \"left and right\""), made.npos) << made;
  EXPECT_NE(made.find("x: f16[n, 8] = Slice(\"x and up\""), made.npos) << made;
  EXPECT_NE(made.find("up: f16[n, 8] = Slice(\"x and up\""), made.npos) << made;
  const auto stays = [](const char* part, const char* by) {
    const std::string other = replaced(kGeluGate, part, by);
    EXPECT_EQ(gated_by_programs(other), text_of(plan_from(other)));
  };
  stays("out y", "out y\nout x");
  stays("FastGelu(x)", "FastGelu(x, x)");
  stays("MatMul(rows, wy)", "MatMul(x, wy)");
  stays("Mul(gelu, up)", "Mul(gelu, gelu)");
}

TEST(Gates, HalvesOfOneProductComeAlong) {
  const auto gated = [](const std::string& text, std::vector<float> columns) {
    Plan plan = plan_from(text);
    rewrite(plan, {});
    ASSERT_EQ(plan.steps.size(), 1u) << text_of(plan);
    EXPECT_EQ(plan.steps[0].node->op_type(), "GatedMatMul");
    const Tensor* const both = plan.steps[0].node->constant_input(1);
    ASSERT_TRUE(both);
    for (size_t i = 0; i < columns.size(); ++i) EXPECT_EQ(float(both->as<device::Half>()[i]), columns[i]) << i;
  };
  gated(kHalves, {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 18});
  const std::string sliced =
      replaced(kHalves, "x: f16[n, 8], up: f16[n, 8] = Split@18(both, _) {axis = -1, num_outputs = 2}\n",
               "const first: i64[1] = [0]\nconst half: i64[1] = [8]\nconst end: i64[1] = [16]\n"
               "const last: i64[1] = [-1]\n"
               "x: f16[n, 8] = Slice@13(both, half, end, last)\nup: f16[n, 8] = Slice@13(both, first, half, last)\n");
  gated(sliced, {11, 12, 13, 14, 15, 16, 17, 18, 1, 2, 3, 4, 5, 6, 7, 8});
  std::string wide = "[";
  for (int i = 0; i < 32; ++i) wide += (i ? ", " : "") + std::to_string(i);
  std::string text = replaced(kHalves, "[1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 18]", wide + "]");
  for (size_t at; (at = text.find("16]")) != text.npos && at < text.find("out y");) text.replace(at, 3, "32 ]");
  for (size_t at; (at = text.find("n, 8]")) != text.npos;) text.replace(at, 5, "n, 16 ]");
  gated(text, {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23, 8, 9});
}

TEST(Gates, OtherHalvesStayOutside) {
  const auto stays = [](const char* part, const char* by) {
    const std::string made = after("gates", replaced(kHalves, part, by));
    EXPECT_NE(made.find("both: f16[n, 16] = MatMul(rows, w)"), made.npos) << made;
    EXPECT_NE(made.find(" = Split(both"), made.npos) << made;
  };
  stays("out y", "out y\nout both");
  stays("out y", "out y\nout up");
  stays("out y", "z = Relu(x)\nout y\nout z");
  stays("const w: f16[1, 16] = [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 18]", "in w: f16[1, 16]");
  stays("out y", "z = MatMul(rows, w)\nout y\nout z");
  stays("both: f16", "elsewhere both: f16");
}

TEST(Gates, HalvesOfAQuantizedProductComeAlong) {
  EXPECT_EQ(after("gates", R"(in rows: f16[n, 32]
const c: u8[16, 1, 16]
const s: f16[16]
both: f16[n, 16] = com.microsoft.MatMulNBits(rows, c, s) {K = 32, N = 16, bits = 4, block_size = 32}  # "both"
x: f16[n, 8], up: f16[n, 8] = Split@18(both, _) {axis = -1, num_outputs = 2}
g: f16[n, 8] = Sigmoid(x)
silu: f16[n, 8] = Mul(x, g)
y: f16[n, 8] = Mul(silu, up)
out y
)"),
            R"(in rows: f16[n, 32]
const c: u8[16, 1, 16]
const s: f16[16]
y: f16[n, 8] = com.microsoft.MatMulNBits(rows, c, s) {K = 32, N = 16, bits = 4, block_size = 32, gated = 1}  # "both"
out y
)");
}

constexpr const char* kQuantized = R"(in rows: f16[n, 32]
const cx: u8[8, 1, 16]
const sx: f16[8]
const cy: u8[8, 1, 16]
const sy: f16[8]
x: f16[n, 8] = com.microsoft.MatMulNBits(rows, cx, sx) {K = 32, N = 8, bits = 4, block_size = 32}  # "left"
up: f16[n, 8] = com.microsoft.MatMulNBits(rows, cy, sy) {K = 32, N = 8, bits = 4, block_size = 32}  # "right"
s: f16[n, 8] = Sigmoid(x)
silu: f16[n, 8] = Mul(x, s)
y: f16[n, 8] = Mul(silu, up)
out y
)";

TEST(Gates, QuantizedProductsAreGatedAsTheyAreStored) {
  EXPECT_EQ(after("gates", kQuantized), R"(in rows: f16[n, 32]
const cx: u8[16, 1, 16]
const sx: f16[16]
y: f16[n, 8] = com.microsoft.MatMulNBits(rows, cx, sx) {K = 32, N = 16, bits = 4, block_size = 32, gated = 1}  # "left and right"
out y
)");
}

TEST(Gates, QuantizedProductsAreAlike) {
  const std::string made = after("gates", replaced(kQuantized, "block_size = 32}  # \"right\"", "block_size = 16}"));
  EXPECT_NE(made.find("encore.Gate(x, up)"), made.npos) << made;
}

TEST(Gates, SayWhyProductsStay) {
  const Notes why{
      "MatMul node 'left' does not become a gate: its columns are not alike those of the other product, or others read "
      "it or its weights"};
  EXPECT_EQ(notes_of("gates", replaced(kProducts, "out y", "out y\nout up")), why);
  EXPECT_EQ(notes_of("gates", replaced(kProducts, "MatMul(rows, wy)", "MatMul(rows, wx)")), why);
  for (const char* text : {kProducts, kGate, kParts}) EXPECT_EQ(notes_of("gates", text), Notes{}) << text;
  EXPECT_EQ(notes_of("gates", replaced(replaced(kProducts, "in rows", "in other: f16[n, 4]\nin rows"),
                                       "MatMul(rows, wy)", "MatMul(other, wy)")),
            Notes{});
}

}  // namespace
}  // namespace encore::fuse::tests
