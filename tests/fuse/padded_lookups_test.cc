// What picks rows of an axis that is padded.
#include <gtest/gtest.h>

#include "padded.h"
#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// As torch's older exporter reads mask[row, key] of positions: by row * length + key.
const std::string kFlat = R"(in mask: bool[b, n]
const zero: i64[] = 0
const one: i64[] = 1
const first: i64[1] = [0]
const second: i64[1] = [1]
const behind: i64[3] = [1, 2, 3]
const before: i64[3] = [0, 1, 2]
size: i64[2] = Shape(mask)
rows: i64[1] = Gather(size, first)
keys: i64[1] = Gather(size, second)
i: i64[?] = Range(zero, rows, one)
j: i64[?] = Range(zero, keys, one)
i4: i64[?, 1, 1, 1] = Unsqueeze(i, behind)
j4: i64[1, 1, 1, ?] = Unsqueeze(j, before)
skipped: i64[?, 1, 1, 1] = Mul(i4, keys)
at: i64[?, 1, 1, ?] = Add(j4, skipped)
flat: bool[?, 1] = Flatten(mask) {axis = 2}
y: bool[?, 1, 1, ?, 1] = Gather(flat, at)
out y
)";

std::string flat(const std::string& dim, const std::string& part = "", const std::string& by = "") {
  return axes_of(replaced(kFlat, part, by), dim);
}

TEST(PaddedLookups, IndicesMayBeOfMergedAxes) {
  EXPECT_EQ(flat("n"), "1 > 3");
  EXPECT_EQ(flat("b"), "0 > 0");
  EXPECT_EQ(masks_of(kFlat, "n"), "");
  EXPECT_EQ(masks_of(kFlat, "b"), "");
  EXPECT_EQ(flat("n", "Add(j4, skipped)", "Add(skipped, j4)"), "1 > 3");
}

TEST(PaddedLookups, FactorsOfIndicesGrowAlong) {
  const std::string refused = "Gather node '' computes with its length";
  EXPECT_EQ(flat("n", "Mul(i4, keys)", "Mul(i4, rows)"), "Gather node '' has it in both inputs");
  EXPECT_EQ(flat("n", "Range(zero, keys, one)", "Range(one, keys, one)"), refused);
  EXPECT_EQ(flat("n", "Range(zero, rows, one)", "Range(zero, keys, one)"), "Mul node '' computes with its length");
  EXPECT_EQ(
      flat("n", "y: bool[?, 1, 1, ?, 1] = Gather(flat, at)", "two: i64 = Add(at, at)\ny: bool = Gather(flat, two)"),
      refused);
  EXPECT_EQ(flat("n", "out y", "out at"), "the output 'at' depends on how long 'n' is");
  EXPECT_EQ(flat("b", "Mul(i4, keys)", "Mul(i4, rows)"), "Mul node '' computes with its length");
  EXPECT_EQ(flat("n", "Mul(i4, keys)", "Mul(i4, one)"), "Gather node '' has it in both inputs");
  // Whatever else may be there: rows that are added pick nothing then, and others what they did.
  EXPECT_NE(masks_of(replaced(kFlat, "Mul(i4, keys)", "Mul(i4, one)"), "b").find("PaddedIndices"), std::string::npos);
}

// The last token of each sequence, by how many its mask has.
std::string last_token(const std::string& picked) {
  return "in h: f32[b, n, 64]\nin mask: i64[b, n]\nconst zero: i64[] = 0\nconst one: i64[] = 1\n"
         "const second: i64[1] = [1]\nconst first: i64[1] = [0]\nconst inner: i64[1] = [-1]\nsize: i64[3] = Shape(h)\n"
         "rows: i64[1] = Gather(size, first)\nkeys: i64[1] = Gather(size, second)\ni: i64[?] = Range(zero, rows, one)\n"
         "count: i64[b] = ReduceSum(mask, second) {keepdims = 0}\nlast: i64[b] = Sub(count, one)\n" +
         picked + "out y\n";
}

TEST(PaddedLookups, RowsMayBePickedByTuples) {
  const std::string text = last_token(
      "i2: i64[?, 1] = Unsqueeze(i, inner)\nlast2: i64[b, 1] = Unsqueeze(last, inner)\n"
      "tuples: i64[b, 2] = Concat(i2, last2) {axis = -1}\ny: f32[b, 64] = GatherND(h, tuples)\n");
  EXPECT_EQ(axes_of(text, "n"), "1 1 > -1");
  EXPECT_EQ(axes_of(text, "b"), "0 0 > 0");
  EXPECT_EQ(masks_of(text, "n"),
            "in \"rows of n\": bool[n]\n"
            "in \"length of n\": i64[2]\n"
            "const \"'s padding\": i64[] = 0\n"
            "\"mask without padding\": i64[b, n] = Where(\"rows of n\", mask, \"'s padding\")\n"
            "count: i64[b] = ReduceSum(\"mask without padding\", second) {keepdims = 0}\n"
            "\"tuples with padding\": i64[b, 2] = encore.PaddedIndices(h, tuples, \"length of n\") "
            "{axis = 1, rows = -1, tuples = 1}\n"
            "y: f32[b, 64] = GatherND(h, \"tuples with padding\")\n");
  EXPECT_EQ(masks_of(text, "b"), "");
}

TEST(PaddedLookups, RowsMayBePickedOfMergedAxes) {
  const std::string text = last_token(
      "skipped: i64[b] = Mul(i, keys)\nat: i64[b] = Add(last, skipped)\nflat: f32[?, 64] = Flatten(h) {axis = 2}\n"
      "y: f32[b, 64] = Gather(flat, at)\n");
  EXPECT_EQ(axes_of(text, "n"), "1 1 > -1");
  EXPECT_EQ(axes_of(text, "b"), "0 0 > 0");
  const auto has = [&](const std::string& dim, const std::string& line) {
    return masks_of(text, dim).find(line + "\ny: f32[b, 64] = Gather(flat, \"at with padding\")\n") !=
           std::string::npos;
  };
  EXPECT_TRUE(has("n",
                  "\"at with padding\": i64[b] = encore.PaddedIndices(flat, at, \"length of n\", last) "
                  "{axis = 0, rows = -1, tuples = 0}"));
  EXPECT_TRUE(has("b",
                  "\"at with padding\": i64[b] = encore.PaddedIndices(flat, at, \"length of b\") "
                  "{axis = 0, rows = 0, tuples = 0}"));
  const std::string refused = "Gather node '' computes with its length";
  EXPECT_EQ(axes_of(replaced(text, "Sub(count, one)", "Sub(count, keys)"), "n"), refused);
  EXPECT_EQ(axes_of(replaced(text, "Add(last, skipped)", "Add(skipped, skipped)"), "n"), refused);
  EXPECT_EQ(axes_of(replaced(text, "Flatten(h) {axis = 2}", "Flatten(h) {axis = 1}"), "n"),
            "Gather node '' computes with its length");
}

TEST(PaddedLookups, RowsMayBeCountedFromTheEnd) {
  const auto of = [](const std::string& x, const std::string& i, const std::string& picks) {
    return masks_of("in x: f32[" + x + "]\n" + i + "\ny: f32 = " + picks + "\nout y\n", "n");
  };
  EXPECT_EQ(
      of("b, n, 4", "const i: i64[] = -1", "Gather(x, i) {axis = 1}"),
      "in \"length of n\": i64[2]\n"
      "\"i with padding\": i64[] = encore.PaddedIndices(x, i, \"length of n\") {axis = 1, rows = -1, tuples = 0}\n"
      "y: f32 = Gather(x, \"i with padding\") {axis = 1}\n");
  EXPECT_EQ(of("b, n, 4", "const i: i64[1] = [0]", "Gather(x, i) {axis = 1}"), "");
  EXPECT_NE(of("b, n, 4", "in i: i64[b, 1, 4]", "GatherElements(x, i) {axis = 1}").find("PaddedIndices"),
            std::string::npos);
  EXPECT_NE(of("n, 4", "in i: i32[n]", "Gather(x, i)").find("{axis = 0, rows = 0, tuples = 0}"), std::string::npos);
  EXPECT_EQ(axes_of("in x: f32[7, n, 4]\nconst s: i64[2] = [-1, 4]\nconst i: i64[1] = [3]\nm: f32 = Reshape(x, s)\n"
                    "y: f32 = Gather(m, i)\nout y\n",
                    "n"),
            "Gather node '' picks rows of it");
}

TEST(PaddedLookups, EachRowMayBeWrittenByItsOwnTuples) {
  const std::string text = R"(in x: f32[b, n]
in z: f32[b, n]
const zero: i64[] = 0
const one: i64[] = 1
const second: i64[1] = [1]
const outer: i64[2] = [0, 2]
in rows: i64[b, n, 1]
both: i64[2] = Shape(x)
keys: i64[1] = Gather(both, second)
j: i64[?] = Range(zero, keys, one)
j3: i64[1, ?, 1] = Unsqueeze(j, outer)
size: i64[3] = Shape(rows)
of_keys: i64[b, n, 1] = Expand(j3, size)
tuples: i64[b, n, 2] = Concat(rows, of_keys) {axis = -1}
y: f32[b, n] = ScatterND(x, tuples, z)
out y
)";
  EXPECT_EQ(axes_of(text, "n"), "1 1 1 > 1");
  const std::string refused = "ScatterND node '' may write to other rows of it";
  EXPECT_EQ(axes_of(text, "b"), refused);
  EXPECT_EQ(axes_of(replaced(text, "Concat(rows, of_keys)", "Concat(of_keys, rows)"), "n"), refused);
}

}  // namespace
}  // namespace encore::fuse::tests
