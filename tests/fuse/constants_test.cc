#include "device_run.h"
#include "fuse/own_tensor.h"
#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

std::vector<std::shared_ptr<OwnTensor>> computed(Plan plan) {
  const device::Stream stream{0};
  Memory kept;
  std::vector<Type> types;
  for (int v : plan.outputs) types.push_back(plan.values[size_t(v)].type);
  Program program(std::move(plan));
  Loading loading(kept, stream);
  program.prepare(loading);
  Run run({}, types, stream);
  program.run(run);
  std::vector<std::shared_ptr<OwnTensor>> made;
  for (const Tensor& output : run.outputs()) {
    const auto& constant = made.emplace_back(own(output.type, output.shape));
    if (output.data) run.read_back(constant->bytes.data(), output.data, output.bytes());
  }
  return made;
}

std::string folded(const std::string& text) { return after("constants", text, computed); }

// Swin's, of windows whose rows are of several parts of a picture.
constexpr const char* kMask = R"(in x: f16[n, 2, 2]
const parts: f16[2, 1] = [0, 1]
const turned: f16[1, 2] = [0, 1]
const zero: f16[] = 0.0
const low: f16[] = -100.0
const axes: i64[1] = [0]
difference: f16[2, 2] = Sub(parts, turned)
same: bool[2, 2] = Equal(difference, zero)
mask: f16[2, 2] = Where(same, zero, low)
wide: f16[1, 2, 2] = Unsqueeze(mask, axes)
y: f16[n, 2, 2] = Add(x, wide)
out y
)";

TEST(Constants, AreMadeOfConstants) {
  EXPECT_EQ(folded(kMask), R"(in x: f16[n, 2, 2]
const wide: f16[1, 2, 2] = [0.0, -100.0, -100.0, 0.0]
y: f16[n, 2, 2] = Add(x, wide)
out y
)");
}

TEST(Constants, AreRoundedAsEachStepDoes) {
  const std::string made = folded(R"(in x: f16[2]
const a: f16[2] = [2048, 0.1]
const b: f16[2] = [1, 3]
sum: f16[2] = Add(a, b)
twice: f16[2] = Mul(sum, b)
y: f16[2] = Add(x, twice)
out y
)");
  EXPECT_NE(made.find("const twice: f16[2] = [2048.0, 9.296875]"), made.npos) << made;
}

// Angles of rotary embeddings.
TEST(Constants, CosinesAndSines) {
  const std::string made = folded(R"(in x: f16[2]
const angles: f16[2] = [0, 0.5]
cos: f16[2] = Cos(angles)
sin: f16[2] = Sin(angles)
c: f16[2] = Mul(x, cos)
y: f16[2] = Add(c, sin)
out y
)");
  EXPECT_NE(made.find("const cos: f16[2] = [1.0, 0.8774414]"), made.npos) << made;
  EXPECT_NE(made.find("const sin: f16[2] = [0.0, 0.4794922]"), made.npos) << made;
}

TEST(Constants, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) {
    const std::string made = folded(replaced(kMask, part, by));
    EXPECT_NE(made.find("Unsqueeze("), made.npos) << made;
  };
  stays("const parts: f16[2, 1] = [0, 1]", "in parts: f16[2, 1]");
  stays("const parts: f16[2, 1] = [0, 1]", "const parts: f16[2, 1]");  // of which nobody knows what it holds
  stays("wide: f16[1, 2, 2]", "elsewhere wide: f16[1, 2, 2]");
  stays("out y", "out y\nout wide");
  const std::string wrong = replaced(kMask, "f16[2, 1] = [0, 1]", "f16[3, 3] = [0, 1, 2, 3, 4, 5, 6, 7, 8]");
  EXPECT_NE(folded(wrong).find("Sub(parts, turned)"), wrong.npos);
}

// Whatever the operator and the types: a weight norm, and weights of eight bits.
TEST(Constants, OfWeights) {
  EXPECT_EQ(folded(R"(in x: f32[n, 2]
const v: f32[2, 2] = [3.0, 1.0, 4.0, 0.0]
const g: f32[1, 2] = [10.0, 2.0]
const axes: i64[1] = [0]
norm: f32[1, 2] = ReduceL2@18(v, axes)
way: f32[2, 2] = Div(v, norm)
w: f32[2, 2] = Mul(way, g)
const q: i8[2, 2] = [1, 2, 3, 4]
const half: f32[] = 0.5
d: f32[2, 2] = DequantizeLinear(q, half)
p: f32[n, 2] = MatMul(x, w)
y: f32[n, 2] = MatMul(p, d)
out y
)"),
            R"(in x: f32[n, 2]
const w: f32[2, 2] = [6.0, 2.0, 8.0, 0.0]
const d: f32[2, 2] = [0.5, 1.0, 1.5, 2.0]
p: f32[n, 2] = MatMul(x, w)
y: f32[n, 2] = MatMul(p, d)
out y
)");
}

// Who reads them by their nodes is told.
TEST(Constants, AreKnownToNodes) {
  Plan plan = plan_from(kMask);
  plan.compute = computed;
  rewrite(plan, {});
  ASSERT_EQ(plan.steps.size(), 1u);
  ASSERT_TRUE(plan.steps[0].node->constant_input(1));
  EXPECT_EQ(plan.steps[0].node->constant_input(1)->shape, (Shape{1, 2, 2}));
}

// What makes much more than it reads, and what draws numbers.
TEST(Constants, StayWhereMemoryOrChanceSaySo) {
  const auto stays = [](const std::string& steps) {
    const std::string text = "in x: f32[1024, 1024]\n" + steps + "y: f32[1024, 1024] = Add(x, w)\nout y\n";
    EXPECT_EQ(folded(text), text_of(plan_from(text)));
  };
  stays("const one: f32[] = 1.0\nconst to: i64[2] = [1024, 1024]\nw: f32[1024, 1024] = Expand(one, to)\n");
  stays("const one: f32[1] = [1.0]\nw: f32[1] = RandomNormalLike(one)\n");
}

// Of what others read as it is there is no other copy.
TEST(Constants, AreMovedUnlessOthersReadThem) {
  const auto first_of = [](const std::string& text) {
    Plan plan = plan_from("in x: f32[n, 1024]\nconst w: f32[1024, 1024]\n" + text + "out y\n");
    const auto w = std::ranges::find(plan.values, "w", &Value::name);
    plan.constants.push_back(own(w->type, Shape(*w->dims)));
    w->constant = &plan.constants.back()->view;
    plan.compute = computed;
    run(*std::ranges::find(passes(), std::string_view("constants"), &Pass::name), plan);
    return plan.steps[0].node->op_type();
  };
  const auto turned_by = [&](const std::string& last) {
    return first_of("t: f32[1024, 1024] = Transpose(w) {perm = [1, 0]}\np: f32[n, 1024] = MatMul(x, t)\n" + last);
  };
  EXPECT_EQ(turned_by("y: f32[n, 1024] = MatMul(p, t)\n"), "MatMul");
  EXPECT_EQ(turned_by("y: f32[n, 1024] = MatMul(p, w)\n"), "Transpose");
  // How weights are to be shaped others may read.
  EXPECT_EQ(first_of("const to: i64[4] = [1024, 1024, 1, 1]\n"
                     "t: f32[1024, 1024, 1, 1] = Reshape(w, to)\n"
                     "h: f32[1024, 1024, 1, 1] = Expand(x, to)\n"
                     "y: f32[1024, 1024, 1, 1] = Conv(h, t)\n"),
            "Expand");
}

// By then masks that are added one after the other are added together.
TEST(ConstantMasks, OfSeveralAreOne) {
  constexpr const char* kTwo = R"(in q: f16[n, 2, 8]
in k: f16[n, 8, 2]
const slopes: f16[2, 2] = [0, -1, -1, 0]
const causal: f16[2, 2] = [0, -100, 0, 0]
s: f16[n, 2, 2] = MatMul(q, k)
near: f16[n, 2, 2] = Add(s, slopes)
m: f16[n, 2, 2] = Add(near, causal)
p: f16[n, 2, 2] = Softmax(m) {axis = -1}
out p
)";
  const std::string joined = after("joined_masks", kTwo);
  EXPECT_EQ(after("constant_masks", joined, computed), R"(in q: f16[n, 2, 8]
in k: f16[n, 8, 2]
const "causal and slopes": f16[2, 2] = [0.0, -101.0, -1.0, 0.0]
s: f16[n, 2, 2] = MatMul(q, k)
m: f16[n, 2, 2] = Add(s, "causal and slopes")
p: f16[n, 2, 2] = Softmax(m) {axis = -1}
out p
)");
  const std::string other =
      replaced(joined, "const causal: f16[2, 2] = [0.0, -100.0, 0.0, 0.0]", "in causal: f16[2, 2]");
  EXPECT_EQ(after("constant_masks", other, computed), text_of(plan_from(other)));
}

}  // namespace
}  // namespace encore::fuse::tests
