#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kChosen = R"(in q: f16[b, 2, 2, 8]
in k: f16[b, 2, 8, 3]
const hides: bool[1, 1, 2, 3] = [0, 1, 1, 0, 0, 1]
const lowest: f16[] = -65504
s: f16[b, 2, 2, 3] = MatMul(q, k)
m: f16[b, 2, 2, 3] = Where(hides, lowest, s)  # "mask"
p: f16[b, 2, 2, 3] = Softmax(m) {axis = -1}
out p
)";

TEST(ChosenMasks, AreAdded) {
  EXPECT_EQ(after("chosen_masks", kChosen), R"(in q: f16[b, 2, 2, 8]
in k: f16[b, 2, 8, 3]
const "hides as numbers": f16[1, 1, 2, 3] = [0.0, -65504.0, -65504.0, 0.0, 0.0, -65504.0]
s: f16[b, 2, 2, 3] = MatMul(q, k)
m: f16[b, 2, 2, 3] = Add(s, "hides as numbers")  # "mask"
p: f16[b, 2, 2, 3] = Softmax(m) {axis = -1}
out p
)");
}

TEST(ChosenMasks, RowsMayBeOfOneBatchThen) {
  const std::string text =
      replaced(replaced(kChosen, "p: f16[b, 2, 2, 3] = Softmax(m)", "p: f16[a, 2, 3] = Softmax(f)"), "p: f16[a",
               "const flat: i64[3] = [-1, 2, 3]\nf: f16[a, 2, 3] = Reshape(m, flat)\np: f16[a");
  EXPECT_NE(after("chosen_masks", text).find("Add(s, \"hides as numbers\")"), std::string::npos);
}

TEST(ChosenMasks, ThatHideNothingAreNone) {
  const std::string made = after("chosen_masks", replaced(kChosen, "[0, 1, 1, 0, 0, 1]", "[0, 0, 0, 0, 0, 0]"));
  EXPECT_NE(made.find("Softmax(s)"), made.npos) << made;
  EXPECT_EQ(made.find("Where("), made.npos) << made;
}

TEST(ChosenMasks, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("chosen_masks", kChosen, part, by); };
  stays("[0, 1, 1, 0, 0, 1]", "[0, 1, 1, 1, 1, 1]");  // a row of which all are as likely
  stays("hides: bool[1, 1, 2, 3] = [0, 1, 1, 0, 0, 1]", "hides: bool[1, 1, 2, 1] = [0, 1]");
  stays("const hides: bool[1, 1, 2, 3] = [0, 1, 1, 0, 0, 1]", "in hides: bool[1, 1, 2, 3]");
  stays("lowest: f16[] = -65504", "lowest: f16[] = -100");
  stays("const lowest: f16[] = -65504", "in lowest: f16[]");
  stays("Where(hides, lowest, s)", "Where(hides, s, lowest)");
  stays("s: f16[b, 2, 2, 3] = MatMul", "s: f16[b, 2, 2, 1] = MatMul");
  stays("Softmax(m) {axis = -1}", "Relu(m)");
  stays("Softmax(m) {axis = -1}", "Softmax(m) {axis = 2}");
  // Another mask may hide what this one leaves.
  stays("p: f16[b, 2, 2, 3] = Softmax(m)", "t: f16[b, 2, 2, 3] = Add(m, s)\np: f16[b, 2, 2, 3] = Softmax(t)");
  stays("out p", "out p\nout m");
}

constexpr const char* kTwo = R"(in q: f16[b, 2, 4, 8]
in k: f16[b, 2, 8, 3]
const slopes: f16[2, 1, 3] = [0, 1, 2, 0, 2, 4]
const causal: f16[1, 1, 4, 3] = [0, -65504, -65504, 0, 0, -65504, 0, 0, 0, 0, 0, 0]
const scale: f16[] = 0.5
s: f16[b, 2, 4, 3] = MatMul(q, k)
t: f16[b, 2, 4, 3] = Mul(s, scale)
a: f16[b, 2, 4, 3] = Add(t, slopes)
m: f16[b, 2, 4, 3] = Add(causal, a)
p: f16[b, 2, 4, 3] = Softmax(m) {axis = -1}
out p
)";

TEST(JoinedMasks, AreAddedTogether) {
  const std::string made = after("joined_masks", kTwo);
  EXPECT_NE(made.find(R"("causal and slopes": f16[1, 2, 4, 3] = Add(causal, slopes))"), made.npos) << made;
  EXPECT_NE(made.find(R"(m: f16[b, 2, 4, 3] = Add(t, "causal and slopes"))"), made.npos) << made;
}

// What is a little beyond the largest half is rounded to it.
TEST(JoinedMasks, OfTheLargestNumberMayHaveSmallBiases) {
  const std::string biased = replaced(kTwo, "[0, 1, 2, 0, 2, 4]", "[0, -1, -2, 0, -2, -15]");
  const std::string made = after("joined_masks", biased);
  EXPECT_NE(made.find(R"(m: f16[b, 2, 4, 3] = Add(t, "causal and slopes"))"), made.npos) << made;
  expect_stays("joined_masks", biased, "-15]", "-16]");
  std::string floats = biased;
  for (size_t at; (at = floats.find("f16")) != floats.npos;) floats.replace(at, 3, "f32");
  for (size_t at; (at = floats.find("65504")) != floats.npos;) floats.replace(at, 5, "3.4028234663852886e38");
  EXPECT_NE(after("joined_masks", floats).find("causal and slopes"), std::string::npos);
  expect_stays("joined_masks", floats, "-15]", "-2e31]");
}

// As models have zeros for biases where a layer has none.
TEST(JoinedMasks, MayBeOneNumber) {
  const std::string zeros = replaced(kTwo, "const slopes: f16[2, 1, 3] = [0, 1, 2, 0, 2, 4]",
                                     "in dims: i64[3]\nslopes: f16[2, 1, 3] = ConstantOfShape(dims)");
  EXPECT_NE(after("joined_masks", zeros).find("causal and slopes"), std::string::npos);
}

TEST(JoinedMasks, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("joined_masks", kTwo, part, by); };
  stays("[0, 1, 2, 0, 2, 4]", "[0, -1, -2, 0, -2, -40]");  // halves would be infinite
  stays("const slopes: f16[2, 1, 3] = [0, 1, 2, 0, 2, 4]", "in slopes: f16[2, 1, 3]");
  stays("const causal: f16[1, 1, 4, 3] = [0, -65504, -65504, 0, 0, -65504, 0, 0, 0, 0, 0, 0]",
        "in causal: f16[c, 1, 4, 3]");
  stays("Mul(s, scale)", "Mul(s, s)");
  stays("Softmax(m) {axis = -1}", "Relu(m)");
  stays("out p", "out p\nout a");
}

}  // namespace
}  // namespace encore::fuse::tests
