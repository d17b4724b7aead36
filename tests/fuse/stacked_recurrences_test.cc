#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kPass = "stacked_recurrences";

constexpr const char* kTwo = R"(in x: f32[t, n, 4]
in c0: f32[1, n, 8]
const w: f32[1, 32, 4]
const r: f32[1, 32, 8]
const b: f32[1, 64]
const w2: f32[1, 32, 8]
const r2: f32[1, 32, 8]
const shape: i64[3]
y: f32[t, 1, n, 8], h: f32[1, n, 8] = LSTM(x, w, r, b) {hidden_size = 8}  # "lower"
turned: f32[t, n, 1, 8] = Transpose(y) {perm = [0, 2, 1, 3]}
flat: f32[t, n, 8] = Reshape(turned, shape)
z: f32[t, 1, n, 8], _, c: f32[1, n, 8] = LSTM(flat, w2, r2, _, _, _, c0) {hidden_size = 8}  # "upper"
out h
out z
out c
)";
constexpr const char* kUpper = "LSTM(flat, w2, r2, _, _, _, c0) {hidden_size = 8}";

bool stays(const std::string& model) { return after(kPass, model).find("encore.LSTM") == std::string::npos; }

TEST(StackedRecurrences, AreOneStep) {
  const std::string made = after(kPass, kTwo);
  EXPECT_NE(made.find("z: f32[t, 1, n, 8], h: f32[1, n, 8], _, _, c: f32[1, n, 8] = encore.LSTM(x, w, r, b, _, _, _, "
                      "_, w2, r2, _, _, c0, _) {hidden_size = 8, layers = 2}  # \"lower and upper\"\n"),
            made.npos)
      << made;
  EXPECT_EQ(made.find("flat"), made.npos) << made;
}

TEST(StackedRecurrences, AsManyAsThereAre) {
  const std::string three = replaced(replaced(kTwo, "const shape", "const axes: i64[1]\nconst shape"), "out h\nout z",
                                     R"(squeezed: f32[t, n, 8] = Squeeze(z, axes)
top: f32[t, 1, n, 8], top_h: f32[1, n, 8] = LSTM(squeezed, w2, r2, b) {hidden_size = 8}  # "top"
out h
out top
out top_h)");
  const std::string made = after(kPass, three);
  EXPECT_NE(made.find("top: f32[t, 1, n, 8], h: f32[1, n, 8], _, _, c: f32[1, n, 8], top_h: f32[1, n, 8], _ = "
                      "encore.LSTM(x, w, r, b, _, _, _, _, w2, r2, _, _, c0, _, w2, r2, b, _, _, _) {hidden_size = 8, "
                      "layers = 3}"),
            made.npos)
      << made;
}

TEST(StackedRecurrences, OfOneKindAndDirection) {
  EXPECT_FALSE(stays(replaced(
      replaced(kTwo, "LSTM(x, w, r, b) {hidden_size = 8", "LSTM(x, w, r, b) {direction = \"reverse\", hidden_size = 8"),
      kUpper, replaced(kUpper, "{", "{direction = \"reverse\", "))));
  EXPECT_TRUE(stays(replaced(kTwo, kUpper, replaced(kUpper, "{", "{direction = \"reverse\", "))));
  EXPECT_TRUE(stays(replaced(kTwo, kUpper, replaced(kUpper, "LSTM", "GRU"))));
  EXPECT_TRUE(stays(replaced(kTwo, kUpper, replaced(kUpper, "{", "{clip = 1, "))));
  EXPECT_TRUE(stays(replaced(replaced(kTwo, "in c0", "in lengths: i32[n]\nin c0"), kUpper,
                             replaced(kUpper, "r2, _, _,", "r2, _, lengths,"))));
}

TEST(StackedRecurrences, WhatOthersReadStays) {
  EXPECT_TRUE(stays(replaced(kTwo, "out h", "out h\nout y")));
  EXPECT_TRUE(stays(replaced(kTwo, "out h", "out h\nout flat")));
}

TEST(StackedRecurrences, StatesThatComeFromBelowStay) {
  EXPECT_TRUE(stays(replaced(replaced(kTwo, kUpper, replaced(kUpper, "c0", "twice")), "turned: f32",
                             "twice: f32[1, n, 8] = Add(h, h)\nturned: f32")));
}

TEST(StackedRecurrences, OrdersThatMoveStay) {
  EXPECT_TRUE(stays(replaced(replaced(kTwo, "perm = [0, 2, 1, 3]", "perm = [2, 0, 1, 3]"), "turned: f32[t, n, 1, 8]",
                             "turned: f32[n, t, 1, 8]")));
}

}  // namespace
}  // namespace encore::fuse::tests
