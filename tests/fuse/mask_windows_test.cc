#include "fuse/mask_windows.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "fuse/own_tensor.h"
#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr double kLowest = -65504, kInfinite = -std::numeric_limits<double>::infinity();

// What adds `unseen` where `sees(query, key)` says no.
std::optional<std::pair<int64_t, int64_t>> window(int64_t queries, int64_t keys, auto sees, double unseen = kLowest,
                                                  std::vector<int64_t> more_dims = {}) {
  std::vector<double> numbers;
  for (int64_t query = 0; query < queries; ++query)
    for (int64_t key = 0; key < keys; ++key) numbers.push_back(sees(query, key) ? 0 : unseen);
  std::vector<int64_t> dims = std::move(more_dims);
  dims.insert(dims.end(), {queries, keys});
  const auto found = window_of(own_numbers(Type::f16, ops::Shape(dims), numbers)->view, queries, keys);
  return found ? std::optional(std::pair(found->before, found->after)) : std::nullopt;
}

TEST(MaskWindows, AreFoundByPosition) {
  const auto causal = [](int64_t query, int64_t key) { return key <= query; };
  EXPECT_EQ(window(5, 5, causal), std::pair(int64_t(-1), int64_t(0)));
  EXPECT_EQ(window(5, 5, causal, kInfinite, {1, 1}), std::pair(int64_t(-1), int64_t(0)));
  EXPECT_EQ(window(1, 1, causal), std::pair(int64_t(-1), int64_t(-1)));
  // Behind two keys of a past.
  EXPECT_EQ(window(3, 5, [](int64_t query, int64_t key) { return key <= query + 2; }),
            std::pair(int64_t(-1), int64_t(0)));
  EXPECT_EQ(window(6, 6, [](int64_t query, int64_t key) { return key <= query && query - key < 3; }),
            std::pair(int64_t(2), int64_t(0)));
  EXPECT_EQ(window(6, 6, [](int64_t query, int64_t key) { return query - key < 2 && key - query < 4; }),
            std::pair(int64_t(1), int64_t(3)));
  EXPECT_EQ(window(4, 4, [](int64_t, int64_t) { return true; }), std::pair(int64_t(-1), int64_t(-1)));
}

TEST(MaskWindows, AreNoneOtherwise) {
  const auto none = [](auto... how) { return !window(how...); };
  const auto causal = [](int64_t query, int64_t key) { return key <= query; };
  EXPECT_TRUE(none(5, 5, causal, -10000.0)) << "scores may be as large";
  EXPECT_TRUE(none(5, 5, causal, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_TRUE(none(5, 5, [](int64_t query, int64_t key) { return key < query; })) << "the first row sees nothing";
  EXPECT_TRUE(none(5, 5, [](int64_t query, int64_t key) { return key <= query && key != 1; }));
  EXPECT_TRUE(none(5, 5, [](int64_t query, int64_t key) { return key <= query || key == 4; }));
  EXPECT_TRUE(none(5, 5, [](int64_t query, int64_t key) { return key <= query / 2; }));
  EXPECT_TRUE(none(5, 5, [](int64_t, int64_t key) { return key < 3; })) << "of keys";
  EXPECT_TRUE(none(6, 6, [](int64_t query, int64_t key) { return query / 3 == key / 3; })) << "in blocks";
  EXPECT_TRUE(none(5, 3, [](int64_t, int64_t) { return true; }));
  const auto mask = own_numbers(Type::f16, ops::Shape{2, 3, 3}, std::vector<double>(18, 0));
  EXPECT_FALSE(window_of(mask->view, 3, 3)) << "one for each batch";
  EXPECT_FALSE(window_of(own_numbers(Type::f16, ops::Shape{1, 3}, {0, 0, 0})->view, 3, 3));
  EXPECT_FALSE(window_of(own_numbers(Type::f16, ops::Shape{}, {0})->view, 1, 1));
}

// Attention needs none of them.
constexpr const char* kMasked = R"(in q: f16[b, 2, 3, 16]
in k: f16[b, 2, 16, 3]
in v: f16[b, 2, 3, 16]
const mask: f16[3, 3] = [0, -inf, -inf, 0, 0, -inf, 0, 0, 0]
product: f16[b, 2, 3, 3] = MatMul(q, k)
masked: f16[b, 2, 3, 3] = Add(product, mask)
p: f16[b, 2, 3, 3] = Softmax(masked) {axis = -1}
y: f16[b, 2, 3, 16] = MatMul(p, v)
out y
)";

TEST(MaskWindows, TakeTheMasksPlace) {
  EXPECT_EQ(after("attention", kMasked), R"(in q: f16[b, 2, 3, 16]
in k: f16[b, 2, 16, 3]
in v: f16[b, 2, 3, 16]
y: f16[b, 2, 3, 16] = encore.Attention(q, k, v, _) {after = 0, k = "transpose 0,1,3,2", q = "", scale = 1.0, v = "", y = [0, 1, 2, 3]}  # "y"
out y
)");
  const auto keeps = [](const char* part, const char* by) {
    const std::string made = after("attention", replaced(kMasked, part, by));
    EXPECT_NE(made.find("encore.Attention(q, k, v, mask)"), made.npos) << made;
  };
  keeps("0, -inf, -inf, 0, 0", "0, -inf, -1, 0, 0");
  keeps("const mask: f16[3, 3] = [0, -inf, -inf, 0, 0, -inf, 0, 0, 0]", "in mask: f16[3, 3]");
  keeps("q: f16[b, 2, 3, 16]", "q: f16[b, 2, n, 16]");
}

}  // namespace
}  // namespace encore::fuse::tests
