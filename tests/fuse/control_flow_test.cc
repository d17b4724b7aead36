// Plans with bodies, as they run.
#include "fuse/control_flow.h"

#include <algorithm>

#include "device/error.h"
#include "device/graph.h"
#include "device_run.h"
#include "fuse/plan_text.h"
#include "fuse/program.h"

namespace encore::fuse::tests {
namespace {

class Prepared {
 public:
  explicit Prepared(std::string_view text) : Prepared(plan_from(text)) {}
  // The host may have to ask the device as often.
  std::vector<Array> run(const std::vector<Array>& inputs, int times_read_back = 0) const {
    Run run(inputs, outputs_, stream_);
    program_.run(run);
    EXPECT_EQ(run.scratch_count(), 0u);
    EXPECT_EQ(run.times_read_back, times_read_back);
    return run.results();
  }
  // As a graph.
  std::vector<Array> replay(const std::vector<Array>& inputs) const {
    Run run(inputs, outputs_, stream_);
    device::begin_capture(stream_, device::CaptureMode::relaxed);
    try {
      program_.run(run);
    } catch (...) {
      device::abandon_capture(stream_);
      throw;
    }
    const device::Graph graph = device::end_capture(stream_);
    nodes_ = graph.size();
    graph.instantiate().launch(stream_);
    EXPECT_EQ(run.times_read_back, 0);
    return run.results();
  }
  size_t nodes(const std::vector<Array>& inputs) const {
    replay(inputs);
    return nodes_;
  }

 private:
  explicit Prepared(Plan plan) : outputs_(plan.outputs.size(), Type::f32), program_(std::move(plan)) {
    Loading loading(kept_, stream_);
    program_.prepare(loading);
    stream_.ref().synchronize();
  }

  const device::Stream stream_{0};
  Memory kept_;
  const std::vector<Type> outputs_;
  Program program_;
  mutable size_t nodes_ = 0;  // of the latest graph
};

std::vector<Array> run(std::string_view text, const std::vector<Array>& inputs) { return Prepared(text).run(inputs); }

Array row(std::vector<float> values) { return {Shape{int64_t(values.size())}, std::move(values)}; }

constexpr const char* kIf = R"(
in x: f32[n]
in z: f32[m]
const one: i64[1] = [1]
s: i64[1] = Shape(x)
host c: bool[1] = Equal(s, one)
r: f32 = If(c, x, z, s) then_branch {
  in outer x: f32[n]
  in outer z: f32[m]
  in host s: i64[1]
  p: f32[n] = Neg(x)
  out p
} else_branch {
  in outer x: f32[n]
  in outer z: f32[m]
  in host s: i64[1]
  const half: f32[1] = [0.5]
  q: f32[m] = Mul(z, half)
  host d: i64[2] = Concat(s, s) {axis = 0}
  e: f32[n, m] = Expand(q, d)
  out e
}
y: f32 = Abs(r)
out y
)";

TEST(ControlFlow, OneBranchRunsAndTheShapesSayWhich) {
  EXPECT_EQ(run(kIf, {row({-3}), row({4, 6})}), std::vector{row({3})});
  EXPECT_EQ(run(kIf, {row({1, 2}), row({4, -6})}), (std::vector{Array{Shape{2, 2}, {2, 3, 2, 3}}}));
}

// As many iterations as x has elements: a = a + i + x, and what is collected of it.
constexpr const char* kLoop = R"(
in x: f32[n]
const zero: i64 = 0
s: i64[1] = Shape(x)
host k: i64 = Gather(s, zero)
last: f32[n], all: f32[?, n], numbers: i64[?] = Loop(k, _, x, x) body {
  in a: f32[n]
  in outer x: f32[n]
  in host i: i64
  in host c: bool
  host d: bool = Identity(c)
  f: f32 = Cast(i) {to = 1}
  e: f32[n] = Add(a, f)
  b: f32[n] = Add(e, x)
  g: f32[n] = Neg(b)
  j: i64 = Identity(i)
  out d
  out b
  out g
  out j
}
h: f32[?] = Cast(numbers) {to = 1}
out last
out all
out h
)";

TEST(ControlFlow, IterationsHandOnAndCollect) {
  EXPECT_EQ(run(kLoop, {row({1, 2})}), (std::vector{row({4, 7}), Array{Shape{2, 2}, {-2, -4, -4, -7}}, row({0, 1})}));
  EXPECT_EQ(run(kLoop, {row({5})}), (std::vector{row({10}), Array{Shape{1, 1}, {-10}}, row({0})}));
  const Array nothing{Shape{0}, {}};
  EXPECT_EQ(run(kLoop, {nothing}), (std::vector{nothing, Array{Shape{0, 0}, {}}, nothing}));
}

TEST(ControlFlow, AConditionEndsALoop) {
  EXPECT_EQ(run(R"(
in x: f32[n]
const three: i64 = 3
y: f32[n] = Loop(_, _, x, x) body {
  in a: f32[n]
  in outer x: f32[n]
  in host i: i64
  in host c: bool
  const two: i64 = 2
  host d: bool = Less(i, two)
  b: f32[n] = Add(a, x)
  out d
  out b
}
out y
)",
                {row({1, 2})}),
            std::vector{row({4, 8})});
}

// By a counter that begins with 1 and goes on by 2 as long as it is less than 2n, and by one that data makes: the host
// hands on the first one. A graph has up to so many iterations one by one.
constexpr const char* kCounting = R"(
in x: f32[n]
const one: i32[1] = [1]
const go: bool = 1
s: i64[1] = Shape(x)
host n: i32[1] = Cast(s) {to = 6}
host most: i32[1] = Add(n, n)
last: i32[1], y: f32[n], all: f32[?, n] = Loop(_, go, one, x, x, most) body {
  in a: f32[n]
  in outer x: f32[n]
  in host i: i64
  in host c: bool
  in host carried at: i32[1]
  in host most: i32[1]
  const two: i32[1] = [2]
  host next: i32[1] = Add(at, two)
  host d: bool[1] = Less(next, most)
  f: f32[1] = Cast(at) {to = 1}
  e: f32[n] = Add(a, f)
  b: f32[n] = Add(e, x)
  g: f32[n] = Neg(b)
  out d
  out next
  out b
  out g
}MORE
k: f32[1] = Cast(last) {to = 1}
out k
out y
out all
)";

std::string counting(const std::string& more = "") {
  std::string text = kCounting;
  return text.replace(text.find("MORE"), 4, more);
}

TEST(ControlFlow, TheHostHandsOnACounter) {
  const Prepared loop(counting());
  EXPECT_EQ(loop.run({row({1, 1, 1})}),
            (std::vector{row({7}), row({13, 13, 13}), Array{Shape{3, 3}, {-3, -3, -3, -7, -7, -7, -13, -13, -13}}}));
  for (const int64_t n : {1, 2, 9}) {
    const std::vector<Array> inputs{row(std::vector<float>(size_t(n), 2))};
    EXPECT_EQ(loop.replay(inputs), loop.run(inputs)) << n << " iterations";
    EXPECT_EQ(loop.run(inputs)[0], row({float(2 * n + 1)}));
  }
}

TEST(ControlFlow, ALongLoopThatCountsIsOneBody) {
  const Prepared loop(counting(R"( body {
  by data beyond 4
  in i: i64
  in c: bool
  in at: i32[1]
  in a: f32[n]
  in outer x: f32[n]
  in host most: i32[1]
  const two: i32[1] = [2]
  next: i32[1] = Add(at, two)
  d: bool[1] = Less(next, most)
  f: f32[1] = Cast(at) {to = 1}
  e: f32[n] = Add(a, f)
  b: f32[n] = Add(e, x)
  g: f32[n] = Neg(b)
  out d
  out next
  out b
  out g
})"));
  const Prepared one_by_one(counting());
  for (const int64_t n : {1, 4, 5, 40}) {
    const std::vector<Array> inputs{row(std::vector<float>(size_t(n), 2))};
    EXPECT_EQ(loop.run(inputs, n > 4), one_by_one.run(inputs)) << n << " iterations";
    EXPECT_EQ(loop.replay(inputs), one_by_one.run(inputs)) << n << " iterations";
  }
  EXPECT_EQ(loop.nodes({row({1, 2, 3, 4, 5})}), loop.nodes({row(std::vector<float>(40))}));
}

TEST(ControlFlow, AScanGoesBothWays) {
  EXPECT_EQ(run(R"(
in s: f32[]
in x: f32[n]
last: f32[], sums: f32[n] = Scan(s, x) {num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1]} body {
  in a: f32[]
  in e: f32[]
  b: f32[] = Add(a, e)
  o: f32[] = Neg(b)
  out b
  out o
}
out last
out sums
)",
                {{Shape(), {1}}, row({1, 2, 3})}),
            (std::vector{Array{Shape(), {7}}, row({-7, -6, -4})}));
}

// What a graph has of more than two iterations. x is read from its last row, and sums begin with the last one.
constexpr const char* kLongScan = R"(
in s: f32[]
in z: f32[m]
in x: f32[n, 2]
in v: f32[n]
last: f32[], sums: f32[n], rows: f32[n, 2] = Scan(s, x, v, z) {num_scan_inputs = 2, scan_input_directions = [1, 0], scan_output_directions = [1, 0]} body {
  beyond 2
  in a: f32[]
  in e: f32[2]
  in g: f32[]
  in outer z: f32[m]
  t: f32[] = ReduceSum(e) {keepdims = 0}
  f: f32[] = Add(t, g)
  b: f32[] = Add(a, f)
  o: f32[] = Neg(b)
  r: f32[2] = Mul(e, z)
  out b
  out o
  out r
}
out last
out sums
out rows
)";

TEST(ControlFlow, AGraphHasTheBodyOfALongScanOnce) {
  const Prepared scan(kLongScan);
  const auto of = [](int64_t n) {
    std::vector<Array> inputs{{Shape(), {1}}, row({10}), {Shape{n, 2}, {}}, {Shape{n}, {}}};
    for (int64_t i = 0; i < n; ++i) {
      inputs[2].values.insert(inputs[2].values.end(), {float(i % 7), float(i)});
      inputs[3].values.push_back(float(i % 3));
    }
    return inputs;
  };
  EXPECT_EQ(scan.run(of(3), 1),
            (std::vector{Array{Shape(), {10}}, row({-10, -8, -5}), Array{Shape{3, 2}, {20, 20, 10, 10, 0, 0}}}));
  for (const int64_t n : {1, 2, 3, 50}) EXPECT_EQ(scan.replay(of(n)), scan.run(of(n), n > 2)) << n << " iterations";
  EXPECT_EQ(scan.nodes(of(3)), scan.nodes(of(50)));
}

TEST(ControlFlow, WhatIsCollectedKeepsItsShape) {
  try {
    run(R"(
in x: f32[n]
const two: i64 = 2
y: f32, all: f32 = Loop(two, _, x, x) body {
  in a: f32
  in outer x: f32[n]
  in host i: i64
  in host c: bool
  host d: bool = Identity(c)
  b: f32 = Concat(a, x) {axis = 0}
  e: f32 = Neg(b)
  out d
  out b
  out e
}  # "grows"
out y
out all
)",
        {row({1})});
    FAIL() << "it grows";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "Loop node 'grows': an output that is collected over the iterations has shape [2] in iteration 0 and [3] "
              "in iteration 1; it must keep its shape");
  }
}

// -x or 2x, by whether x is less than z.
constexpr const char* kIfByData = R"(
in x: f32[1]
in z: f32[1]
c: bool[1] = Less(x, z)
s: i64[1] = Shape(x)
y: f32[1] = If(c, x, s) then_branch {
  in outer x: f32[1]
  in host s: i64[1]
  host k: f32[1] = Cast(s) {to = 1}
  e: f32[1] = Neg(x)
  p: f32[1] = Mul(e, k)
  out p
} else_branch {
  in outer x: f32[1]
  in host s: i64[1]
  q: f32[1] = Add(x, x)
  out q
}
out y
)";

TEST(ControlFlow, DataDecidesBetweenBranches) {
  const Prepared program(kIfByData);
  for (const auto& [x, y] : {std::pair(1.f, -1.f), std::pair(5.f, 10.f)}) {
    EXPECT_EQ(program.run({row({x}), row({3})}, 1), std::vector{row({y})});
    EXPECT_EQ(program.replay({row({x}), row({3})}), std::vector{row({y})});
  }
}

TEST(ControlFlow, BranchesBetweenWhichDataDecidesMakeTheSameShape) {
  const Prepared program(R"(
in x: f32[n]
in z: f32[n]
in go: f32[1]
c: bool[1] = Less(go, go)
y: f32 = If(c, x, z) then_branch {
  in outer x: f32[n]
  in outer z: f32[n]
  p: f32 = Concat(x, z) {axis = 0}
  out p
} else_branch {
  in outer x: f32[n]
  in outer z: f32[n]
  q: f32[n] = Add(x, z)
  out q
}  # "choose"
out y
)");
  EXPECT_EQ(program.run({row({1}), row({2}), row({0})}, 1), std::vector{row({3})});
  try {
    program.replay({row({1}), row({2}), row({0})});
    FAIL() << "the shapes differ";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "If node 'choose': Add node '': output 0 has shape [2] in one branch and [1] in the other, between which "
              "data decides");
  }
}

// a + x as long as it is less than z, and i.
constexpr const char* kLoopByData = R"(
in x: f32[1]
in z: f32[1]
const most: i64 = 5
const first: i64[1] = [0]
begins: bool[1] = Less(x, z)
y: f32[1], n: i64[1], was: f32[1] = Loop(most, begins, x, first, x, x, z) body {
  by data
  in i: i64
  in c: bool
  in a: f32[1]
  in k: i64[1]
  in before: f32[1]
  in outer x: f32[1]
  in outer z: f32[1]
  const one: i64[1] = [1]
  b: f32[1] = Add(a, x)
  d: bool[1] = Less(b, z)
  l: i64[1] = Add(i, one)
  w: f32[1] = Identity(a)
  out d
  out b
  out l
  out w
}
m: f32[1] = Cast(n) {to = 1}
out y
out m
out was
)";

TEST(ControlFlow, DataDecidesHowOftenABodyRuns) {
  const Prepared program(kLoopByData);
  struct Case {
    float x, z, y, n, was;
  };
  for (const Case& one : {Case{2, 7, 8, 3, 6}, {1, 100, 6, 5, 5}, {3, 2, 3, 0, 3}, {2, 3, 4, 1, 2}}) {
    const std::vector<Array> inputs{row({one.x}), row({one.z})}, wanted{row({one.y}), row({one.n}), row({one.was})};
    EXPECT_EQ(program.run(inputs, int(one.n) + 1), wanted);
    EXPECT_EQ(program.replay(inputs), wanted);
  }
}

// As often as a constant says, by a graph that has the body once; what it collects is read behind.
constexpr const char* kCountedLoop = R"(
in x: f32[n]
const times: i64 = 3
y: f32[n], all: f32[?, n] = Loop(times, _, x, x) body {
  by data
  in i: i64
  in c: bool
  in a: f32[n]
  in outer x: f32[n]
  d: bool = Identity(c)
  b: f32[n] = Add(a, x)
  e: f32[n] = Neg(a)
  out d
  out b
  out e
}
z: f32[?, n] = Abs(all)
out y
out z
)";

TEST(ControlFlow, ACountedLoopCollectsAsMuchAsTheHostKnows) {
  const Prepared program(kCountedLoop);
  const std::vector<Array> inputs{row({1, -2})}, wanted{row({4, -8}), {Shape{3, 2}, {1, 2, 2, 4, 3, 6}}};
  EXPECT_EQ(program.run(inputs, 1), wanted);  // so that a graph is known to go another way
  EXPECT_EQ(program.replay(inputs), wanted);
  std::string none(kCountedLoop);
  none.replace(none.find("= 3"), 3, "= 0");
  const std::vector<Array> nothing{row({1, -2}), {Shape{0, 0}, {}}};
  EXPECT_EQ(Prepared(none).run(inputs), nothing);
  EXPECT_EQ(Prepared(none).replay(inputs), nothing);
}

// As often as x has elements, one by one up to twice; what is around it does so three times.
constexpr const char* kLongLoop = R"(
in x: f32[n]
const zero: i64 = 0
const times: i64 = 3
s: i64[1] = Shape(x)
host k: i64 = Gather(s, zero)
y: f32[n] = Loop(times, _, x, x, k) body {
  in u: f32[n]
  in outer x: f32[n]
  in host i: i64
  in host c: bool
  in host k: i64
  host d: bool = Identity(c)
  v: f32[n], all: f32[?, n] = Loop(k, _, u, x) body {
    in a: f32[n]
    in outer x: f32[n]
    in host i: i64
    in host c: bool
    host d: bool = Identity(c)
    f: f32 = Cast(i) {to = 1}
    e: f32[n] = Add(a, f)
    b: f32[n] = Add(e, x)
    g: f32[n] = Neg(b)
    out d
    out b
    out g
  } body {
    by data beyond 6
    in i: i64
    in c: bool
    in a: f32[n]
    in outer x: f32[n]
    d: bool = Identity(c)
    f: f32 = Cast(i) {to = 1}
    e: f32[n] = Add(a, f)
    b: f32[n] = Add(e, x)
    g: f32[n] = Neg(b)
    out d
    out b
    out g
  }
  const first: i64[1] = [0]
  t: f32[n] = ReduceSum(all, first) {keepdims = 0}
  w: f32[n] = Add(v, t)
  out d
  out w
}
out y
)";

TEST(ControlFlow, ALongLoopHasItsBodyOnce) {
  const Prepared program(kLongLoop);
  const auto expected = [](std::vector<float> x) {
    std::vector<float> y = x;
    for (int outer = 0; outer < 3; ++outer)
      for (size_t e = 0; e < x.size(); ++e) {
        float a = y[e], sum = 0;
        for (size_t i = 0; i < x.size(); ++i) a += float(i) + x[e], sum -= a;
        y[e] = a + sum;
      }
    return std::vector{row(y)};
  };
  for (const std::vector<float>& x : {std::vector<float>{5}, {1, 2}, {3, 1, -2}}) {
    EXPECT_EQ(program.run({row(x)}, x.size() > 2 ? 3 : 0), expected(x));
    EXPECT_EQ(program.replay({row(x)}), expected(x));
  }
}

// A row that keeps what there was, for as long as its sum is less than z, and four times at the most.
constexpr const char* kGrowingLoop = R"(
in x: f32[n]
in z: f32
const most: i64 = 4
y: f32, row: f32[?] = Loop(most, _, z, x, z) body {
  by data beyond 4
  in i: i64
  in c: bool
  in was: f32
  in a: f32[n]
  in outer z: f32
  b: f32[m] = Concat(a, a) {axis = 0}
  s: f32 = ReduceSum(b) {keepdims = 0}
  d: bool = Less(s, z)
  out d
  out s
  out b
}  # "grows"
out y
)";

TEST(ControlFlow, ValuesGrowInALoopOfFewIterations) {
  std::string text(kGrowingLoop);
  const Prepared program(text);
  const auto inputs = [](float z) { return std::vector{row({1}), Array{Shape(), {z}}}; };
  try {
    program.replay(inputs(3));
    FAIL() << "nothing has told that it grows";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("Loop node 'grows': Concat node '': the loop's value 'a' begins with"),
              0u);
  }
  EXPECT_EQ(program.run(inputs(3), 3), (std::vector{Array{Shape(), {4}}}));
  for (const auto& [z, y] : {std::pair(3.f, 4.f), {1.f, 2.f}, {100.f, 16.f}, {0.f, 2.f}})
    EXPECT_EQ(program.replay(inputs(z)), (std::vector{Array{Shape(), {y}}}));
  text.replace(text.find("beyond 4"), 8, "beyond 3");
  const Prepared longer(text);
  longer.run(inputs(3), 3);
  EXPECT_THROW(longer.replay(inputs(3)), Error);
}

TEST(ControlFlow, WhatDataCollectsHasNoRoomWhereNobodyFetchesIt) {
  std::string text(kCountedLoop);
  text.replace(text.find("Identity(c)"), 11, "Less(i, i)");
  text.resize(text.find("z: "));
  text += "out y\nout all\n";
  EXPECT_EQ(Prepared(text).run({row({1})}, 2), (std::vector{row({2}), Array{Shape{1, 1}, {-1}}}));
  try {
    Prepared(text).replay({row({1})});
    FAIL() << "data decides";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::capture_forbidden);
  }
}

TEST(ControlFlow, APlanByDataIsReadAsItIsWritten) {
  for (const char* const written : {kLoopByData, kLongLoop}) {
    const std::string text = text_of(plan_from(written));
    EXPECT_NE(text.find(written == kLongLoop ? "by data beyond 6" : "by data"), std::string::npos);
    EXPECT_EQ(text_of(plan_from(text)), text);
  }
}

}  // namespace
}  // namespace encore::fuse::tests
