#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kMask = R"(in mask: i64[b, s]
const one: f32[] = 1
const lowest: f16[] = -65504
const axes: i64[2] = [1, 2]
seen: f32[b, s] = Cast(mask) {to = 1}  # "seen"
hidden: f32[b, s] = Sub(one, seen)
all: f32[b, 1, 1, s] = Unsqueeze(hidden, axes)  # "heads"
half: f16[b, 1, 1, s] = Cast(all) {to = 10}
bias: f16[b, 1, 1, s] = Mul(half, lowest)
out bias
)";

TEST(UnitDims, AreThereFromTheBeginning) {
  EXPECT_EQ(after("unit_dims", kMask), R"(in mask: i64[b, s]
const axes: i64[2] = [1, 2]
const one: f32[] = 1.0
const lowest: f16[] = -65504.0
"mask as seen as all": i64[b, 1, 1, s] = Unsqueeze(mask, axes)  # "heads"
"seen as all": f32[b, 1, 1, s] = Cast("mask as seen as all") {to = 1}  # "seen"
all: f32[b, 1, 1, s] = Sub(one, "seen as all")
half: f16[b, 1, 1, s] = Cast(all) {to = 10}
bias: f16[b, 1, 1, s] = Mul(half, lowest)
out bias
)");
}

TEST(UnitDims, OfIntegers) {
  const std::string made = after("unit_dims", R"(in ids: i64[b, s]
const pad: i64[] = 1
const axes: i64[2] = [1, 2]
const low: f32[] = -1
const zero: f32[] = 0
is: bool[b, s] = Equal(ids, pad)
all: bool[b, 1, 1, s] = Unsqueeze(is, axes)
y: f32[b, 1, 1, s] = Where(all, low, zero)
out y
)");
  EXPECT_NE(made.find("all: bool[b, 1, 1, s] = Equal(\"ids as all\", pad)"), made.npos) << made;
}

TEST(UnitDims, AreTakenAwayLikewise) {
  const std::string made = after("unit_dims", R"(in x: f16[b, 1, s]
const shape: i64[2] = [0, -1]
a: f16[b, 1, s] = Exp(x)
b: f16[b, s] = Reshape(a, shape)
y: f16[b, s] = Neg(b)
out y
)");
  EXPECT_NE(made.find("Reshape(x, shape)"), made.npos) << made;
}

TEST(UnitDims, StayForOthers) {
  constexpr const char* kOne = R"(in x: f16[b, s]
in of_ones: f16[b, 1, s]
const shape: i64[3] = [0, 1, -1]
const half: f16[] = 0.5
a: f16[b, s] = Mul(x, half)
r: f16[b, 1, s] = Reshape(a, shape)
y: f16[b, 1, s] = Neg(r)
out y
)";
  const auto stays = [&](const char* part, const char* by) { expect_stays("unit_dims", kOne, part, by); };
  stays("Mul(x, half)", "Mul(x, x)");
  stays("Mul(x, half)", "Softmax(x)");
  stays("in x: f16[b, s]", "in x: f16[s]");
  stays("Neg(r)", "Softmax(r)");  // nothing is gained
  stays("out y", "out y\nout a");
  stays("out y", "out y\nout r");
  stays("r: f16[b, 1, s]", "r: f16[b, 2, s]");
  // A program reads what others cut, or put together, without a copy.
  stays("in x: f16[b, s]\n", "in z: f16[b, s]\nx: f16[b, s] = Concat(z) {axis = 1}\n");
}

}  // namespace
}  // namespace encore::fuse::tests
