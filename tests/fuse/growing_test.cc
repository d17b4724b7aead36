#include "fuse/growing.h"

#include <gtest/gtest.h>

#include "fuse/plan_text.h"

namespace encore::fuse::tests {
namespace {

// "total: mask[1] of past[2] 64 beyond ids[1] 1": a dimension, what has it, what there is room for, and what is new.
std::string growing(const std::string& text) {
  const Plan plan = plan_from(text);
  const auto list = [&](const std::vector<ops::InputAxis>& axes) {
    std::string said;
    for (const auto& [input, axis] : axes)
      said += " " + plan.values[size_t(plan.inputs[size_t(input)])].name + "[" + std::to_string(axis) + "]";
    return said;
  };
  std::string said;
  for (const ops::GrowingDim& dim : growing_dims(plan)) {
    said += (said.empty() ? "" : "\n") + dim.name + ":" + list(dim.masks);
    if (dim.room != std::numeric_limits<int64_t>::max() || !dim.rooms.empty()) said += " of" + list(dim.rooms);
    if (dim.room != std::numeric_limits<int64_t>::max()) said += " " + std::to_string(dim.room);
    if (dim.fresh || !dim.news.empty()) said += " beyond" + list(dim.news);
    if (dim.fresh) said += " " + std::to_string(dim.fresh);
  }
  return said;
}

// The lengths of a mask, made in other ways than the builder's.
std::string lengths(const std::string& steps, const std::string& mask = "i64[b, total]") {
  return growing("in mask: " + mask + "\nconst one: i64[1] = [1]\n" + steps + "out y\n");
}

// A model of onnxruntime-genai's builder, in short.
struct Builder {
  std::string mask = "i64[batch, total]", query = "f16[batch, new, 64]", past = "f16[batch, 2, past, 8]",
              table = "const cos: f16[64, 4]\nconst sin: f16[64, 4]\n";
  std::string length = "s: i64[2] = Shape(mask)\nl: i64 = Gather(s, at) {axis = 0}\ntotal: i32 = Cast(l) {to = 6}\n";
  std::string inputs = "q, _, _, k, v, last, total, cos, sin", more = "do_rotary = 1", outputs = "", rest = "";
  std::string text() const {
    return "in q: " + query + "\nin mask: " + mask + "\nin k: " + past + "\nin v: " + past +
           "\nconst one: i64[1] = [1]\nconst at: i64[] = 1\n" + table +
           "sum: i64[batch] = ReduceSum(mask, one) {keepdims = 0}\nless: i64[batch] = Sub(sum, one)\n"
           "last: i32[batch] = Cast(less) {to = 6}\n" +
           length + "y: f16 = com.microsoft.GroupQueryAttention(" + inputs + ") {kv_num_heads = 2, num_heads = 4, " +
           more + "}\n" + rest + "out y\n" + outputs;
  }
  std::string operator()() const { return growing(text()); }
};

TEST(Growing, AMaskThatIsSummedUp) {
  EXPECT_EQ(lengths("y: i64 = ReduceSum(mask, one)\n"), "total: mask[1]");
  EXPECT_EQ(lengths("m: i32 = Cast(mask) {to = 6}\ny: i32 = ReduceSum(m, one)\n"), "total: mask[1]");
  EXPECT_EQ(lengths("m: i32 = Cast(mask) {to = 6}\ny: i32 = ReduceSum(m, one)\n", "bool[b, total]"), "total: mask[1]");
  EXPECT_EQ(lengths("m: i32 = Cast(mask) {to = 6}\ny: i32 = ReduceSum(m, one)\n", "f32[b, total]"), "total: mask[1]");
  EXPECT_EQ(lengths("y: i32 = ReduceSum@11(mask) {axes = [-1]}\n", "i32[b, total]"), "total: mask[1]");
  EXPECT_EQ(lengths("y: i64 = ReduceSum(mask, one)\n", "i64[b, ?]"), "mask[1]: mask[1]");
  EXPECT_EQ(lengths("y: i64 = ReduceSum(mask, one)\n", "i64[b, 64]"), "");
}

TEST(Growing, NotWhereItMatters) {
  // Floats round otherwise in another order; a mean is of as many as there are.
  EXPECT_EQ(lengths("y: f32 = ReduceSum(mask, one)\n", "f32[b, total]"), "");
  EXPECT_EQ(lengths("y: i64 = ReduceMean(mask, one)\n"), "");
  EXPECT_EQ(lengths("y: i64 = ReduceMin(mask, one)\n"), "");
  EXPECT_EQ(lengths("y: i64 = ReduceSum(mask)\n"), "");  // of all, for all that is asked
  EXPECT_EQ(lengths("const a: i64[1] = [0]\ny: i64 = ReduceSum(mask, a)\n"), "b: mask[0]");
  EXPECT_EQ(lengths("y: i32 = Cast(mask) {to = 6}\n"), "");
  EXPECT_EQ(lengths("y: i64[2] = Shape(mask)\n"), "");
  EXPECT_EQ(lengths("y: i64 = ReduceSum(mask, one)\nz: i64 = Sub(mask, one)\nout z\n"), "");
  EXPECT_EQ(lengths("y: i64 = ReduceSum(mask, one)\nin x: f32[b, total]\nz: f32 = Relu(x)\nout z\n"), "");
  EXPECT_EQ(lengths("y: i64 = ReduceSum(mask, one)\n", "i64[total, total]"), "");
}

TEST(Growing, OtherDimensionsAreOthersBusiness) {
  EXPECT_EQ(lengths("y: i64 = ReduceSum(mask, one)\ns: i64[2] = Shape(mask)\nconst z: i64[] = 0\n"
                    "n: i64 = Gather(s, z) {axis = 0}\nout n\n"),
            "total: mask[1]");
  EXPECT_EQ(lengths("y: i64 = ReduceSum(mask, one)\nn: i64[1] = Shape(mask) {end = 1}\nout n\n"), "total: mask[1]");
}

TEST(Growing, ABoundOfAttentionOverACache) {
  EXPECT_EQ(Builder()(), "total: mask[1] of k[2] 64 beyond q[1]");
  EXPECT_EQ(Builder{.mask = "i32[batch, total]"}(), "total: mask[1] of k[2] 64 beyond q[1]");
  EXPECT_EQ(Builder{.query = "f16[batch, 1, 64]"}(), "total: mask[1] of k[2] 64 beyond 1");
  EXPECT_EQ(Builder{.past = "f16[batch, 2, 48, 8]"}(), "total: mask[1] of 48 beyond q[1]");
  EXPECT_EQ(Builder{.table = "in cos: f16[n, 4]\nin sin: f16[n, 4]\n"}(), "total: mask[1] of k[2] cos[0] beyond q[1]");
  EXPECT_EQ((Builder{.inputs = "q, _, _, k, v, last, total", .more = "do_rotary = 0"}()),
            "total: mask[1] of k[2] beyond q[1]");
  EXPECT_EQ((Builder{.table = Builder().table + "in ids: i64[batch, new]\n",
                     .inputs = "q, _, _, k, v, last, total, cos, sin, ids"}()),
            "total: mask[1] of k[2] beyond q[1]");
  EXPECT_EQ(Builder{.more = "do_rotary = 1, local_window_size = 16, sliding_window_cache = 1"}(),
            "total: mask[1] of 64 beyond q[1]");
  EXPECT_EQ(Builder{.length = "l: i64[1] = Shape(mask) {start = 1}\ntotal: i32[1] = Cast(l) {to = 6}\n"}(),
            "total: mask[1] of k[2] 64 beyond q[1]");
}

TEST(Growing, NotWhereTheLengthIsMore) {
  EXPECT_EQ((Builder{.inputs = "q, _, _, _, _, last, total, cos, sin"}()), "");  // of the present
  EXPECT_EQ((Builder{.table = Builder().table + "in bias: f16[1, 1, new, total]\n",
                     .inputs = "q, _, _, k, v, last, total, cos, sin, _, bias"}()),
            "");
  EXPECT_EQ((Builder{.inputs = "q, _, _, k, v, total, total, cos, sin"}()), "");
  EXPECT_EQ(Builder{.length = Builder().length + "total2: i32 = Add(total, total)\nout total2\n"}(), "");
  EXPECT_EQ(Builder{.length = "s: i64[2] = Shape(mask)\nl: i64 = Gather(s, at) {axis = 0}\nt: i32 = Cast(l) {to = 6}\n"
                              "const two: i32[] = 2\ntotal: i32 = Mul(t, two)\n"}(),
            "");
  EXPECT_EQ(Builder{.query = "f16[batch, ?, 64]"}(), "total: mask[1] of k[2] 64 beyond q[1]");
  EXPECT_EQ(Builder{.query = "f16"}(), "");
  EXPECT_EQ(Builder{.query = "f16[batch, total, 64]"}(), "");
}

TEST(Growing, LayersWithACacheInCommon) {
  EXPECT_EQ(
      (Builder{.outputs = "out y2\n",
               .rest = "y1: f16, k1: f16, v1: f16 = com.microsoft.GroupQueryAttention(q, _, _, k, v, last, total) "
                       "{kv_num_heads = 2, num_heads = 4}\n"
                       "y2: f16 = com.microsoft.GroupQueryAttention(q, _, _, k1, v1, last, total) "
                       "{kv_num_heads = 2, num_heads = 4}\n"}()),
      "total: mask[1] of k[2] 64 beyond q[1]");
}

TEST(Growing, ABoundOfBlockSparseAttention) {
  const auto sparse = [](const std::string& layout) {
    return growing(
        "in q: f16[batch, new, 64]\nin mask: i64[batch, total]\nin k: f16[batch, 2, past, 8]\n"
        "in v: f16[batch, 2, past, 8]\n" +
        layout +
        "const columns: i32[1, 9]\nconst one: i64[1] = [1]\nconst at: i64[] = 1\n"
        "sum: i64[batch] = ReduceSum(mask, one) {keepdims = 0}\nlast: i32[batch] = Cast(sum) {to = 6}\n"
        "s: i64[2] = Shape(mask)\nl: i64 = Gather(s, at) {axis = 0}\ntotal: i32 = Cast(l) {to = 6}\n"
        "y: f16 = com.microsoft.SparseAttention(q, _, _, k, v, begins, columns, total, last) "
        "{kv_num_heads = 2, num_heads = 4, sparse_block_size = 16}\nout y\n");
  };
  EXPECT_EQ(sparse("const begins: i32[1, 5]\n"), "total: mask[1] of k[2] 64 beyond q[1]");
  EXPECT_EQ(sparse("in begins: i32[1, n]\n"), "");
}

}  // namespace
}  // namespace encore::fuse::tests
