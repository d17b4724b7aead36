#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// What the pass makes of the type of `y`.
std::string dims_of_y(const std::string& text) {
  const std::string made = after("dims", text);
  const size_t at = made.find("\ny");
  return made.substr(at + 1, made.find(" =", at) - at - 1);
}

TEST(Dims, UnknownOnesAreTheValuesOwn) {
  EXPECT_EQ(after("dims", "in x: f32[?, 4, ?]\ny: f32[?, ?] = Odd(x)\nout y"),
            "in x: f32[?1, 4, ?2]\ny: f32[?3, ?4] = Odd(x)\nout y\n");
}

TEST(Dims, OfConstantsAreWhatTheyHave) {
  EXPECT_EQ(after("dims", "in x: f32[n]\nconst c: f32 = 15\ny: f32[n] = Add(x, c)\nout y"),
            "in x: f32[n]\nconst c: f32[] = 15.0\ny: f32[n] = Add(x, c)\nout y\n");
}

TEST(Dims, OfQuantizedValuesAreFollowed) {
  const std::string made = after("dims", R"(in x: f32[n, 4]
const w: i8[4, 8]
const of_w: f32 = 0.5
q: u8, s: f32, z: u8 = DynamicQuantizeLinear(x)
y: i32 = MatMulInteger(q, w, z)
of_y: f32 = Mul(s, of_w)
b: u8 = QuantizeLinear(x, s, z)
d: f32 = DequantizeLinear(b, s, z)
out y
out of_y
out d
)");
  for (const char* wanted :
       {"q: u8[n, 4], s: f32[], z: u8[] =", "y: i32[n, 8] =", "of_y: f32[] =", "b: u8[n, 4] =", "d: f32[n, 4] ="})
    EXPECT_NE(made.find(wanted), made.npos) << wanted << "\n" << made;
}

TEST(Dims, AreFollowed) {
  EXPECT_EQ(dims_of_y("in x: f32[?, n]\ny: f32 = Relu(x)\nout y"), "y: f32[?1, n]");
  EXPECT_EQ(dims_of_y("in x: f32[n, 4]\nin z: f32[1, 4]\ny: f32 = Add(z, x)\nout y"), "y: f32[n, 4]");
  EXPECT_EQ(dims_of_y("in x: f32[n, 4]\nin z: f32[4, m]\ny: f32 = MatMul(x, z)\nout y"), "y: f32[n, m]");
  EXPECT_EQ(dims_of_y("in x: f32[b, n, 4]\nconst z: f32[4, 8]\ny: f32 = MatMul(x, z)\nout y"), "y: f32[b, n, 8]");
  EXPECT_EQ(dims_of_y("in x: f32[4, n]\nin z: f32[m, 4]\ny: f32 = Gemm(x, z) {transA = 1, transB = 1}\nout y"),
            "y: f32[n, m]");
  EXPECT_EQ(dims_of_y("in x: f32[n, 4]\nin z: f32[4, 8]\ny: f32[?, 8] = Gemm(x, z)\nout y"), "y: f32[n, 8]");
  EXPECT_EQ(dims_of_y("in x: f32[b, n]\ny: f32[?, ?] = Transpose(x) {perm = [1, 0]}\nout y"), "y: f32[n, b]");
  EXPECT_EQ(dims_of_y("in x: f32[b, 8]\nconst s: i64[3] = [0, 2, -1]\ny: f32 = Reshape(x, s)\nout y"),
            "y: f32[b, 2, 4]");
  EXPECT_EQ(dims_of_y("in x: f32[b, n]\nin z: f32[n, 4]\ns: i64[2] = Shape(z)\ny: f32 = Reshape(x, s)\nout y"),
            "y: f32[n, 4]");
  EXPECT_EQ(dims_of_y("in x: f32[b, n]\nconst a: i64[1] = [1]\ny: f32 = Unsqueeze(x, a)\nout y"), "y: f32[b, 1, n]");
  EXPECT_EQ(dims_of_y("in x: f32[b, n]\nconst i: i64[2] = [0, 1]\ny: f32 = Gather(x, i) {axis = 1}\nout y"),
            "y: f32[b, 2]");
  EXPECT_EQ(dims_of_y("in x: f32[b, n, 4]\nin f: i64[1]\nconst a: i64[1] = [1]\ny: f32 = Slice(x, f, f, a)\nout y"),
            "y: f32[b, ?1, 4]");
  EXPECT_EQ(dims_of_y("in x: f32[b, n]\nin z: f32[b, 3]\ny: f32 = Concat(z, x) {axis = 1}\nout y"), "y: f32[b, ?1]");
  EXPECT_EQ(dims_of_y("in x: f32[b, 2]\nin z: f32[b, 3]\ny: f32 = Concat(z, x) {axis = -1}\nout y"), "y: f32[b, 5]");
  EXPECT_EQ(dims_of_y("in x: f32[b, n]\nin i: i64[1, n]\ny: f32 = GatherElements(x, i) {axis = 1}\nout y"),
            "y: f32[1, n]");
  EXPECT_EQ(dims_of_y("in x: f32[b, n]\nconst a: i64[] = 1\ny: f32 = CumSum(x, a)\nout y"), "y: f32[b, n]");
  EXPECT_EQ(dims_of_y("in x: f32[b, n]\nconst a: i64[1] = [1]\ny: f32 = ReduceSum(x, a)\nout y"), "y: f32[b, 1]");
  EXPECT_EQ(dims_of_y("in x: f32[b, n]\ny: f32 = ReduceSum(x)\nout y"), "y: f32[1, 1]");
  EXPECT_EQ(dims_of_y("in x: f32[b, n]\ny: f32 = ReduceMax@13(x) {keepdims = 0}\nout y"), "y: f32[]");
  EXPECT_EQ(dims_of_y("in x: f32[b, n]\ny: f32 = ReduceSum(x) {noop_with_empty_axes = 1}\nout y"), "y: f32[b, n]");
  EXPECT_EQ(dims_of_y("in x: f32[b, n]\ny: i64 = ArgMax(x) {axis = 0, keepdims = 0}\nout y"), "y: i64[n]");
  EXPECT_EQ(dims_of_y("in x: f32[b, 1, n]\nconst a: i64[1] = [-2]\ny: f32 = Squeeze(x, a)\nout y"), "y: f32[b, n]");
  EXPECT_EQ(dims_of_y("in x: f32[b, 1, n, 2]\ny: f32 = Flatten(x) {axis = 2}\nout y"), "y: f32[b, ?1]");
  EXPECT_EQ(dims_of_y("in x: f32[b, 8]\nconst f: i64[1] = [3]\nconst l: i64[1] = [9]\nconst a: i64[1] = [1]\n"
                      "y: f32 = Slice(x, f, l, a)\nout y"),
            "y: f32[b, 5]");
  EXPECT_EQ(dims_of_y("in x: f32[b, 8]\nconst z: i64[] = 0\nconst o: i64[] = 1\nconst f: i64[1] = [0]\ns: i64[2] = "
                      "Shape(x)\nl: i64[1] = Gather(s, f)\ny: i64 = Range(z, l, o)\nout y"),
            "y: i64[b]");
  const std::string shape =
      "in x: f32[b, n]\nconst i: i64[2] = [1, 0]\nconst h: f32[] = 0.5\nin z: f32[1, b]\n"
      "s: i64[2] = Shape(x)\nt: i64[2] = Gather(s, i)\n";
  EXPECT_EQ(dims_of_y(shape + "y: f32 = Expand(z, t)\nout y"), "y: f32[n, b]");
  EXPECT_EQ(dims_of_y(shape + "y: f32 = Expand(h, t)\nout y"), "y: f32[n, b]");
  EXPECT_EQ(dims_of_y(shape + "y: f32 = ConstantOfShape(t)\nout y"), "y: f32[n, b]");
  EXPECT_EQ(dims_of_y(shape + "y: f32 = Expand(x, t)\nout y"), "y: f32[?1, ?2]");
}

// Of a batch that is cut in patches, and put together again.
TEST(Dims, MayBeMultiples) {
  const std::string patches =
      "in x: f32[n, 4, 9, 8]\nconst four: i64[1] = [4]\nconst first: i64[1] = [0]\nconst left: i64[1] = [-1]\n"
      "const rows: i64[1] = [9]\ns: i64[4] = Shape(x)\nn: i64[1] = Gather(s, first)\nall: i64[1] = Mul(n, four)\n"
      "to: i64[3] = Concat(all, rows, left) {axis = 0}\np: f32[?, ?, ?] = Reshape(x, to)\n";
  EXPECT_EQ(dims_of_y(patches + "y: f32[?, ?, ?] = Relu(p)\nout y"), "y: f32[?1, 9, 8]");
  EXPECT_EQ(dims_of_y(patches + "back: i64[4] = Concat(n, four, rows, left) {axis = 0}\n" +
                      "y: f32[?, ?, ?, ?] = Reshape(p, back)\nout y"),
            "y: f32[n, 4, 9, 8]");
  EXPECT_EQ(dims_of_y("in x: f32[n, 6, 8]\nconst a: i64[2] = [-1, 8]\nconst b: i64[3] = [-1, 2, 8]\n"
                      "p: f32[?, ?] = Reshape(x, a)\nq: f32[?, ?, ?] = Reshape(x, b)\nr: f32[?, ?] = Reshape(q, a)\n"
                      "y: f32[?, ?] = Add(p, r)\nout y"),
            "y: f32[?1, 8]");
}

// DeBERTa repeats its positions for each sequence, whose number it divides heads by.
TEST(Dims, MayBeRepeated) {
  EXPECT_EQ(dims_of_y("in x: f32[1, n, 4]\nconst t: i64[3] = [3, 1, 2]\ny: f32 = Tile(x, t)\nout y"),
            "y: f32[3, n, 8]");
  const char* const kDivided = R"(in x: f32[n, 12]
in z: f32[2, 5]
const rows: i64[2] = [-1, 4]
const three: i64[1] = [3]
const zero: i64[1] = [0]
const one: i64[1] = [1]
r: f32 = Reshape(x, rows)
shape: i64[2] = Shape(r)
all: i64[1] = Gather(shape, zero)
sequences: i64[1] = Div(all, three)
t: i64[3] = Concat(sequences, one, one) {axis = 0}
const a: i64[1] = [0]
u: f32 = Unsqueeze(z, a)
y: f32 = Tile(u, t)
out y
)";
  EXPECT_EQ(dims_of_y(kDivided), "y: f32[n, 2, 5]");
  EXPECT_NE(dims_of_y(replaced(kDivided, "three: i64[1] = [3]", "three: i64[1] = [5]")), "y: f32[n, 2, 5]");
  EXPECT_EQ(dims_of_y("in x: f32[n]\ns: f32 = Sign(x)\nc: f32 = Ceil(s)\ny: f32 = Reciprocal(c)\nout y"), "y: f32[n]");
}

TEST(Dims, PartsHaveTheirSizes) {
  const auto parts = [](const std::string& x, const std::string& split) {
    return after("dims", "in x: f32[" + x + "]\nconst s: i64[2] = [2, 3]\na: f32, b: f32 = Split(" + split + "\nout b");
  };
  const auto has = [](const std::string& made, const char* part) { return made.find(part) != made.npos; };
  EXPECT_PRED2(has, parts("n, m", "x, s) {axis = 1}"), "a: f32[n, 2], b: f32[n, 3] =");
  EXPECT_PRED2(has, parts("n, m", "x) {axis = -1, split = [4, 1]}"), "a: f32[n, 4], b: f32[n, 1] =");
  EXPECT_PRED2(has, parts("n, 6", "x) {axis = 1}"), "a: f32[n, 3], b: f32[n, 3] =");
  EXPECT_PRED2(has, parts("n, 5", "x) {axis = 1, num_outputs = 2}"), "a: f32[n, ?1], b: f32[n, ?2] =");
}

// As exporters write what stays as it is in the target of an Expand.
TEST(Dims, ShapesMayBeChosen) {
  const auto shape = [](const std::string& minus) {
    return dims_of_y(
        "in x: f32[b, n]\nin z: f32[b, 4, n]\nconst flat: i64[1] = [-1]\nconst i: i64[1] = [1]\n"
        "const ones: i64[3] = [1, 1, 1]\nconst minus: i64[3] = [" +
        minus +
        "]\n"
        "const open: i64[1] = [-1]\nzs: i64[3] = Shape(z)\nxs: i64[2] = Shape(x)\nn: i64[1] = Gather(xs, i)\n"
        "four: i64[1] = Gather(zs, i)\nc: i64[3] = Concat(n, open, four) {axis = 0}\n"
        "l: i64[3] = Reshape(c, flat)\ne: bool[3] = Equal(l, minus)\nw: i64[3] = Where(e, ones, l)\n"
        "y: f32 = Reshape(x, w)\nout y");
  };
  EXPECT_EQ(shape("-1, -1, -1"), "y: f32[n, 1, 4]");
  EXPECT_EQ(shape("-1, -1, 4"), "y: f32[n, 1, 1]");
  EXPECT_EQ(shape("4, -1, -1"), "y: f32");
}

TEST(Dims, ANameThatIsHandedOnSaysMore) {
  EXPECT_EQ(dims_of_y("in x: f32[n]\ny: f32[unk__1] = Relu(x)\nout y"), "y: f32[n]");
  EXPECT_EQ(dims_of_y("in x: f32[?]\ny: f32[n] = Relu(x)\nout y"), "y: f32[n]");
  EXPECT_EQ(dims_of_y("in x: f32[n]\ny: f32[3] = Relu(x)\nout y"), "y: f32[3]");
}

TEST(Dims, AreNotGuessed) {
  EXPECT_EQ(dims_of_y("in x: f32[n]\nin z: f32[m]\ny: f32[?] = Add(x, z)\nout y"), "y: f32[?1]");
  EXPECT_EQ(dims_of_y("in x: f32[n]\nin z: f32[n]\ny: f32 = Add@6(x, z)\nout y"), "y: f32");
  EXPECT_EQ(dims_of_y("in x: f32[n]\ny: f32 = elsewhere.Relu(x)\nout y"), "y: f32");
  EXPECT_EQ(dims_of_y("in x: f32[b, n]\nin s: i64[2]\ny: f32 = Reshape(x, s)\nout y"), "y: f32");
}

}  // namespace
}  // namespace encore::fuse::tests
