#include <gtest/gtest.h>

#include <algorithm>

#include "padded.h"

namespace encore::fuse::tests {
namespace {

// Of one step, y, of x [b, 4, n] and what else there is.
std::string axes_of_step(const std::string& step, const std::string& more = "") {
  return axes_of("in x: f32[b, 4, n]\n" + more + step + "\nout y\n");
}

TEST(Padding, WhatHasNoSuchDimensionStays) {
  EXPECT_EQ(axes_of("in x: f32[n]\ny: f32[n] = Relu(x)\nout y\n"), "-1 > -1");
  EXPECT_EQ(axes_of("in x: f32[n]\nin z: f32[b]\ny: f32[n] = Relu(x)\nw: f32[b] = Relu(z)\nout y\nout w\n"),
            "-1 0 > -1 0");
}

TEST(Padding, ElementsStayWhereTheyAre) {
  EXPECT_EQ(axes_of_step("y: f32[b, 4, n] = Relu(x)"), "0 > 0");
  EXPECT_EQ(axes_of_step("y: f32[b, 4, n] = Add(x, z)", "in z: f32[n]\n"), "0 -1 > 0");
  EXPECT_EQ(axes_of_step("y: f32[b, 4, n] = Add(z, x)", "in z: f32[1, 4, 1]\n"), "0 -1 > 0");
  EXPECT_EQ(axes_of_step("y: f32[7, b, 4, n] = Add(z, x)", "in z: f32[7, 1, 1, 1]\n"), "0 -1 > 1");
  EXPECT_EQ(axes_of_step("y: f32 = Add(x, z)", "in z: f32[m, 4, n]\n"),
            "Add node '' has an input 1 that need not be as long");
  EXPECT_EQ(axes_of("in x: f32[b, 1]\nin z: f32[b]\ny: f32 = Add(x, z)\nout y\n"),
            "the output 'y' has 'b' along two axes");
  EXPECT_EQ(axes_of_step("s: i64[3] = Shape(x)\ny: f32 = Expand(z, s)", "in z: f32[m, 4, 1]\n"),
            "Expand node '' has an input 0 that need not be as long");
  EXPECT_EQ(axes_of_step("y: f32 = Add@6(x, z)", "in z: f32[n]\n"),
            "Add node '' is of a version that broadcasts otherwise");
}

TEST(Padding, OperatorsGoAlongOtherAxes) {
  EXPECT_EQ(axes_of_step("y: f32[b, 4, n] = Softmax@13(x) {axis = 1}"), "0 > 0");
  EXPECT_EQ(axes_of_step("y: f32[b, 4, n] = Softmax@11(x) {axis = 0}"), "Softmax node '' goes along it");
  EXPECT_EQ(axes_of_step("y: f32[b, n] = ReduceSum(x, a) {keepdims = 0}", "const a: i64[1] = [1]\n"), "0 > 0");
  EXPECT_EQ(axes_of_step("y: f32 = LayerNormalization(x, w) {axis = -1}", "const w: f32[8]\n"), "0 > 0");
  EXPECT_EQ(axes_of_step("y: f32 = LayerNormalization(x, w) {axis = 0}", "const w: f32[8]\n"),
            "LayerNormalization node '' takes the statistics of it");
  EXPECT_EQ(axes_of_step("y: f32 = Odd(x)"),
            "Odd node '' may bring its rows together, for all that is known of this operator");
  EXPECT_EQ(axes_of("in x: f32[b, 3, 8, 8]\nconst w: f32[4, 3, 3, 3]\ny: f32 = Conv(x, w)\nout y\n"), "0 > 0");
  EXPECT_EQ(axes_of("in x: f32[1, 3, b, 8]\nconst w: f32[4, 3, 3, 3]\ny: f32 = Conv(x, w)\nout y\n"),
            "Conv node '' reads what is beside each row of it");
  EXPECT_EQ(axes_of("in x: f32[1, 3, b, 8]\nconst w: f32[4, 3, 1, 3]\ny: f32 = Conv(x, w)\nout y\n"), "2 > 2");
  EXPECT_EQ(axes_of("in x: f32[1, 3, b, 8]\nconst w: f32[4, 3, 1, 3]\ny: f32 = Conv(x, w) {strides = [2, 1]}\nout y\n"),
            "Conv node '' reads what is beside each row of it");
  EXPECT_EQ(
      axes_of("in x: f32[1, 3, b, 8]\nconst w: f32[4, 3, 1, 3]\ny: f32 = Conv(x, w) {pads = [0, 0, 1, 0]}\nout y\n"),
      "Conv node '' reads what is beside each row of it");
}

TEST(Padding, ProductsSumAlongOtherAxes) {
  EXPECT_EQ(axes_of_step("y: f32[b, 4, 3] = MatMul(x, w)", "const w: f32[8, 3]\n"), "0 > 0");
  EXPECT_EQ(axes_of("in x: f32[4, b]\nconst w: f32[8, 4]\ny: f32 = MatMul(w, x)\nout y\n"), "1 > 1");
  EXPECT_EQ(axes_of("in x: f32[4, b]\nin w: f32[b, 4]\ny: f32 = MatMul(x, w)\nout y\n"),
            "MatMul node '' sums along it");
  EXPECT_EQ(axes_of("in x: f32[b, 4]\nin w: f32[b, 4, 2]\ny: f32 = MatMul(x, w)\nout y\n"),
            "the output 'y' has 'b' along two axes");
  EXPECT_EQ(axes_of("in x: f32[b, 4]\nconst w: f32[8, 4]\ny: f32 = Gemm(x, w) {transB = 1}\nout y\n"), "0 > 0");
  EXPECT_EQ(axes_of("in x: f32[b, 4]\nconst w: f32[8, 4]\ny: f32 = Gemm(x, w) {transA = 1}\nout y\n"),
            "Gemm node '' sums along it");
  const auto einsum = [](const std::string& equation) {
    return axes_of("in x: f32[b, 4]\nin w: f32[b, 4]\ny: f32 = Einsum(x, w) {equation = \"" + equation +
                   "\"}\nout y\n");
  };
  EXPECT_EQ(einsum("bi,bi->b"), "0 0 > 0");
  EXPECT_EQ(einsum("bi,bi->i"), "Einsum node '' sums along it");
  EXPECT_EQ(einsum("bi,ci->bc"), "the output 'y' has 'b' along two axes");
}

TEST(Padding, RowsMayBeReshaped) {
  const auto reshaped = [](const std::string& from, const std::string& to) {
    return axes_of("in x: f32[" + from + "]\nconst s: i64[" + std::to_string(std::ranges::count(to, ',') + 1) +
                   "] = [" + to + "]\ny: f32 = Reshape(x, s)\nout y\n");
  };
  EXPECT_EQ(reshaped("b, n, 64", "0, 0, 4, 16"), "0 > 0");
  EXPECT_EQ(reshaped("b, n, 64", "-1, 64"), "0 > 0");
  EXPECT_EQ(reshaped("b, n, 64", "0, -1"), "0 > 0");
  EXPECT_EQ(reshaped("b, n, 64", "1, -1, 64"), "0 > 1");
  EXPECT_EQ(reshaped("b, 64", "-1, 32"), "0 > 0");
  EXPECT_EQ(reshaped("b, 64", "-1, 128"), "Reshape node '' may not leave its rows one after another");
  EXPECT_EQ(reshaped("3, b, 64", "0, 0, 4, 16"), "1 > 1");
  EXPECT_EQ(reshaped("n, b, 64", "0, -1, 16"), "1 > 1");
  EXPECT_EQ(reshaped("n, b, 64", "-1, 64"), "the output 'y' has 'b' inside of an axis");
  EXPECT_EQ(reshaped("b, 4", "4, -1"), "Reshape node '' may not leave its rows one after another");
  EXPECT_EQ(axes_of("in x: f32[b, 4]\nin s: i64[2]\ny: f32 = Reshape(x, s)\nout y\n"),
            "Reshape node '' asks for a shape that is not known");
}

// As exporters have projections of [sequence, batch, width].
TEST(Padding, RowsMayBeInsideOfAnAxis) {
  const auto back = [](const std::string& first, const std::string& second, const std::string& between = "Relu(m)") {
    return axes_of("in x: f32[7, b, 64]\nconst s: i64[2] = [" + first + "]\nm: f32 = Reshape(x, s)\nn: f32 = " +
                   between + "\nconst t: i64[3] = [" + second + "]\ny: f32 = Reshape(n, t)\nout y\n");
  };
  EXPECT_EQ(back("-1, 64", "7, -1, 64"), "1 > 1");
  EXPECT_EQ(back("-1, 32", "7, -1, 64"), "1 > 1");
  EXPECT_EQ(back("-1, 128", "7, -1, 64"), "Reshape node '' may not leave its rows one after another");
  EXPECT_EQ(back("-1, 64", "-1, 7, 64"), "Reshape node '' may not leave its rows one after another");
  EXPECT_EQ(back("-1, 64", "7, -1, 64", "Trilu(m)"), "Trilu node '' has it inside of an axis");
  EXPECT_EQ(axes_of("in x: f32[7, b, 64]\nin z: f32[b, 64]\nconst s: i64[2] = [-1, 64]\nm: f32 = Reshape(x, s)\n"
                    "y: f32 = Add(m, z)\nout y\n"),
            "Add node '' has it in another order in one input than in another");
}

constexpr const char* kAttention = R"(in q: f32[b, n, 8]
in mask: f32[b, 1, n]
k: f32[b, 8, n] = Transpose(q) {perm = [0, 2, 1]}
scores: f32[b, n, n] = MatMul(q, k)
masked: f32[b, n, n] = Add(scores, mask)
p: f32[b, n, n] = Softmax(masked) {axis = -1}
nan: bool[b, n, n] = IsNaN(p)
const zero: f32[] = 0.0
shown: f32[b, n, n] = Where(nan, zero, p)
y: f32[b, n, 8] = MatMul(shown, q)
out y
)";
std::string with(const std::string& text, const std::string& part, const std::string& by) {
  std::string other = text;
  return other.replace(other.find(part), part.size(), by);
}

// Keys that padding adds are given no weight, so what is added to sums is zero.
TEST(Padding, AttentionLeavesOutKeys) {
  EXPECT_EQ(axes_of(kAttention, "n"), "1 2 > 1");
  EXPECT_EQ(axes_of(kAttention, "b"), "0 0 > 0");
  const PaddedAxes axes = padded_axes(plan_from(kAttention), "n", 8);
  EXPECT_EQ(axes.masked, (std::map<PaddingMask, std::vector<int>>{{{PaddingMask::keys, Type::f32}, {3}}}));
  Plan plan = plan_from(kAttention);
  add_padding_masks(plan, axes, "n");
  const std::string text = text_of(plan);
  for (const char* line :
       {"in \"padding of n\": f32[n]\n", "\"mask and padding\": f32[b, 1, n] = Add(mask, \"padding of n\")",
        "masked: f32[b, n, n] = Add(scores, \"mask and padding\")"})
    EXPECT_NE(text.find(line), text.npos) << text;
}

// A row that is added may see none of the others, and what attends to it would be no number. Who asks for such rows
// fills them.
TEST(Padding, BlindRowsAreZerosWhereInfinityHidesKeys) {
  const auto fills = [](const std::string& text) {
    Plan plan = plan_from(text);
    add_padding_masks(plan, padded_axes(plan, "n", 8), "n");
    const std::string made = text_of(plan);
    return made.find("p: f32[b, n, n] = Where(\"p is of a blind row\", ") != made.npos;
  };
  const std::string asked = with(kAttention, "in mask: f32[b, 1, n]",
                                 "in seen: bool[b, 1, n]\nconst none: f32[] = 0.0\nconst least: f32[] = -inf\n"
                                 "mask: f32[b, 1, n] = Where(seen, none, least)");
  EXPECT_FALSE(fills(asked));
  const std::string window = with(asked, "IsNaN(p)", "Equal(p, p)");
  EXPECT_TRUE(fills(window));
  EXPECT_TRUE(fills(with(window, "Add(scores, mask)", "Where(seen, scores, least)")));
  EXPECT_FALSE(fills(with(window, "-inf", "-1e30")));
}

TEST(Padding, ScoresWithoutAMaskGetOne) {
  const std::string text =
      with(with(kAttention, "masked: f32[b, n, n] = Add(scores, mask)\n", ""), "Softmax(masked)", "Softmax(scores)");
  Plan plan = plan_from(text);
  add_padding_masks(plan, padded_axes(plan, "n", 8), "n");
  const std::string made = text_of(plan);
  EXPECT_NE(made.find("\"scores and padding\": f32[b, n, n] = Add(scores, \"padding of n\")"), made.npos) << made;
  EXPECT_NE(made.find("Softmax(\"scores and padding\")"), made.npos) << made;
}

TEST(Padding, AMaskMayBeExpanded) {
  const std::string mask = R"(in mask: f32[b, 1, n]
s: i64[3] = Shape(q)
const last: i64[1] = [1]
const first: i64[1] = [0]
const one: i64[1] = [1]
keys: i64[1] = Gather(s, last)
batch: i64[1] = Gather(s, first)
size: i64[3] = Concat(batch, keys, keys) {axis = 0}
wide: f32[b, n, n] = Expand(mask, size)
)";
  std::string text = with(kAttention, "in mask: f32[b, 1, n]\n", mask);
  EXPECT_EQ(axes_of(with(text, "Add(scores, mask)", "Add(scores, wide)"), "n"), "1 2 > 1");
  EXPECT_EQ(axes_of(with(text, "out y", "out wide"), "n"), "the output 'wide' has 'n' along two axes");
}

TEST(Padding, NothingElseSumsAlongIt) {
  const auto refused = [](const std::string& part, const std::string& by) {
    return axes_of(with(kAttention, part, by), "n");
  };
  EXPECT_EQ(refused("MatMul(shown, q)", "MatMul(scores, q)"), "MatMul node '' sums along it");
  EXPECT_EQ(refused("const zero: f32[] = 0.0", "const zero: f32[] = 1.0"), "MatMul node '' sums along it");
  EXPECT_EQ(refused("Softmax(masked) {axis = -1}", "Softmax(masked) {axis = 1}"), "MatMul node '' sums along it");
  EXPECT_EQ(refused("Softmax(masked)", "LogSoftmax(masked)"), "MatMul node '' sums along it");
  EXPECT_EQ(refused("out y", "out y\nout p"), "the output 'p' has 'n' along two axes");
}

// Of x [b, n, 4] and what y makes of it along n: what is inserted, a line each.
std::string masked(const std::string& y, const std::string& type = "f32") {
  return masks_of("in x: " + type + "[b, n, 4]\nconst one: i64[1] = [1]\n" + y + "\nout y\n", "n");
}

// Rows that padding adds are left out of sums, means and extremes.
TEST(Padding, ReductionsLeaveOutRows) {
  EXPECT_EQ(masked("y: f32[b, 4] = ReduceSum(x, one) {keepdims = 0}"),
            "in \"rows of n\": bool[n, 1]\n"
            "const \"'s padding\": f32[] = 0.0\n"
            "\"x without padding\": f32[b, n, 4] = Where(\"rows of n\", x, \"'s padding\")\n"
            "y: f32[b, 4] = ReduceSum(\"x without padding\", one) {keepdims = 0}\n");
  EXPECT_EQ(masked("y: f16[b, 1, 4] = ReduceMean(x, one)", "f16"),
            "in \"rows of n\": bool[n, 1]\n"
            "in \"growth of n\": f16[]\n"
            "const \"'s padding\": f16[] = 0.0\n"
            "\"x without padding\": f16[b, n, 4] = Where(\"rows of n\", x, \"'s padding\")\n"
            "\"y with padding\": f16[b, 1, 4] = ReduceMean(\"x without padding\", one)\n"
            "y: f16[b, 1, 4] = Mul(\"y with padding\", \"growth of n\")\n");
  const auto has = [](const char* neutral, const std::string& y, const std::string& type) {
    const std::string made = masked(y, type);
    return made.find("s padding\": " + type + "[] = " + neutral + "\n") != made.npos;
  };
  EXPECT_TRUE(has("-inf", "y: f32 = Softmax(x) {axis = 1}", "f32"));
  EXPECT_TRUE(has("-inf", "y: f16 = ReduceLogSumExp(x, one)", "f16"));
  EXPECT_TRUE(has("-9223372036854775808", "y: i64[b, 1, 4] = ReduceMax(x, one)", "i64"));
  EXPECT_TRUE(has("2147483647", "y: i32[b, 1, 4] = ReduceMin(x, one)", "i32"));
  EXPECT_TRUE(has("inf", "y: i64 = ArgMin(x) {axis = 1}", "bf16"));
  EXPECT_TRUE(has("1.0", "y: f64[b, 1, 4] = ReduceProd(x, one)", "f64"));
  // Both at a time.
  EXPECT_EQ(axes_of("in x: f32[b, n, 4]\ny: f32[] = ReduceMean(x) {keepdims = 0}\nout y\n"), "0 > -1");
}

TEST(Padding, NotEveryReductionCanLeaveOutRows) {
  EXPECT_EQ(axes_of_step("y: f32 = Hardmax@13(x) {axis = 0}"), "Hardmax node '' goes along it");
  EXPECT_EQ(axes_of_step("y: f32 = Softmax@11(x) {axis = 0}"), "Softmax node '' goes along it");
  EXPECT_EQ(axes_of_step("y: i64 = ArgMax(x) {axis = 0, select_last_index = 1}"),
            "ArgMax node '' takes the last along it");
  const auto of = [](const std::string& type) {
    return axes_of("in x: " + type + "[b, 4]\ny: " + type + " = ReduceMean(x)\nout y\n");
  };
  EXPECT_EQ(of("i64"), "ReduceMean node '' takes the mean of integers along it");
  EXPECT_EQ(of("i8"), "ReduceMean node '' sums along it");
  EXPECT_EQ(axes_of("in x: f32[7, b, 64]\nconst s: i64[2] = [-1, 64]\nm: f32 = Reshape(x, s)\n"
                    "y: f32 = ReduceMean(m)\nout y\n"),
            "ReduceMean node '' sums along it");
}

// As exporters pick what each sequence of a batch may see.
TEST(Padding, EachRowMayPickItsOwn) {
  const std::string text = R"(in mask: bool[b, n]
const zero: i64[] = 0
const one: i64[] = 1
const first: i64[] = 0
const inner: i64[2] = [1, 2]
const ones: i64[1] = [1]
in k: i64[1, n, 1]
size: i64[2] = Shape(mask)
length: i64 = Gather(size, first)
i: i64[b] = Range(zero, length, one)
rows: i64[b, 1, 1] = Unsqueeze(i, inner)
both: i64[2] = Shape(mask)
grid: i64[3] = Concat(both, ones) {axis = 0}
of_rows: i64[b, n, 1] = Expand(rows, grid)
of_keys: i64[b, n, 1] = Expand(k, grid)
tuples: i64[b, n, 2] = Concat(of_rows, of_keys) {axis = -1}
y: bool[b, n] = GatherND(mask, tuples)
out y
)";
  const auto with = [&](const std::string& part, const std::string& by) {
    std::string other = text;
    return axes_of(other.replace(other.find(part), part.size(), by));
  };
  EXPECT_EQ(axes_of(text), "0 -1 > 0");
  const std::string refused = "GatherND node '' may pick other rows of it";
  EXPECT_EQ(with("Concat(of_rows, of_keys)", "Concat(of_keys, of_rows)"), refused);
  EXPECT_EQ(with("Range(zero, length, one)", "Range(one, length, one)"),
            "Concat node '' has an input 0 that need not be as long");
  // Along the sequence.
  const std::string keys =
      "const second: i64[] = 1\nconst outer: i64[2] = [0, 2]\nkeys: i64 = Gather(both, second)\n"
      "j: i64[n] = Range(zero, keys, one)\nk: i64[1, n, 1] = Unsqueeze(j, outer)\n";
  std::string other = text;
  other.replace(other.find("in k: i64[1, n, 1]\n"), 19, "").insert(other.find("grid: "), keys);
  EXPECT_EQ(axes_of(other, "n"), "1 > 1");
  EXPECT_EQ(axes_of(other, "b"), "0 > 0");
  other.replace(other.find("Concat(of_rows, of_keys)"), 24, "Concat(of_keys, of_rows)");
  EXPECT_EQ(axes_of(other, "n"), refused);
}

// Positions, whose table has as many as a run may have.
TEST(Padding, TablesAreLongEnough) {
  const auto positions = [](const std::string& made, int64_t longest) {
    return axes_of(
        "in x: f32[b, 8]\nconst table: f32[64, 8]\nconst zero: i64[] = 0\nconst one: i64[] = 1\n"
        "const from: i64[1] = [0]\nsize: i64[2] = Shape(x)\n" +
            made + "\ny: f32[b, 8] = Add(x, position)\nout y\n",
        "b", longest);
  };
  const std::string gathered =
      "length: i64 = Gather(size, zero)\nat: i64[b] = Range(zero, length, one)\n"
      "position: f32[b, 8] = Gather(table, at)";
  const std::string sliced =
      "length: i64[1] = Gather(size, from)\nposition: f32[b, 8] = Slice(table, from, length, from)";
  const std::string cast =
      "length: i64 = Gather(size, zero)\nat: i64[b] = Range(zero, length, one)\n"
      "place: i32[b] = Cast(at) {to = 6}\nposition: f32[b, 8] = Gather(table, place)";
  for (const std::string& made : {gathered, sliced, cast}) {
    EXPECT_EQ(positions(made, 64), "0 > 0");
    EXPECT_NE(positions(made, 65).find("node '' has a table of 64, and 65 is longer"), std::string::npos);
  }
  const std::string shifted =
      "const two: i64[] = 2\nlength: i64 = Gather(size, zero)\nat: i64[b] = Range(zero, length, one)\n"
      "place: i64[b] = Add(two, at)\nposition: f32[b, 8] = Gather(table, place)";
  EXPECT_EQ(positions(shifted, 62), "0 > 0");
  EXPECT_NE(positions(shifted, 63).find("node '' has a table of 64, and 65 is longer"), std::string::npos);
}

TEST(Padding, AllMayBeSlicedOff) {
  const auto sliced = [](const std::string& to) {
    return axes_of(
        "in x: f32[n, 8]\nconst from: i64[1] = [0]\nconst half: i64[1] = [4]\nconst last: i64[1] = [1]\n"
        "size: i64[2] = Shape(x)\nn: i64[1] = Gather(size, from)\n"
        "turned: f32[8, n] = Transpose(x) {perm = [1, 0]}\npairs: f32[n, n] = MatMul(x, turned)\n"
        "some: f32[n, ?] = Slice(pairs, from, " +
            to +
            ", last)\n"
            "sums: f32[n, 1] = ReduceSum(some, last)\ny: f32 = Relu(sums)\nout y\n",
        "n");
  };
  EXPECT_EQ(sliced("n"), "0 > 0");
  EXPECT_EQ(sliced("half"), "Slice node '' may leave out some of its rows");
}

// As masks and biases of all pairs begin.
TEST(Padding, SomethingMayBeRepeatedAlongBothAxes) {
  const auto pairs = [](const std::string& made) {
    return axes_of(
        "in x: f32[n, 8]\nconst half: f32[] = 0.5\nconst i: i64[1] = [0]\nconst j: i64[1] = [1]\n"
        "shape: i64[2] = Shape(x)\nn: i64[1] = Gather(shape, i)\n"
        "both: i64[2] = Concat(n, n) {axis = 0}\npairs: f32[n, n] = " +
            made + "\ns: f32[n, n] = Softmax@13(pairs) {axis = -1}\ny: f32[n, 8] = MatMul(s, x)\nout y\n",
        "n");
  };
  EXPECT_EQ(pairs("Expand(half, both)"), "0 > 0");
  EXPECT_EQ(pairs("ConstantOfShape(both)"), "0 > 0");
}

// As CLIP's text model takes the state of its last token.
TEST(Padding, OneRowMayBeLookedFor) {
  const auto picked = [](const std::string& found) {
    return axes_of(
        "in x: f32[n, 8]\nin ids: i64[1, n]\nconst row: i64[1, 1] = [0]\nconst last: i64[1] = [1]\nconst first: i64[1] "
        "= [0]\n"
        "at: i64[1] = " +
            found +
            "\nto: i64[1, 1] = Unsqueeze(at, last)\n"
            "tuples: i64[1, 2] = Concat(row, to) {axis = -1}\nz: f32[1, n, 8] = Unsqueeze(x, first)\n"
            "y: f32[1, 8] = GatherND(z, tuples)\nout y\n",
        "n");
  };
  EXPECT_EQ(picked("ArgMax(ids) {axis = -1, keepdims = 0}"), "0 1 > -1");
  EXPECT_EQ(picked("ReduceMax(ids, last) {keepdims = 0}"), "0 1 > -1");
  const auto gathered = [](const std::string& found) {
    return axes_of("in x: f32[n, 8]\nat: i64[8] = " + found + "\ny: f32[8, 8] = Gather(x, at)\nout y\n", "n");
  };
  EXPECT_EQ(gathered("ArgMin(x) {axis = 0, keepdims = 0}"), "0 > -1");
  EXPECT_EQ(gathered("ArgMin(x) {axis = 0, keepdims = 0, select_last_index = 1}"),
            "ArgMin node '' takes the last along it");
}

TEST(Padding, IndicesPickOfATable) {
  const auto axes = [](const std::string& table, const std::string& places, int axis) {
    return axes_of("in t: f32[" + table + "]\nin i: i64[" + places +
                   "]\ny: f32 = GatherElements(t, i) {axis = " + std::to_string(axis) + "}\nout y\n");
  };
  EXPECT_EQ(axes("1, 64", "1, b", 1), "-1 1 > 1");
  EXPECT_EQ(axes("b, 64", "1, 7", 1), "0 -1 > -1");
  EXPECT_EQ(axes("b, 64", "b, 7", 1), "0 0 > 0");
  EXPECT_EQ(axes("64, 7", "b, 7", 1), "GatherElements node '' has an input 0 that need not be as long");
  EXPECT_EQ(axes("b, 64", "1, 7", 0), "0 -1 > -1");
  EXPECT_EQ(axes("b, 64", "3, 7", 1), "GatherElements node '' has an input 1 that need not be as long");
}

// As torch's exporter reshapes keys before it transposes them.
TEST(Padding, WhatIsLeftOfAShapeIsKnown) {
  const auto reshaped = [](const std::string& dim, const std::string& second) {
    return axes_of(
        "in x: f32[b, 4, n, 16]\nconst open: i64[1] = [-1]\nconst place: i64[1] = [2]\n"
        "const last: i64[1] = [3]\nsize: i64[4] = Shape(x)\nn: i64[1] = Gather(size, place)\n"
        "width: i64[1] = Gather(size, last)\nto: i64[3] = Concat(open, " +
            second +
            ") {axis = 0}\n"
            "t: f32[?, ?, ?] = Reshape(x, to)\ny: f32 = Transpose(t) {perm = [0, 2, 1]}\nout y\n",
        dim);
  };
  EXPECT_EQ(reshaped("n", "n, width"), "2 > 2");
  EXPECT_EQ(reshaped("n", "width, n"), "Reshape node '' may not leave its rows one after another");
  EXPECT_EQ(reshaped("b", "n, width"), "0 > 0");
  const std::string back =
      "in x: f32[b, 4, n, 16]\nconst i: i64[2] = [0, 1]\nconst j: i64[2] = [2, 3]\nconst open: i64[1] = [-1]\n"
      "size: i64[4] = Shape(x)\nouter: i64[2] = Gather(size, i)\ninner: i64[2] = Gather(size, j)\n"
      "to: i64[3] = Concat(open, inner) {axis = 0}\nflat: f32[?, ?, ?] = Reshape(x, to)\n"
      "all: i64[4] = Concat(outer, inner) {axis = 0}\ny: f32 = Reshape(flat, all)\nout y\n";
  EXPECT_EQ(axes_of(back, "n"), "2 > 2");
  EXPECT_EQ(axes_of(back, "b"), "0 > 0");
}

TEST(Padding, RowsMayBeFlattened) {
  const auto flat = [](const std::string& from, int axis, const std::string& dim = "b") {
    return axes_of("in x: f32[" + from + "]\ny: f32 = Flatten(x) {axis = " + std::to_string(axis) + "}\nout y\n", dim);
  };
  EXPECT_EQ(flat("b, 4, n", 1), "0 > 0");
  EXPECT_EQ(flat("b, 4, n", 2), "0 > 0");
  EXPECT_EQ(flat("b, 4, n", 0), "0 > 1");
  EXPECT_EQ(flat("4, b, n", 1), "1 > 1");
  EXPECT_EQ(flat("4, b, n", 2), "the output 'y' has 'b' inside of an axis");
}

TEST(Padding, ShapesMayBeComputed) {
  const std::string start = R"(in x: f32[b, n, 64]
const zero: i64[1] = [0]
const one: i64[1] = [1]
const size: i64[2] = [4, 16]
s: i64[3] = Shape(x)
first: i64[1] = Gather(s, zero)
second: i64[1] = Gather(s, one)
)";
  EXPECT_EQ(axes_of(start + "t: i64[4] = Concat(first, second, size) {axis = 0}\ny: f32 = Reshape(x, t)\nout y\n"),
            "0 > 0");
  EXPECT_EQ(axes_of(start + "t: i64[4] = Concat(second, first, size) {axis = 0}\ny: f32 = Reshape(x, t)\nout y\n"),
            "Reshape node '' may not leave its rows one after another");
  EXPECT_EQ(axes_of(start + "t: i64[2] = Concat(first, second) {axis = 0}\nconst c: f32[1, 1] = [3.0]\n"
                            "y: f32 = Expand(c, t)\nout y\n"),
            "0 > 0");
  EXPECT_EQ(axes_of(start + "y: f32 = ConstantOfShape(s)\nout y\n"), "0 > 0");
  EXPECT_EQ(axes_of(start + "out second\n"), "0 > -1");
  EXPECT_EQ(axes_of(start + "out first\n"), "the output 'first' depends on how long 'b' is");
  EXPECT_EQ(axes_of(start + "f: f32[1] = Cast(first) {to = 1}\ny: f32[b, n, 64] = Div(x, f)\nout y\n"),
            "Div node '' computes with its length");
  EXPECT_EQ(axes_of(start + "f: f32[1] = Cast(second) {to = 1}\ny: f32[b, n, 64] = Div(x, f)\nout y\n"), "0 > 0");
}

TEST(Padding, RowsMoveWithTheirAxis) {
  EXPECT_EQ(axes_of_step("y: f32[n, b, 4] = Transpose(x) {perm = [2, 0, 1]}"), "0 > 1");
  EXPECT_EQ(axes_of_step("y: f32[1, b, 4, n] = Unsqueeze(x, a)", "const a: i64[1] = [0]\n"), "0 > 1");
  EXPECT_EQ(axes_of("in x: f32[1, b]\nconst a: i64[1] = [0]\ny: f32[b] = Squeeze(x, a)\nout y\n"), "1 > 0");
  EXPECT_EQ(axes_of("in x: f32[1, b]\ny: f32 = Squeeze(x)\nout y\n"), "Squeeze node '' may drop it");
  EXPECT_EQ(axes_of_step("y: f32 = Concat(x, x) {axis = 1}"), "0 > 0");
  EXPECT_EQ(axes_of_step("y: f32 = Concat(x, x) {axis = 0}"), "Concat node '' puts something behind its rows");
  EXPECT_EQ(axes_of_step("y: f32, z: f32 = Split(x, _) {axis = 1, num_outputs = 2}\nout z"), "0 > 0 0");
  EXPECT_EQ(axes_of("in i: i64[b, 5]\nconst t: f32[9, 3]\ny: f32 = Gather(t, i)\nout y\n"), "0 > 0");
  EXPECT_EQ(axes_of_step("y: f32 = Gather(x, i) {axis = 0}", "const i: i64[1] = [0]\n"), "0 > -1");
  EXPECT_EQ(axes_of_step("y: f32 = Gather(x, i) {axis = 0}", "const i: i64[1] = [-1]\n"), "0 > -1");
  EXPECT_EQ(axes_of_step("y: f32 = Gather(x, i) {axis = 1}", "const i: i64[] = 0\n"), "0 > 0");
  const std::string from = "const f: i64[1] = [0]\nconst l: i64[1] = [3]\n";
  EXPECT_EQ(axes_of_step("y: f32 = Slice(x, f, l, a)", from + "const a: i64[1] = [1]\n"), "0 > 0");
  EXPECT_EQ(axes_of_step("y: f32 = Slice(x, f, l, a)", from + "const a: i64[1] = [0]\n"),
            "Slice node '' may leave out some of its rows");
  EXPECT_EQ(axes_of_step("y: f32 = Slice(x, f, l)", from), "Slice node '' may leave out some of its rows");
}

TEST(Padding, SequencesOfABatch) {
  const std::string start = "in q: f32[b, n, 64]\nin m: i32[b, n]\n";
  EXPECT_EQ(axes_of(start + "y: f32 = com.microsoft.MultiHeadAttention(q, q, q, _, m) {num_heads = 4}\nout y\n"),
            "0 0 > 0");
  EXPECT_EQ(axes_of(start + "y: f32 = com.microsoft.MultiHeadAttention(q, q, q, _, m) {num_heads = 4}\nout y\n", "n"),
            "1 1 > 1");
  EXPECT_EQ(axes_of("in x: f32[n, b, 4]\nconst w: f32[1, 12, 4]\nconst r: f32[1, 12, 4]\n"
                    "y: f32, h: f32 = GRU(x, w, r) {hidden_size = 4}\nout y\nout h\n"),
            "1 > 2 1");
}

}  // namespace
}  // namespace encore::fuse::tests
