// The ways to compute attention against loops in double: with windows, which no onnxruntime has yet, and each way where
// the choice would take another.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <random>

#include "../device/on_device.h"
#include "device/half.h"
#include "ops/attention/dense/attend.h"
#include "ops/attention/dense/attend_tf32.h"
#include "ops/attention/dense/blind_queries.h"

namespace encore::ops {
namespace {

using device::BFloat16;
using device::DeviceArray;
using device::Half;

// Runs without a node.
class Bare final : public Context {
 public:
  int input_count() const override { return 0; }
  int output_count() const override { return 0; }
  const Tensor* find_input(int) override { return nullptr; }
  Tensor output(int, const Shape&) override { return {}; }
  bool wants_output(int) const override { return false; }
  StreamRef stream() const override { return stream_; }
  void* scratch(size_t bytes) override {
    if (bytes == 0) return nullptr;
    blocks_.emplace_back(bytes);
    return blocks_.back().data();
  }
  device::Blas& blas() override { fail(Code::internal, "attention takes no products"); }
  device::Dnn& dnn() override { return dnn_; }
  device::FaultRef fault() override { return {}; }
  void read_back(void*, const void*, size_t) override { fail(Code::internal, "nothing is read back here"); }

 private:
  device::Stream stream_{0};
  device::Dnn dnn_{0};
  std::vector<DeviceArray<char>> blocks_;
};

template <class T>
std::vector<T> random_values(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) value = T((float(engine() >> 8) / float(1 << 22)) - 2.0f);
  return values;
}

struct Problem {
  int64_t batch = 2, heads = 4, kv_heads = 2, queries = 40, keys = 100, size = 64;
  int64_t before = -1, after = -1, offset = 0;
  std::vector<int64_t> lengths = {};  // those there are count from the end
  bool as_last_keys = false;          // lengths are given so
  bool sinks = false;
  enum { none, boolean, added } mask = none;
  int64_t mask_batch = 1, mask_heads = 1;
  double softcap = 0;
  bool finite = false;  // the mask, and this is known
  bool alike = false;   // for all queries: those of the first

  std::string text() const {
    return encore::text("queries=", queries, " keys=", keys, " size=", size, " window=", before, "/", after,
                        " offset=", offset, lengths.empty() ? "" : " lengths", sinks ? " sinks" : "",
                        mask ? " mask " : "", int(mask), " of ", mask_batch, "x", mask_heads, alike ? " alike" : "",
                        " softcap=", softcap);
  }
};

template <class T>
class Case {
 public:
  explicit Case(const Problem& problem)
      : p_(problem),
        q_(random_values<T>(p_.batch * p_.heads * p_.queries * p_.size, 1)),
        k_(random_values<T>(p_.batch * p_.kv_heads * p_.keys * p_.size, 2)),
        v_(random_values<T>(p_.batch * p_.kv_heads * p_.keys * p_.size, 3)),
        mask_(random_values<T>(p_.mask_batch * p_.mask_heads * p_.queries * p_.keys, 4)),
        sinks_(random_values<T>(p_.heads, 5)) {
    // A row without keys, and one whose first keys are masked.
    for (int64_t j = 0; j < p_.keys && p_.queries > 1 && !p_.finite; ++j) mask_[size_t(p_.keys + j)] = T(kNothing);
    for (int64_t j = 0; j < p_.keys - 2 && !p_.finite; ++j) mask_[size_t(j)] = T(kNothing);
    for (const T value : mask_) seen_.push_back(float(value) > -1);
    for (int64_t b = 0; b < p_.batch; ++b)
      for (int64_t h = 0; h < p_.heads; ++h)
        for (int64_t i = 0; i < p_.queries; ++i) std::ranges::copy(row(b, h, i), std::back_inserter(wanted_));
    // A context each: what one leaves of its memory the next must not find.
    agree("group",
          [](Context& c, const Attend& a) { return fits_grouped_decode(a) && (attend_grouped_decode(c, a), true); });
    agree("few", [](Context& c, const Attend& a) { return suits_decode(a) && (attend_decode(c, a), true); });
    agree("tiles", [](Context& c, const Attend& a) { return attend_prefill(c, a), true; });
    agree("dnn", [](Context& c, const Attend& a) { return attend_dnn(c, a); });
    agree("dnn by a shared mask", [](Context& c, Attend a) {
      a.bias.shape = bias_shape(c, a);
      if (a.bias.shape.count() == 0) return false;
      a.bias.data = c.scratch(size_t(a.bias.shape.count()) * sizeof(T));
      a.bias.blind = static_cast<bool*>(c.scratch(size_t(blind_shape(a.bias.shape).count())));
      attend(c, a);
      a.bias.is_made = true;
      return attend(c, a), true;
    });
    agree("any", [](Context& c, const Attend& a) { return attend(c, a), true; });
    if (!std::is_same_v<T, float>) return;
    for (const auto& [name, way] :
         {std::pair{"TF32, few rows", Tf32Way::few}, {"TF32, some", Tf32Way::some}, {"TF32, many", Tf32Way::many}})
      agree(
          name,
          [&](Context& c, const Attend& a) {
            return fits_tf32(a) && has_room_for_tf32(c, a, way) && (attend_tf32(c, a, way, Blind::zeros), true);
          },
          kSlackOfTf32);
    agree(
        "any with TF32",
        [](Context& c, Attend a) {
          a.tf32 = true;
          return attend(c, a), true;
        },
        kSlackOfTf32);
  }

 private:
  static constexpr float kNothing = -std::numeric_limits<float>::infinity();
  static constexpr double kSlackOfTf32 = 4e-3;
  static constexpr double kSlack = sizeof(T) == 8            ? 1e-12
                                   : sizeof(T) == 4          ? 1e-5
                                   : std::is_same_v<T, Half> ? 4e-3
                                                             : 3e-2;

  template <class Way>
  void agree(const char* name, Way way, double slack = kSlack) {
    Bare context;
    DeviceArray<T> q(q_), k(k_), v(v_), mask(mask_), sinks(sinks_), y(q_.size());
    DeviceArray<uint8_t> seen(seen_);
    DeviceArray<int64_t> lengths(p_.lengths);
    std::vector<int32_t> last;
    for (const int64_t length : p_.lengths) last.push_back(int32_t(length - 1));
    DeviceArray<int32_t> last_keys(last);
    const auto rows = [&](const void* data, int64_t heads, int64_t count) {
      return HeadRows{data, heads * count * p_.size, count * p_.size, p_.size};
    };
    Attend a;
    a.type = device::kTypeOf<T>;
    a.batch = p_.batch, a.heads = p_.heads, a.kv_heads = p_.kv_heads;
    a.queries = p_.queries, a.keys = p_.keys, a.head_size = a.value_size = p_.size;
    a.q = rows(q.data(), p_.heads, p_.queries), a.y = rows(y.data(), p_.heads, p_.queries);
    a.k = rows(k.data(), p_.kv_heads, p_.keys), a.v = rows(v.data(), p_.kv_heads, p_.keys);
    a.scale = 1 / std::sqrt(double(p_.size));
    a.softcap = p_.softcap;
    a.visible = {.before = p_.before, .after = p_.after, .from_end = !p_.lengths.empty(), .offset = p_.offset};
    if (p_.as_last_keys)
      a.visible.last_keys = last_keys.data();
    else if (!p_.lengths.empty())
      a.visible.lengths = lengths.data();
    if (p_.sinks) a.sinks = sinks.data();
    if (p_.mask) {
      a.mask.boolean = p_.mask == Problem::boolean;
      a.mask.data = a.mask.boolean ? static_cast<const void*>(seen.data()) : mask.data();
      a.mask.key = 1, a.mask.query = p_.alike ? 0 : p_.keys, a.mask.keys = p_.keys;
      a.mask.head = p_.mask_heads > 1 ? p_.queries * p_.keys : 0;
      a.mask.batch = p_.mask_batch > 1 ? p_.mask_heads * p_.queries * p_.keys : 0;
      if (p_.finite) a.mask.least = -2;
    }
    if (!way(context, a)) return;
    expect_equal(name, y.download(context.stream()), slack);
  }

  void expect_equal(const char* name, const std::vector<T>& got, double slack) const {
    int wrong = 0;
    for (int64_t b = 0, at = 0; b < p_.batch; ++b)
      for (int64_t h = 0; h < p_.heads; ++h)
        for (int64_t i = 0; i < p_.queries; ++i)
          for (int64_t c = 0; c < p_.size; ++c, ++at) {
            const double have = double(got[size_t(at)]), want = wanted_[size_t(at)];
            if (!(std::abs(have - want) <= slack) && ++wrong <= 3)
              ADD_FAILURE() << name << ", " << p_.text() << " [" << b << "," << h << "," << i << "] has " << have
                            << ", not " << want;
          }
    EXPECT_EQ(wrong, 0) << name << ", " << p_.text();
  }

  std::vector<double> row(int64_t b, int64_t h, int64_t i) const {
    const int64_t kv_head = h / (p_.heads / p_.kv_heads);
    const int64_t length = p_.lengths.empty() ? p_.keys : p_.lengths[size_t(b)];
    const int64_t at = (p_.lengths.empty() ? p_.offset : length - p_.queries) + i;
    std::vector<double> y(size_t(p_.size), 0), scores(size_t(p_.keys), double(kNothing));
    double top = double(kNothing), total = 0;
    for (int64_t j = 0; j < length; ++j) {
      if ((p_.before >= 0 && j < at - p_.before) || (p_.after >= 0 && j > at + p_.after)) continue;
      double sum = 0;
      for (int64_t c = 0; c < p_.size; ++c)
        sum += double(q_[size_t(((b * p_.heads + h) * p_.queries + i) * p_.size + c)]) *
               double(k_[size_t(((b * p_.kv_heads + kv_head) * p_.keys + j) * p_.size + c)]);
      sum /= std::sqrt(double(p_.size));
      if (p_.softcap > 0) sum = p_.softcap * std::tanh(sum / p_.softcap);
      const size_t in_mask =
          size_t((((p_.mask_batch > 1 ? b : 0) * p_.mask_heads + (p_.mask_heads > 1 ? h : 0)) * p_.queries +
                  (p_.alike ? 0 : i)) *
                     p_.keys +
                 j);
      if (p_.mask == Problem::boolean && !seen_[in_mask]) continue;
      if (p_.mask == Problem::added) sum += double(mask_[in_mask]);
      scores[size_t(j)] = sum;
      top = std::max(top, sum);
    }
    if (std::isinf(top)) return y;
    if (p_.sinks) {
      const double sink = double(sinks_[size_t(h)]);
      total = std::exp(sink - top);
    }
    for (int64_t j = 0; j < p_.keys; ++j) {
      const double power = std::exp(scores[size_t(j)] - top);
      total += power;
      for (int64_t c = 0; c < p_.size; ++c)
        y[size_t(c)] += power * double(v_[size_t(((b * p_.kv_heads + kv_head) * p_.keys + j) * p_.size + c)]);
    }
    for (double& value : y) value /= total;
    return y;
  }

  Problem p_;
  std::vector<T> q_, k_, v_, mask_, sinks_;
  std::vector<uint8_t> seen_;
  std::vector<double> wanted_;
};

void check(const Problem& problem) {
  Case<float>{problem};
  Case<Half>{problem};
  Case<BFloat16>{problem};
}

// One of the types, each in its turn.
void check_in_turn(const Problem& problem) {
  static int turn = 0;
  switch (turn++ % 3) {
    case 0: Case<float>{problem}; break;
    case 1: Case<Half>{problem}; break;
    default: Case<BFloat16>{problem};
  }
}

TEST(Attend, Windows) {
  Case<double>{Problem{.before = 7, .after = 3}};
  for (const int64_t queries : {3, 40, 130})
    for (const auto& [before, after] : {std::pair{-1, 0}, {0, 0}, {9, 0}, {9, 7}, {5, -1}, {1000, 1000}})
      for (const int64_t offset : {int64_t(0), int64_t(17), 100 - queries}) {
        if (offset < 0) continue;
        check_in_turn({.queries = queries, .before = before, .after = after, .offset = offset});
      }
}

TEST(Attend, Lengths) {
  for (const int64_t queries : {3, 40})
    for (const auto& [before, after] : {std::pair{-1, -1}, {-1, 0}, {9, 0}, {4, 4}}) {
      check_in_turn({.queries = queries, .before = before, .after = after, .lengths = {100, 20}});
      check_in_turn({.queries = queries, .before = before, .after = after, .lengths = {0, 77}});
    }
}

TEST(Attend, Masks) {
  for (const auto mask : {Problem::boolean, Problem::added})
    for (const int64_t queries : {2, 40})
      for (const int64_t mask_batch : {1, 2})
        for (const int64_t mask_heads : {1, 4}) {
          Problem problem{.queries = queries, .mask = mask, .mask_batch = mask_batch, .mask_heads = mask_heads};
          check_in_turn(problem);
          problem.after = 0;
          check_in_turn(problem);
          problem.before = 30, problem.after = 2, problem.offset = 55;
          check_in_turn(problem);
          problem.offset = 0, problem.lengths = {30, 99};
          check_in_turn(problem);
        }
}

// As padding is masked.
TEST(Attend, MasksThatAllQueriesShare) {
  for (const auto mask : {Problem::boolean, Problem::added})
    for (const int64_t mask_batch : {1, 2})
      for (const int64_t mask_heads : {1, 4}) {
        Problem problem{.mask = mask, .mask_batch = mask_batch, .mask_heads = mask_heads, .alike = true};
        check(problem);
        problem.lengths = {30, 99};
        check_in_turn(problem);
        problem.after = 2;
        check_in_turn(problem);
        if (mask == Problem::added) check({.mask = mask, .mask_batch = mask_batch, .finite = true, .alike = true});
      }
}

TEST(Attend, MasksThatAreKnownToBeFinite) {
  for (const int64_t mask_batch : {1, 2})
    for (const int64_t mask_heads : {1, 4}) {
      Problem problem{.mask = Problem::added, .mask_batch = mask_batch, .mask_heads = mask_heads, .finite = true};
      check(problem);
      problem.after = 0;
      check(problem);
    }
}

TEST(Attend, Softcaps) {
  check({.after = 0, .softcap = 1.5});
  check({.queries = 2, .after = 0, .softcap = 1.5});
}

TEST(Attend, ManyKeysAreSharedOutAndCombined) {
  check({.batch = 1, .queries = 1, .keys = 3000});
  check({.batch = 1, .queries = 5, .keys = 3000, .size = 72, .before = 700, .after = 0, .offset = 1500});
}

TEST(Attend, SinksTakeTheirPart) {
  Case<double>{Problem{.sinks = true}};
  check({.sinks = true});
  check({.queries = 3, .after = 0, .lengths = {100, 20}, .sinks = true});
  check({.batch = 1, .queries = 1, .keys = 3000, .sinks = true});
}

TEST(Attend, LengthsAreGivenByTheLastKeysToo) {
  for (const int64_t queries : {1, 40})
    check_in_turn(
        {.queries = queries, .keys = 700, .before = 300, .after = 0, .lengths = {500, 0}, .as_last_keys = true});
}

// Queries before the first key and behind the last see none, as the ways that skip such rows must know.
TEST(Attend, QueriesThatSeeNoKeyAreForeseen) {
  const int64_t keys = 6;
  for (const int64_t queries : {1, 4, 9})
    for (const int64_t offset : {-8, -3, 0, 2, 7})
      for (const bool from_end : {false, true})
        for (const int64_t before : {-1, 0, 2})
          for (const int64_t after : {-1, 0, 2}) {
            const VisibleKeys visible{.before = before, .after = after, .from_end = from_end, .offset = offset};
            bool blind = false;
            for (int64_t i = 0; i < queries; ++i) {
              const int64_t at = (from_end ? keys - queries : offset) + i;
              bool sees = false;
              for (int64_t key = 0; key < keys; ++key)
                sees |= (before < 0 || key >= at - before) && (after < 0 || key <= at + after);
              blind |= !sees;
            }
            EXPECT_EQ(may_be_blind(visible, queries, keys), blind)
                << queries << " queries, offset " << offset << ", from the end " << from_end << ", window " << before
                << "/" << after;
          }
  const VisibleKeys bottom_right{.after = 0, .from_end = true};
  EXPECT_TRUE(may_be_blind(bottom_right, 9, 6));
  EXPECT_FALSE(may_be_blind({.after = std::numeric_limits<int64_t>::max(), .offset = 3}, 9, 12));
  check({.queries = 90, .keys = 60, .after = 0, .offset = -30});
}

// Heads, rows and keys that fill tiles and that do not.
TEST(Attend, FloatsOnTensorCores) {
  for (const int64_t size : {4, 32, 40, 64, 80, 96, 128})
    for (const auto& [queries, keys] : {std::pair{1, 1}, {9, 31}, {33, 197}, {150, 64}})
      Case<float>{{.batch = 1, .heads = 2, .queries = queries, .keys = keys, .size = size}};
  Case<float>{{.heads = 12, .kv_heads = 4, .queries = 70, .keys = 70, .size = 80, .after = 0, .sinks = true}};
  Case<float>{{.batch = 1, .heads = 2, .queries = 140, .keys = 600, .before = 50, .after = 20, .offset = 400}};
}

TEST(Attend, FloatsThatTensorCoresDoNotTake) {
  Attend a{.tf32 = true, .batch = 1, .heads = 2, .kv_heads = 2, .queries = 9, .keys = 9, .head_size = 8};
  a.value_size = 8;
  a.q = a.k = a.v = a.y = {nullptr, 144, 72, 8};
  EXPECT_TRUE(suits_tf32(a));
  const auto refused = [&](auto change) {
    Attend other = a;
    change(other);
    return !suits_tf32(other);
  };
  EXPECT_TRUE(refused([](Attend& o) { o.tf32 = false; }));
  EXPECT_TRUE(refused([](Attend& o) { o.type = Type::f64; }));
  EXPECT_TRUE(refused([](Attend& o) { o.k.row = 9; }));
  EXPECT_TRUE(refused([](Attend& o) { o.v.data = reinterpret_cast<void*>(8); }));
  EXPECT_TRUE(refused([](Attend& o) { o.value_size = 132; }));
  EXPECT_TRUE(refused([](Attend& o) { o.head_size = 6; }));
  EXPECT_TRUE(refused([](Attend& o) { o.keys = 0; }));
  EXPECT_TRUE(refused([](Attend& o) { o.scores.data = &o; }));
}

// Rows of one head of keys, from one to some that take several blocks, and sizes up to the largest.
TEST(Attend, RowsOfAGroup) {
  for (const int64_t group : {1, 8, 12})
    for (const int64_t queries : {1, 7})
      for (const int64_t size : {8, 64, 80, 128, 256}) {
        if (size > 128 && queries * group > 24) continue;
        const Problem problem{
            .heads = 2 * group, .queries = queries, .keys = 60 + size, .size = size, .after = 0, .offset = 60};
        check_in_turn(problem);
      }
}

}  // namespace
}  // namespace encore::ops
