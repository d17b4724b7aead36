// Dimensions that are padded, in bodies.
#include <gtest/gtest.h>

#include "padded.h"

namespace encore::fuse::tests {
namespace {

// y of x [b, n], by c.
std::string axes_of_if(const std::string& then, const std::string& otherwise, const std::string& more = "") {
  const auto body = [](const std::string& steps) {
    return "  in outer x: f32[b, n]\n  in outer z: f32[n]\n  " + steps + "\n  out p\n";
  };
  return axes_of("in x: f32[b, n]\nin z: f32[n]\nin c: bool[]\n" + more + "y: f32 = If(c, x, z) then_branch {\n" +
                 body(then) + "} else_branch {\n" + body(otherwise) + "}  # \"choose\"\nw: f32 = Abs(y)\nout w\n");
}

TEST(PaddedBodies, BranchesHaveItWhereTheOtherOneHasIt) {
  EXPECT_EQ(axes_of_if("p: f32[b, n] = Neg(x)", "p: f32[b, n] = Add(x, z)"), "0 -1 -1 > 0");
  EXPECT_EQ(axes_of_if("p: f32 = Neg(z)", "p: f32 = Abs(z)"), "0 -1 -1 > -1");
  EXPECT_EQ(axes_of_if("p: f32[n, b] = Transpose(x) {perm = [1, 0]}", "p: f32[n, b] = Transpose(x)"), "0 -1 -1 > 1");
  EXPECT_EQ(axes_of_if("p: f32 = Transpose(x) {perm = [1, 0]}", "p: f32[b, n] = Add(x, z)"),
            "If node 'choose' has it otherwise in output 0 of one branch than of the other");
  EXPECT_EQ(axes_of_if("p: f32[b, n] = Neg(x)", "p: f32 = Neg(z)"),
            "If node 'choose' has it otherwise in output 0 of one branch than of the other");
}

TEST(PaddedBodies, WhatGoesAlongItInABranchIsNamed) {
  EXPECT_EQ(axes_of_if("p: f32[b, n] = Neg(x)", "p: f32 = Odd(x)  # \"odd\""),
            "Odd node 'odd' may bring its rows together, for all that is known of this operator");
  EXPECT_EQ(axes_of_if("p: f32[b, n] = Neg(x)", "p: f32[b, n] = Softmax@13(x) {axis = 0}  # \"over\""),
            "Softmax node 'over' brings its rows together in a body");
}

TEST(PaddedBodies, AConditionDoesNotGoByIt) {
  const std::string text =
      "in x: f32[b, n]\nconst at: i64 = 0\nconst one: i64 = 1\nconst all: i64[1] = [0]\n"
      "s: i64[2] = Shape(x)\nk: i64 = Gather(s, at)\n";
  const std::string choice = R"(y: f32 = If(c, x) then_branch {
  in outer x: f32[b, n]
  p: f32[b, n] = Neg(x)
  out p
} else_branch {
  in outer x: f32[b, n]
  p: f32[b, n] = Abs(x)
  out p
}  # "choose"
out y
)";
  EXPECT_EQ(axes_of(text + "c: bool = Equal(k, one)\n" + choice), "If node 'choose' goes by its length");
  EXPECT_EQ(axes_of(text + "r: f32[b] = ReduceMax(x, one) {keepdims = 0}\nc: bool[b] = Less(r, r)\n" + choice),
            "If node 'choose' goes by its rows");
  std::string other = text;
  other.replace(other.find("at: i64 = 0"), 11, "at: i64 = 1");
  EXPECT_EQ(axes_of(other + "c: bool = Equal(k, one)\n" + choice), "0 > 0");
}

// The body has a of x [b, n], and makes p and e of it.
std::string axes_of_loop(const std::string& steps, const std::string& condition = "host d: bool = Identity(c)") {
  return axes_of("in x: f32[b, n]\nin z: f32[n]\nconst times: i64 = 5\n" +
                 ("last: f32, all: f32 = Loop(times, _, x, z) body {\n  in a: f32[b, n]\n  in outer z: f32[n]\n"
                  "  in host i: i64\n  in host c: bool\n  " +
                  condition + "\n  " + steps + "\n  out d\n  out p\n  out e\n}  # \"repeat\"\nout last\nout all\n"));
}

TEST(PaddedBodies, LoopsHandItOnAsItWas) {
  EXPECT_EQ(axes_of_loop("p: f32[b, n] = Add(a, z)\n  e: f32[b, n] = Neg(p)"), "0 -1 > 0 1");
  EXPECT_EQ(axes_of_loop("p: f32[b, n] = Add(a, z)\n  e: f32 = Transpose(p)"), "0 -1 > 0 2");
  EXPECT_EQ(axes_of_loop("p: f32[b, n] = Add(a, z)\n  e: f32[n] = Neg(z)"), "0 -1 > 0 -1");
  EXPECT_EQ(axes_of_loop("p: f32 = Transpose(a)\n  e: f32[b, n] = Neg(a)"),
            "Loop node 'repeat' hands on its value 0 otherwise than it begins");
  EXPECT_EQ(axes_of_loop("p: f32[n] = Neg(z)\n  e: f32[b, n] = Neg(a)"),
            "Loop node 'repeat' hands on its value 0 otherwise than it begins");
}

// Those of rows that are added are more than there were, in the first iteration.
TEST(PaddedBodies, NumbersOfRowsDoNotGoThroughIterations) {
  EXPECT_EQ(axes_of(R"(
in x: f32[b, 4]
const at: i64 = 0
const one: i64 = 1
const times: i64 = 5
s: i64[2] = Shape(x)
k: i64 = Gather(s, at)
numbers: i64[b] = Range(at, k, one)
last: i64[b], all: f32 = Loop(times, _, numbers, x) body {
  in a: i64[b]
  in outer x: f32[b, 4]
  in host i: i64
  in host c: bool
  const table: f32[8] = [1, 2, 3, 4, 5, 6, 7, 8]
  host d: bool = Identity(c)
  p: i64[b] = Add(a, a)
  e: f32 = GatherElements(table, a)
  out d
  out p
  out e
}  # "repeat"
out last
out all
)"),
            "Loop node 'repeat' hands on the numbers of its rows");
}

// A name in a body is its own.
TEST(PaddedBodies, NamesInBodiesSayNothing) {
  EXPECT_EQ(axes_of(R"(
in x: f32[b, 4]
in z: f32[m]
in c: bool[]
y: f32 = If(c, x, z) then_branch {
  in outer x: f32[n, 4]
  in outer z: f32[b]
  p: f32[b] = Neg(z)
  q: f32 = Neg(x)
  out p
  out q
} else_branch {
  in outer x: f32[n, 4]
  in outer z: f32[b]
  p: f32[b] = Abs(z)
  q: f32 = Abs(x)
  out p
  out q
}
out y
)"),
            "0 -1 -1 > -1");
}

TEST(PaddedBodies, LoopsDoNotEndByIt) {
  EXPECT_EQ(
      axes_of_loop("p: f32[b, n] = Add(a, z)\n  e: f32[b, n] = Neg(p)",
                   "const at: i64 = 0\n  s: i64[2] = Shape(a)\n  k: i64 = Gather(s, at)\n  host d: bool = Less(i, k)"),
      "Loop node 'repeat' may end by its length, or by its rows");
  EXPECT_EQ(axes_of_loop("p: f32[b, n] = Add(a, z)\n  e: f32[b, n] = Neg(p)",
                         "const axes: i64[2] = [0, 1]\n  r: f32[] = ReduceMax(a, axes) {keepdims = 0}  # \"most\"\n  "
                         "d: bool[] = Less(r, r)"),
            "ReduceMax node 'most' brings its rows together in a body");
}

// The host hands on a counter, and one more that goes by the rows.
TEST(PaddedBodies, WhatGoesOnOnTheHostIsNotOfIt) {
  const auto axes_of_counting = [](const std::string& begin, const std::string& more) {
    return axes_of("in x: f32[b, n]\nin z: f32[n]\nconst zero: i64[1] = [0]\nconst three: i64[1] = [3]\n" +
                   ("shape: i64[2] = Shape(x)\nhost rows: i64[1] = Gather(shape, zero)\n"
                    "at: i64[1], last: f32, all: f32 = Loop(_, _, " +
                    begin + ", x, z, three) body {\n  in a: f32[b, n]\n  in outer z: f32[n]\n  in host i: i64\n" +
                    "  in host c: bool\n  in host carried k: i64[1]\n  in host three: i64[1]\n" +
                    "  host l: i64[1] = " + more + "\n  host d: bool[1] = Less(l, three)\n" +
                    "  p: f32[b, n] = Add(a, z)\n  e: f32[n] = Neg(z)\n  out d\n  out l\n  out p\n  out e\n" +
                    "}  # \"count\"\nout last\nout all\n"));
  };
  EXPECT_EQ(axes_of_counting("zero", "Add(k, three)"), "0 -1 > 0 -1");
  EXPECT_EQ(axes_of_counting("rows", "Add(k, three)"), "Loop node 'count' may end by its length, or by its rows");
}

TEST(PaddedBodies, ALoopByDataAndAScan) {
  EXPECT_EQ(axes_of(R"(
in x: f32[b, n]
in go: bool[]
y: f32, all: f32 = Loop(_, go, x) body {
  by data
  in i: i64
  in c: bool
  in a: f32[b, n]
  p: f32[b, n] = Neg(a)
  d: bool = Not(c)
  e: f32[b, n] = Abs(p)
  out d
  out p
  out e
}
out y
out all
)"),
            "0 -1 > 0 1");
  const std::string scan = R"(
in s: f32[b]
in x: f32[t, b]
last: f32, all: f32 = Scan(s, x) {num_scan_inputs = 1} body {
  in a: f32[b]
  in e: f32[b]
  p: f32[b] = Add(a, e)
  o: f32[b] = Neg(p)
  out p
  out o
}  # "along"
out last
out all
)";
  EXPECT_EQ(axes_of(scan), "0 1 > 0 1");
  EXPECT_EQ(axes_of(scan, "t"), "Scan node 'along' goes along it");
}

TEST(PaddedBodies, BodiesInBodies) {
  EXPECT_EQ(axes_of_loop(R"(p: f32[b, n] = If(d, a, z) then_branch {
    in outer a: f32[b, n]
    in outer z: f32[n]
    q: f32[b, n] = Add(a, z)
    out q
  } else_branch {
    in outer a: f32[b, n]
    in outer z: f32[n]
    q: f32[b, n] = Neg(a)
    out q
  }
  e: f32[b, n] = Neg(p))"),
            "0 -1 > 0 1");
}

}  // namespace
}  // namespace encore::fuse::tests
