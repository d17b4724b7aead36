// Attention against loops in double where there is a cuDNN; on the virtual GPU, that it says it has none.
#include "device/dnn_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <random>

#include "device/clear_ahead.h"
#include "device/device.h"
#include "device/error.h"
#include "device/graph.h"
#include "device/half.h"
#include "on_device.h"

namespace encore::device {
namespace {

FusedAttention sized(Type type, int64_t batch, int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys,
                     int64_t size) {
  FusedAttention p{.type = type,
                   .batch = batch,
                   .heads = heads,
                   .kv_heads = kv_heads,
                   .queries = queries,
                   .keys = keys,
                   .head_size = size,
                   .value_size = size,
                   .scale = 1 / std::sqrt(float(size))};
  const auto packed = [&](int64_t of_heads, int64_t rows) {
    return FusedAttention::Strides{of_heads * rows * size, rows * size, size};
  };
  p.q = p.y = packed(heads, queries);
  p.k = p.v = packed(kv_heads, keys);
  return p;
}

#ifdef ENCORE_VIRTUAL

TEST(DnnAttentionTest, TheVirtualGpuHasNoneAndSaysSo) {
  std::vector<std::string> said;
  Dnn dnn(0, {.warn = [&](const std::string& message) { said.push_back(message); }});
  const Stream stream(0);
  const FusedAttention problem = sized(Type::f16, 1, 2, 1, 16, 16, 64);
  EXPECT_FALSE(prepare_attention(dnn, stream, problem));
  EXPECT_ERROR(run_attention(dnn, stream, problem, {}, nullptr), Code::library_missing);
  EXPECT_TRUE(said.empty());  // there are kernels for it, so nothing is amiss
}

#else

template <class T>
std::vector<T> random_values(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) value = T((float(engine() >> 8) / float(1 << 23)) - 1.0f);
  return values;
}

template <class T>
struct Case {
  FusedAttention p;
  std::vector<T> q, k, v, bias;
  std::vector<int32_t> query_lengths, key_lengths;

  explicit Case(FusedAttention problem, std::vector<int32_t> lengths = {}, uint32_t seed = 1) : p(problem) {
    p.type = kTypeOf<T>;
    q = random_values<T>(p.batch * p.heads * p.queries * p.head_size, seed);
    k = random_values<T>(p.batch * p.kv_heads * p.keys * p.head_size, seed + 1);
    v = random_values<T>(p.batch * p.kv_heads * p.keys * p.value_size, seed + 2);
    bias = random_values<T>(p.bias_batch * p.bias_heads * p.bias_queries * p.keys, seed + 3);
    p.has_lengths = !lengths.empty();
    key_lengths = lengths;
    query_lengths.assign(lengths.size(), int32_t(p.queries));
  }
  size_t outputs() const { return size_t(p.batch * p.heads * p.queries * p.value_size); }

  void expect_equal(const std::vector<T>& got) const {
    const double unit = std::is_same_v<T, Half> ? 0x1p-10 : 0x1p-7;
    int wrong = 0;
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t h = 0; h < p.heads; ++h)
        for (int64_t i = 0; i < p.queries; ++i) {
          const std::vector<double> want = row(b, h, i);
          for (int64_t c = 0; !want.empty() && c < p.value_size; ++c) {
            const double have = float(got[size_t(b * p.y.batch + h * p.y.head + i * p.y.row + c)]);
            if (!(std::abs(have - want[size_t(c)]) <= 2 * unit) && ++wrong <= 3)
              ADD_FAILURE() << describe(p) << " [" << b << "," << h << "," << i << "," << c << "] is " << have
                            << ", not " << want[size_t(c)];
          }
        }
    EXPECT_EQ(wrong, 0) << describe(p);
  }

 private:
  // Empty if the query sees no key.
  std::vector<double> row(int64_t b, int64_t h, int64_t i) const {
    const int64_t kv_head = h / (p.heads / p.kv_heads), length = p.has_lengths ? key_lengths[size_t(b)] : p.keys;
    const int64_t at = p.bottom_right ? length - p.queries + i : i;
    std::vector<double> score(static_cast<size_t>(p.keys), -std::numeric_limits<double>::infinity());
    double top = -std::numeric_limits<double>::infinity(), total = 0;
    for (int64_t j = 0; j < length; ++j) {
      if ((p.left >= 0 && j < at - p.left) || (p.right >= 0 && j > at + p.right)) continue;
      double sum = 0;
      for (int64_t c = 0; c < p.head_size; ++c)
        sum += double(float(q[size_t(b * p.q.batch + h * p.q.head + i * p.q.row + c)])) *
               double(float(k[size_t(b * p.k.batch + kv_head * p.k.head + j * p.k.row + c)]));
      sum *= double(p.scale);
      if (p.bias_batch > 0) {
        const int64_t bb = p.bias_batch > 1 ? b : 0, bh = p.bias_heads > 1 ? h : 0, bi = p.bias_queries > 1 ? i : 0;
        sum += double(float(bias[size_t(((bb * p.bias_heads + bh) * p.bias_queries + bi) * p.keys + j)]));
      }
      score[size_t(j)] = sum;
      top = std::max(top, sum);
    }
    if (std::isinf(top)) return {};
    std::vector<double> y(static_cast<size_t>(p.value_size), 0);
    for (int64_t j = 0; j < length; ++j) {
      const double power = std::exp(score[size_t(j)] - top);
      total += power;
      for (int64_t c = 0; c < p.value_size; ++c)
        y[size_t(c)] += power * double(float(v[size_t(b * p.v.batch + kv_head * p.v.head + j * p.v.row + c)]));
    }
    for (double& value : y) value /= total;
    return y;
  }
};

template <class T>
struct OnDevice {
  const FusedAttention& p;
  DeviceArray<T> q, k, v, bias, y;
  DeviceArray<int32_t> query_lengths, key_lengths;
  DeviceArray<char> workspace;
  OnDevice(const Case<T>& c, size_t workspace_bytes)
      : p(c.p),
        q(c.q),
        k(c.k),
        v(c.v),
        bias(c.bias),
        y(c.outputs()),
        query_lengths(c.query_lengths),
        key_lengths(c.key_lengths),
        workspace(workspace_bytes) {}
  void run(Dnn& dnn, StreamRef stream, void* cleared = nullptr) {
    run_attention(dnn, stream, p,
                  {.q = q.data(),
                   .k = k.data(),
                   .v = v.data(),
                   .bias = bias.data(),
                   .query_lengths = query_lengths.data(),
                   .key_lengths = key_lengths.data(),
                   .y = y.data()},
                  cleared ? cleared : workspace.data(), cleared != nullptr);
  }
};

class DnnAttentionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    ASSERT_TRUE(dnn.available(&why)) << why;
  }
  // Whether cuDNN serves it; if so, rightly.
  template <class T>
  bool check(const FusedAttention& problem, std::vector<int32_t> lengths = {}) {
    const Case<T> c(problem, std::move(lengths));
    const auto bytes = prepare_attention(dnn, stream, c.p);
    std::cout << (bytes ? "  serves " : "  does not serve ") << describe(c.p) << "\n";
    if (!bytes) return false;
    OnDevice<T> on_device(c, *bytes);
    on_device.run(dnn, stream);
    c.expect_equal(on_device.y.download(stream));
    return true;
  }

  Stream stream{0};
  Dnn dnn{0};
};

TEST_F(DnnAttentionTest, SizesAndTypes) {
  for (const int64_t size : {32, 64, 80, 96, 128, 256}) {
    EXPECT_TRUE(check<Half>(sized(Type::f16, 2, 4, 4, 128, 128, size)));
    EXPECT_TRUE(check<BFloat16>(sized(Type::bf16, 2, 4, 2, 129, 77, size)));
  }
}

TEST_F(DnnAttentionTest, Windows) {
  for (const bool bottom_right : {false, true})
    for (const auto& [left, right] : {std::pair{-1, 0}, {16, 0}, {0, 0}, {-1, 5}, {9, 7}, {9, -1}})
      for (const int64_t queries : {100, 128, 200}) {
        FusedAttention problem = sized(Type::f16, 2, 4, 2, queries, 200, 64);
        problem.bottom_right = bottom_right;
        problem.left = left;
        problem.right = right;
        const bool served = check<Half>(problem);
        if (left < 0 && right == 0) {
          EXPECT_TRUE(served);
        }
      }
}

TEST_F(DnnAttentionTest, Lengths) {
  for (const bool causal : {false, true}) {
    FusedAttention problem = sized(Type::f16, 4, 4, 2, 40, 200, 64);
    problem.bottom_right = causal;
    problem.right = causal ? 0 : -1;
    EXPECT_TRUE(check<Half>(problem, {200, 64, 41, 129}));
    // Queries that see nothing must leave the others as they are.
    EXPECT_TRUE(check<Half>(problem, {200, 0, 20, 1}));
  }
}

TEST_F(DnnAttentionTest, Biases) {
  for (const int64_t bias_batch : {1, 2})
    for (const int64_t bias_heads : {1, 4})
      for (const int64_t bias_queries : {1, 128})
        for (const int64_t keys : {128, 130, 77}) {
          FusedAttention problem = sized(Type::f16, 2, 4, 2, 128, keys, 64);
          problem.bias_batch = bias_batch;
          problem.bias_heads = bias_heads;
          problem.bias_queries = bias_queries;
          EXPECT_TRUE(check<Half>(problem));
          problem.right = 0;
          check<BFloat16>(problem);
        }
}

// What is masked has a low number in the bias, as the ops room makes it; whole tiles may be.
TEST_F(DnnAttentionTest, LowBiasesMask) {
  FusedAttention problem = sized(Type::f16, 1, 2, 2, 128, 384, 64);
  problem.bias_batch = problem.bias_heads = 1;
  problem.bias_queries = problem.queries;
  Case<Half> c(problem);
  for (int64_t i = 0; i < problem.queries; ++i)
    for (int64_t j = 0; j < problem.keys; ++j)
      if (j < 300 - i) c.bias[size_t(i * problem.keys + j)] = Half(-65504.f);
  const auto bytes = prepare_attention(dnn, stream, c.p);
  ASSERT_TRUE(bytes);
  OnDevice<Half> on_device(c, *bytes);
  on_device.run(dnn, stream);
  c.expect_equal(on_device.y.download(stream));
}

TEST_F(DnnAttentionTest, HeadsAmongRows) {  // as 3-D inputs have them
  FusedAttention problem = sized(Type::f16, 2, 4, 2, 70, 90, 64);
  problem.q = problem.y = {70 * 4 * 64, 64, 4 * 64};
  problem.k = problem.v = {90 * 2 * 64, 64, 2 * 64};
  EXPECT_TRUE(check<Half>(problem));
}

TEST_F(DnnAttentionTest, CapturesOnlyWhatWasPrepared) {
  const Case<Half> first(sized(Type::f16, 1, 2, 2, 64, 64, 64)), second(first.p, {}, 50);
  begin_capture(stream, CaptureMode::thread_local_);
  EXPECT_ERROR(prepare_attention(dnn, stream, first.p), Code::capture_forbidden);
  abandon_capture(stream);

  const auto bytes = prepare_attention(dnn, stream, first.p);
  ASSERT_TRUE(bytes);
  OnDevice<Half> on_device(first, *bytes);
  on_device.run(dnn, stream);
  begin_capture(stream, CaptureMode::thread_local_);
  on_device.run(dnn, stream);
  const GraphExec exec = end_capture(stream).instantiate();
  on_device.q.upload(stream, second.q);
  on_device.k.upload(stream, second.k);
  on_device.v.upload(stream, second.v);
  exec.launch(stream);
  second.expect_equal(on_device.y.download(stream));
}

// What it clears for itself at each call, a graph clears once for all, at each launch.
TEST_F(DnnAttentionTest, WorkspacesAreClearedAhead) {
  constexpr size_t kPiece = 256;
  const Case<Half> first(sized(Type::f16, 2, 4, 4, 256, 256, 64)), second(first.p, {}, 50);
  const auto bytes = prepare_attention(dnn, stream, first.p);
  ASSERT_TRUE(bytes);
  ASSERT_LE(*bytes, kPiece);
  OnDevice<Half> one(first, *bytes), other(first, *bytes);
  one.run(dnn, stream);
  const DeviceArray<char> cleared(2 * kPiece);
  const auto captured = [&](bool ahead) {
    begin_capture(stream, CaptureMode::thread_local_);
    const ClearNode node = clear_ahead(stream, cleared.data(), 2 * kPiece);
    EXPECT_TRUE(node);
    one.run(dnn, stream, ahead ? cleared.data() : nullptr);
    other.run(dnn, stream, ahead ? cleared.data() + kPiece : nullptr);
    if (!ahead) leave_out(stream, node);
    return end_capture(stream);
  };
  const Graph each = captured(false), ahead = captured(true);
  const auto fills = [](const Graph& graph) {
    return std::ranges::count(graph.nodes(), NodeKind::fill, &GraphNode::kind);
  };
  EXPECT_EQ(each.size() - size_t(fills(each)), ahead.size() - size_t(fills(ahead)));
  EXPECT_EQ(fills(ahead), 1);
  std::cout << "  " << fills(each) << " fills in two calls, and " << fills(ahead) << " ahead\n";
  const GraphExec exec = ahead.instantiate();
  for (const Case<Half>* const now : {&second, &first}) {
    one.q.upload(stream, now->q);
    one.k.upload(stream, now->k);
    one.v.upload(stream, now->v);
    exec.launch(stream);
    exec.launch(stream);
    now->expect_equal(one.y.download(stream));
    first.expect_equal(other.y.download(stream));
  }
}

TEST_F(DnnAttentionTest, SaysWhatItDoesNotServe) {
  EXPECT_FALSE(prepare_attention(dnn, stream, sized(Type::f32, 1, 2, 2, 64, 64, 64)));
  EXPECT_FALSE(prepare_attention(dnn, stream, sized(Type::f16, 1, 2, 2, 64, 64, 63)));
  EXPECT_FALSE(prepare_attention(dnn, stream, sized(Type::f16, 1, 2, 2, 64, 0, 64)));
  const FusedAttention good = sized(Type::f16, 1, 2, 2, 64, 64, 64);
  Dnn unwanted(0, {.attention = false});
  EXPECT_FALSE(prepare_attention(unwanted, stream, good));
  Dnn off(0, {.wanted = false});
  EXPECT_FALSE(prepare_attention(off, stream, good));
  EXPECT_ERROR(run_attention(off, stream, good, {}, nullptr), Code::not_supported);
}

#endif

}  // namespace
}  // namespace encore::device
