// Graphs of what data decides: one of two ways, as long as it says, and as much as comes out.
#include "automatic/region_graphs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "device/conditional.h"
#include "graph/capture_gate.h"
#include "memory/streams.h"
#include "one_run.h"
#include "ops/room.h"

namespace encore::automatic::tests {
namespace {

struct IsNegative {
  const float* x;
  bool* is;
  DEVICE_FN void operator()(int64_t) const { *is = *x < 0; }
};

// y = x + 1, or x + 2 by way of scratch if its first element is negative: as the device says.
class OneOfTwo final : public ops::Op {
 public:
  void run(ops::Context& context) const override {
    ++runs;
    const Tensor& x = context.input(0);
    auto* const is_negative = static_cast<bool*>(context.scratch(sizeof(bool)));
    device::for_each_index(context.stream(), 1, IsNegative{x.as<float>(), is_negative});
    const auto by_scratch = [&](device::StreamRef on) {
      auto* const between = static_cast<float*>(context.scratch(x.bytes()));
      device::for_each_index(on, x.count(), AddOne{x.as<float>(), between});
      device::for_each_index(on, x.count(), AddOne{between, result(context, x.shape)});
      context.give_back(between);
    };
    const auto directly = [&](device::StreamRef on) {
      const Shape shape = shortens ? Shape{x.count() - 1} : x.shape;
      device::for_each_index(on, shape.count(), AddOne{x.as<float>(), result(context, shape)});
    };
    if (context.stream().capture_status() != device::CaptureStatus::none)
      return device::capture_if(context.stream(), is_negative, by_scratch, directly);
    bool decided = false;
    context.read_back(&decided, is_negative, sizeof decided);
    decided ? by_scratch(context.stream()) : directly(context.stream());
  }
  mutable int runs = 0;
  bool shortens = false;

 private:
  static float* result(ops::Context& context, const Shape& shape) { return context.output(0, shape).as<float>(); }
};

class ByDataTest : public testing::Test {
 protected:
  ByDataTest() { memory::enlist(stream); }
  ~ByDataTest() override {
    store.stream_is_gone(stream);
    memory::delist(stream);
  }
  std::vector<float> run(float first) {
    x.upload(stream, {first, 5, 6});
    {
      OneRun run(*arena, stream, x, y);
      graphs.run(run);
    }
    return y.download(stream);
  }
  std::vector<float> wanted(float first) const {
    const float more = first < 0 ? 2 : 1;
    return {first + more, 5 + more, 6 + more};
  }

  std::shared_ptr<memory::Arena> arena = std::make_shared<memory::Arena>(0, memory::Settings{}, "the test");
  device::Stream stream{0};
  DeviceArray<float> x{3}, y{std::vector<float>(3)};
  GraphStore store{0, arena, 32};
  OneOfTwo op;
  RegionGraphs graphs{{"the op", 1, {"x"}, {"y"}, {}}, op, store};
};

TEST_F(ByDataTest, OneGraphHasAllWays) {
  for (float first : {1.f, 2.f, -3.f, 4.f, -5.f, -6.f}) EXPECT_EQ(run(first), wanted(first)) << first;
  EXPECT_EQ(op.runs, 3);  // a first one, a rehearsal and a capture
  const RegionReport report = graphs.report();
  EXPECT_EQ(report.first_runs, 1);
  EXPECT_EQ(report.captures, 1);
  EXPECT_EQ(report.replays, 4);
  EXPECT_EQ(report.eager(), 0);
  EXPECT_EQ(report.scratch_bytes, 512u);  // the first run, which took less, does not count
}

TEST_F(ByDataTest, WaysThatMakeOtherShapesAreNotCaptured) {
  op.shortens = true;
  for (float first : {1.f, -2.f, 3.f, -4.f, -5.f, 6.f}) {
    std::vector<float> expected = wanted(first);
    if (first > 0) expected[2] = 0;
    y.upload(stream, {0, 0, 0});
    EXPECT_EQ(run(first), expected) << first;
  }
  EXPECT_EQ(graphs.report().captures, 0);
  EXPECT_EQ(graphs.report().refused, 5);
  EXPECT_THAT(graphs.report().refusal, testing::HasSubstr("the shape of an output depends on data"));
}

TEST_F(ByDataTest, ARehearsalWaitsUntilCapturesGoOn) {
  EXPECT_EQ(run(1), wanted(1));
  graph::capture_gate::hold();
  for (float first : {-1.f, 2.f}) EXPECT_EQ(run(first), wanted(first));
  graph::capture_gate::let_go();
  for (int i = 0; i < 40; ++i) EXPECT_EQ(run(i % 2 ? -1 : 1), wanted(i % 2 ? -1 : 1));
  EXPECT_EQ(graphs.report().captures, 1);
  EXPECT_GT(graphs.report().replays, 10);
}

struct Fill {
  const float* x;
  float* parts;
  int64_t* count;
  int64_t room;
  // As many as x says, each of which is its number.
  DEVICE_FN void operator()(int64_t i) const {
    if (i < int64_t(*x)) parts[i] = float(i);
    if (i == 0) *count = int64_t(*x) <= room ? int64_t(*x) : -1;
  }
};

// Its output is as long as x says.
class AsLongAs final : public ops::Op {
 public:
  void run(ops::Context& context) const override {
    ++runs;
    const float* const x = context.input(0).as<float>();
    int64_t count = 0;
    if (context.stream().capture_status() != device::CaptureStatus::none) {
      const ops::Room room = ops::room_in(context, 0, {{}, Shape{0, 7}, most});
      count = room.parts.count();
      device::for_each_index(context.stream(), count, Fill{x, room.parts.as<float>(), room.count, count});
    } else {
      float read = 0;
      context.read_back(&read, x, sizeof read);
      count = int64_t(read);
      auto* const told = static_cast<int64_t*>(context.scratch(sizeof(int64_t)));
      const Tensor to = context.output(0, count ? Shape{count} : Shape{0, 7});
      device::for_each_index(context.stream(), count, Fill{x, to.as<float>(), told, count});
    }
  }
  mutable int runs = 0;
  int64_t most = std::numeric_limits<int64_t>::max();
};

class CollectedTest : public testing::Test {
 protected:
  CollectedTest() { memory::enlist(stream); }
  ~CollectedTest() override {
    store.stream_is_gone(stream);
    memory::delist(stream);
  }
  class GrownRun final : public OneRun {
   public:
    using OneRun::OneRun;
    Tensor output(int i, const Shape& shape) override {
      made = shape;
      return OneRun::output(i, shape);
    }
    Shape made;
  };
  Shape run(float count, DeviceArray<float>& to) {
    to.upload(stream, std::vector<float>(to.size(), -1));
    x.upload(stream, {count});
    GrownRun run(*arena, stream, x, to);
    graphs.run(run);
    std::vector<float> wanted(to.size(), -1);
    std::iota(wanted.begin(), wanted.begin() + int(count), 0.f);
    if (&to != &x) EXPECT_EQ(to.download(stream), wanted);
    return run.made;
  }

  std::shared_ptr<memory::Arena> arena = std::make_shared<memory::Arena>(0, memory::Settings{}, "the test");
  device::Stream stream{0};
  DeviceArray<float> x{1}, y{std::vector<float>(100)}, z{std::vector<float>(100)};
  GraphStore store{0, arena, 32};
  AsLongAs op;
  RegionGraphs graphs{{"the op", 1, {"x"}, {"y"}, {}}, op, store};
};

TEST_F(CollectedTest, AsMuchComesOutAsThereIs) {
  for (const float count : {3.f, 5.f, 16.f, 1.f, 7.f}) EXPECT_EQ(run(count, y), Shape{int64_t(count)});
  EXPECT_EQ(run(0, y), (Shape{0, 7}));
  EXPECT_EQ(run(4, z), Shape{4});
  EXPECT_EQ(op.runs, 3);  // a first one, a rehearsal and a capture
  EXPECT_EQ(graphs.report().captures, 1);
  EXPECT_EQ(graphs.report().replays, 5);
}

TEST_F(CollectedTest, ARunThatLacksRoomIsDoneAgainAndTheNextOnesHaveIt) {
  for (const float count : {3.f, 5.f, 17.f, 32.f, 1.f, 32.f}) EXPECT_EQ(run(count, y), Shape{int64_t(count)});
  EXPECT_EQ(graphs.report().first_runs, 2);
  EXPECT_EQ(graphs.report().captures, 2);
  EXPECT_EQ(graphs.report().graphs, 1u);
  for (const float count : {33.f, 64.f, 64.f}) EXPECT_EQ(run(count, y), Shape{int64_t(count)});
  EXPECT_EQ(graphs.report().first_runs, 3);
  EXPECT_EQ(graphs.report().captures, 3);
}

TEST_F(CollectedTest, NoRunLacksRoomIfTheHostKnowsHowMuchThereIsAtMost) {
  op.most = 40;
  for (const float count : {3.f, 5.f, 40.f, 17.f, 0.f}) run(count, y);
  EXPECT_EQ(graphs.report().first_runs, 1);
  EXPECT_EQ(graphs.report().captures, 1);
}

TEST_F(CollectedTest, RunsMayBeginWithNone) {
  EXPECT_EQ(run(0, y), (Shape{0, 7}));
  for (const float count : {3.f, 16.f, 2.f}) EXPECT_EQ(run(count, y), Shape{int64_t(count)});
  EXPECT_EQ(graphs.report().first_runs, 1);
  EXPECT_EQ(graphs.report().captures, 1);
}

}  // namespace
}  // namespace encore::automatic::tests
