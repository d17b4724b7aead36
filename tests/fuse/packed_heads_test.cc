#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kSplit = R"(in qkv: f16[b, n, 64]
in past_k: f16[b, 1, t, 16]
in past_v: f16[b, 1, t, 16]
in last: i32[b]
in total: i32[]
const widths: i64[3] = [32, 16, 16]
q: f16[b, n, 32], k: f16[b, n, 16], v: f16[b, n, 16] = Split@13(qkv, widths) {axis = 2}  # "split"
y: f16[b, n, 32], keys: f16[b, 1, t, 16], values: f16[b, 1, t, 16] = com.microsoft.GroupQueryAttention(q, k, v, past_k, past_v, last, total) {kv_num_heads = 1, num_heads = 2}  # "attend"
out y
out keys
out values
)";

TEST(PackedHeads, AreNotSplit) {
  EXPECT_EQ(after("packed_heads", kSplit), R"(in qkv: f16[b, n, 64]
in past_k: f16[b, 1, t, 16]
in past_v: f16[b, 1, t, 16]
in last: i32[b]
in total: i32[]
y: f16[b, n, 32], keys: f16[b, 1, t, 16], values: f16[b, 1, t, 16] = com.microsoft.GroupQueryAttention(qkv, _, _, past_k, past_v, last, total) {kv_num_heads = 1, num_heads = 2}  # "attend"
out y
out keys
out values
)");
  const std::string from_behind = replaced(kSplit, "axis = 2", "axis = -1");
  EXPECT_EQ(after("packed_heads", from_behind).find("Split"), std::string::npos);
}

TEST(PackedHeads, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("packed_heads", kSplit, part, by); };
  stays("GroupQueryAttention(q, k, v,", "GroupQueryAttention(q, v, k,");
  stays("GroupQueryAttention(q, k, v,", "GroupQueryAttention(q, k, past_v,");
  stays("out y", "out y\nout k");
  stays("axis = 2", "axis = 1");
  stays("num_heads = 2", "num_heads = 4");
  stays("q: f16[b, n, 32]", "q: f16[b, n, any]");
  stays("k: f16[b, n, 16]", "k: f16[b, n, 24]");
}

TEST(PackedHeads, ThatWereSplitOffSomethingElseStay) {
  expect_stays("packed_heads", replaced(kSplit, "(q, k, v,", "(q, _, _,"), "k: f16[b, n, 16], v", "_, v");
}

TEST(PackedHeads, SayWhyTheyStay) {
  EXPECT_EQ(notes_of("packed_heads", replaced(kSplit, "out y", "out y\nout k")),
            Notes{"GroupQueryAttention node 'attend' does not become attention of packed heads: what is split is in "
                  "another order, or others read it, too"});
  EXPECT_EQ(
      notes_of("packed_heads", replaced(kSplit, "num_heads = 2", "num_heads = 4")),
      Notes{"GroupQueryAttention node 'attend' does not become attention of packed heads: what is split is no heads "
            "of one size"});
  EXPECT_EQ(notes_of("packed_heads", kSplit), Notes{});
  EXPECT_EQ(notes_of("packed_heads", replaced(kSplit, "(q, k, v,", "(q, _, _,")), Notes{});
}

}  // namespace
}  // namespace encore::fuse::tests
