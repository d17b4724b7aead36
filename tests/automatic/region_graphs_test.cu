#include "automatic/region_graphs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "add_three.h"
#include "device/device.h"
#include "graph/capture_gate.h"
#include "ops/room.h"
#ifndef ENCORE_CUDA
#include "device/virtual/control.h"
#endif

namespace encore::automatic::tests {
namespace {

// Its output comes from the arena, too.
class WholeRun final : public OneRun {
 public:
  WholeRun(memory::Arena& arena, device::StreamRef stream, DeviceArray<float>& x)
      : OneRun(arena, stream, x, x), made_by_(arena) {}
  ~WholeRun() override { made_by_.free(y_.data); }
  Tensor output(int, const Shape& shape) override {
    y_ = {Type::f32, ops::Where::device, shape, y_.data};
    if (!y_.data) y_.data = made_by_.allocate(y_.bytes(), stream());
    return y_;
  }
  std::vector<float> result() const {
    std::vector<float> values(size_t(y_.count()));
    device::copy(stream(), values.data(), y_.data, y_.bytes());
    stream().synchronize();
    return values;
  }

 private:
  memory::Arena& made_by_;
  Tensor y_;
};

// As many times x + 2 as it says, made where the scratch has been.
class Repeat final : public ops::Op {
 public:
  static constexpr int64_t kTimes = 6;
  void run(ops::Context& context) const override {
    const Tensor& x = context.input(0);
    const int64_t n = x.count();
    auto* const large = static_cast<float*>(context.scratch(size_t(kTimes) * x.bytes()));
    auto* const small = static_cast<float*>(context.scratch(x.bytes()));
    device::for_each_index(context.stream(), n, AddOne{x.as<float>(), large});
    device::for_each_index(context.stream(), n, AddOne{large, small});
    context.give_back(large);
    const Tensor y = context.output(0, Shape{kTimes * n});
    for (int64_t i = 0; i < kTimes; ++i) device::copy(context.stream(), y.as<float>() + i * n, small, x.bytes());
    context.give_back(small);
  }
};

TEST_F(RegionGraphsTest, WhatComesAgainIsCapturedAndThenReplayed) {
  DeviceArray<float> x(100, 0), y(100, 0);
  for (int i = 0; i < 5; ++i) run(x, y);
  EXPECT_EQ(op.runs, 2);
  EXPECT_EQ(graphs.report().first_runs, 1);
  EXPECT_EQ(graphs.report().captures, 1);
  EXPECT_EQ(graphs.report().replays, 3);
  EXPECT_EQ(graphs.report().graphs, 1u);
}

// Tells where tensors are, and counts who wants more.
class OutlinedRun final : public OneRun {
 public:
  OutlinedRun(memory::Arena& arena, device::StreamRef stream, DeviceArray<float>& x, DeviceArray<float>& y)
      : OneRun(arena, stream, x, y), dims_{int64_t(x.size())}, x_{x.data(), dims_}, y_(y.data()) {}
  OutlinedRun(const OutlinedRun&) = delete;
  const Tensor* find_input(int i) override {
    ++tensors;
    return OneRun::find_input(i);
  }
  Tensor output(int i, const Shape& shape) override {
    ++tensors;
    return OneRun::output(i, shape);
  }
  std::optional<Outline> find_outline(int) override { return x_; }
  void* output_address(int, const Shape&) override { return y_; }
  int tensors = 0;

 private:
  const std::array<int64_t, 1> dims_;
  const Outline x_;
  void* const y_;
};

TEST_F(RegionGraphsTest, AReplayAsksForNoTensors) {
  DeviceArray<float> x(100, 0), y(100, 0), few(3, 0), few_more(3, 0);
  const auto tensors_of = [&](DeviceArray<float>& in, DeviceArray<float>& out) {
    OutlinedRun run(*arena, stream, in, out);
    graphs.run(run);
    return run.tensors;
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_GT(tensors_of(x, y), 0);
    EXPECT_GT(tensors_of(few, few_more), 0);
  }
  for (int i = 0; i < 3; ++i) {
    x.upload(stream, std::vector<float>(100, float(i)));
    few.upload(stream, std::vector<float>(3, float(-i)));
    EXPECT_EQ(tensors_of(x, y), 0);
    EXPECT_EQ(tensors_of(few, few_more), 0);
    EXPECT_EQ(y.download(stream), std::vector<float>(100, float(i + 3)));
    EXPECT_EQ(few_more.download(stream), std::vector<float>(3, float(3 - i)));
  }
  EXPECT_EQ(graphs.report().replays, 6);
}

TEST_F(RegionGraphsTest, WhatTakesAsManyStepsAsLongLoopsDoIsLeftToGraphsInside) {
  op.more_blocks = 8192;
  DeviceArray<float> x(100, 0), y(100, 0);
  for (int i = 0; i < 5; ++i) run(x, y);
  EXPECT_EQ(op.runs, 5);
  EXPECT_EQ(op.planned_runs, 1);  // the first, of which this is not known yet
  EXPECT_EQ(graphs.report().captures, 0);
  EXPECT_EQ(graphs.report().refused, 4);
  EXPECT_NE(graphs.report().refusal, "");
}

TEST_F(RegionGraphsTest, EachShapeHasAGraph) {
  for (int round = 0; round < 3; ++round)
    for (int64_t count : {3, 300, 3000}) run(count);
  EXPECT_EQ(graphs.report().keys, 3u);
  EXPECT_EQ(graphs.report().captures, 3);
}

TEST_F(RegionGraphsTest, OnlyThoseAreKeptThatAreUsedMost) {
  for (int round = 0; round < 4; ++round)
    for (int64_t count = 1; count <= 200; ++count) run(count);
  EXPECT_EQ(graphs.report().graphs, 32u);
  EXPECT_EQ(graphs.report().captures, 32);
  for (int round = 0; round < 8; ++round)
    for (int64_t count = 150; count < 160; ++count) run(count);
  const int64_t before = graphs.report().captures;
  EXPECT_EQ(before, 42);
  for (int64_t count = 150; count < 160; ++count) run(count);
  EXPECT_EQ(graphs.report().captures, before);
  EXPECT_EQ(graphs.report().graphs, 32u);
}

TEST_F(RegionGraphsTest, NeverSeenAgainIsNeverCaptured) {
  for (int64_t count = 1; count <= 1500; ++count) run(count);
  EXPECT_EQ(graphs.report().captures, 0);
  EXPECT_LE(graphs.report().keys, 1024u);
}

TEST_F(RegionGraphsTest, WhatWaitsForTheHostIsNotCaptured) {
  op.reads_back = true;
  DeviceArray<float> x(10, 0), y(10, 0);
  for (int i = 0; i < 4; ++i) run(x, y);
  EXPECT_EQ(graphs.report().captures, 0);
  EXPECT_THAT(graphs.report().refusal, testing::HasSubstr("the host has to wait"));
  EXPECT_EQ(op.read, float(fed) + 2);
}

TEST_F(RegionGraphsTest, WhatNeedsOtherScratchIsRecordedAgain) {
  DeviceArray<float> x(10, 0), y(10, 0);
  op.more_scratch = 5000;  // as where a first run looks for algorithms
  run(x, y);
  op.more_scratch = 0;
  for (int i = 0; i < 40; ++i) run(x, y);
  EXPECT_EQ(graphs.report().captures, 1);
  EXPECT_GE(graphs.report().replays, 10);
}

TEST_F(RegionGraphsTest, HeldCapturesAreDoneWithout) {
  DeviceArray<float> x(10, 0), y(10, 0);
  run(x, y);
  graph::capture_gate::hold();
  for (int i = 0; i < 3; ++i) run(x, y);
  EXPECT_EQ(graphs.report().captures, 0);
  graph::capture_gate::let_go();
  for (int i = 0; i < 40; ++i) run(x, y);
  EXPECT_EQ(graphs.report().captures, 1);
}

TEST_F(RegionGraphsTest, WhatTheApplicationCapturesHasEachRun) {
  DeviceArray<float> x(std::vector<float>(100, 1)), y(100, 0);
  for (int i = 0; i < 3; ++i) run(x, y);
  device::begin_capture(stream, device::CaptureMode::relaxed);
  {
    OneRun run(*arena, stream, x, y);
    graphs.run(run);
  }
  const device::GraphExec exec = device::end_capture(stream).instantiate();
  x.upload(stream, std::vector<float>(100, 41));
  exec.launch(stream);
  EXPECT_EQ(y.download(stream), std::vector<float>(100, 44));
  EXPECT_EQ(graphs.report().in_captures, 1);
  run(x, y);
}

// Has no memory for its output ahead.
class LateRun final : public OneRun {
 public:
  using OneRun::OneRun;
  void* output_address(int, const Shape&) override { fail(Code::out_of_memory, "not yet"); }
};

TEST_F(RegionGraphsTest, WhatIsNotToBeHadAheadIsToldAndDoneWithout) {
  DeviceArray<float> x(std::vector<float>(100, 1)), y(100, 0);
  for (int i = 0; i < 3; ++i) {
    LateRun run(*arena, stream, x, y);
    graphs.run(run);
    EXPECT_EQ(y.download(stream), std::vector<float>(100, 4));
  }
  EXPECT_EQ(graphs.report().refused, 2);
  EXPECT_EQ(graphs.report().refusal, "not yet");
}

#ifndef ENCORE_CUDA
// Launches fail until it ends.
struct FailingLaunches {
  explicit FailingLaunches(int count) { device::virtual_gpu::set_failing_launches(count); }
  ~FailingLaunches() { device::virtual_gpu::set_failing_launches(0); }
};

TEST_F(RegionGraphsTest, WhereAFirstLaunchFailsTheRunIsEager) {
  DeviceArray<float> x(10, 0), y(10, 0);
  run(x, y);
  {
    const FailingLaunches failing(1);
    run(x, y);
  }
  EXPECT_EQ(graphs.report().graphs, 0u);
  EXPECT_EQ(graphs.report().refused, 1);
  EXPECT_THAT(graphs.report().refusal, testing::HasSubstr("launches of graphs are to fail"));
  for (int i = 0; i < 40; ++i) run(x, y);
  EXPECT_EQ(graphs.report().captures, 2);
  EXPECT_GE(graphs.report().replays, 20);
}

TEST_F(RegionGraphsTest, WhereALaterLaunchOrACopyFailsTheRunIsEager) {
  DeviceArray<float> x(10, 0), y(10, 0), other_x(10, 0), other_y(10, 0);
  for (int i = 0; i < 4; ++i) i % 2 ? run(other_x, other_y) : run(x, y);
  EXPECT_EQ(graphs.report().replays, 2);
  const int64_t copied = graphs.report().staged;
  {
    const FailingLaunches failing(1);  // a kernel that is set, since tensors are elsewhere
    run(x, y);
  }
  EXPECT_EQ(graphs.report().graphs, 0u);
  EXPECT_EQ(graphs.report().replays, 2);
  EXPECT_EQ(graphs.report().staged, copied);
  EXPECT_EQ(graphs.report().refused, 1);
  run(x, y);
}

TEST_F(RegionGraphsTest, WhereTheDeviceIsLostTheRunFails) {
  DeviceArray<float> x(10, 0), y(10, 0);
  for (int i = 0; i < 3; ++i) run(x, y);
  const int devices = device::count(), runs = op.runs;
  {
    const FailingLaunches failing(1);
    OneRun run(*arena, stream, x, y);
    device::virtual_gpu::set_device_count(0);
    EXPECT_THROW(graphs.run(run), Error);
    device::virtual_gpu::set_device_count(devices);
  }
  EXPECT_EQ(op.runs, runs);
}
#endif

TEST_F(RegionGraphsTest, MemoryIsFlat) {
  for (int64_t count = 1; count <= 30; ++count)
    for (int i = 0; i < 3; ++i) run(count * 1000);
  const size_t held = arena->stats().held_bytes;
  for (int round = 0; round < 20; ++round)
    for (int64_t count = 1; count <= 30; ++count) run(count * 1000);
  EXPECT_EQ(arena->stats().held_bytes, held);
}

// An arena with a limit, and graphs.
struct Limited {
  explicit Limited(memory::Settings settings) : arena(std::make_shared<memory::Arena>(0, settings, "the test")) {
    arena->add(store);
  }
  std::shared_ptr<memory::Arena> arena;
  std::shared_ptr<GraphStore> store = std::make_shared<GraphStore>(0, arena, 32);
};

TEST_F(RegionGraphsTest, WhereLargeTensorsCannotBeCopiedOtherGraphsStay) {
  const Limited limited({.max_bytes = 24 * kMib});
  RegionGraphs graphs({"another", 15, {"x"}, {"y"}, {}}, op, *limited.store),
      small({"a small one", 3, {"x"}, {"y"}, {}}, op, *limited.store);
  DeviceArray<float> x(100, 0), y(100, 0);
  auto places = large_places(10);
  const auto run = [&](RegionGraphs& graphs, DeviceArray<float>& x, DeviceArray<float>& y) {
    OneRun run(*limited.arena, stream, x, y);
    graphs.run(run);
  };
  for (int i = 0; i < 3; ++i) run(small, x, y);
  void* const held = limited.arena->allocate(10 * kMib, stream);
  for (size_t i = 0; i < 20; ++i) run(graphs, places[i % 10], places[(i + 1) % 10]);
  EXPECT_EQ(graphs.report().captures, 0);
  EXPECT_GT(graphs.report().crowded, 0);
  EXPECT_THAT(graphs.report().refusal, testing::HasSubstr("no room (gpu_mem_limit)"));
  EXPECT_EQ(small.report().graphs, 1u);
  limited.arena->free(held);
  run(graphs, places[0], places[1]);
  EXPECT_EQ(graphs.report().captures, 1);
  stream.ref().synchronize();
}

TEST_F(RegionGraphsTest, WhereMemoryRunsOutGraphsGiveItBack) {
  const Limited limited({.max_bytes = 4 * kMib});
  RegionGraphs graphs({"another", 3, {"x"}, {"y"}, {}}, op, *limited.store);
  DeviceArray<float> x(250000, 0), y(250000, 0);
  for (int i = 0; i < 3; ++i) {
    OneRun run(*limited.arena, stream, x, y);
    graphs.run(run);
  }
  EXPECT_EQ(graphs.report().graphs, 1u);
  void* const large = limited.arena->allocate(4 * kMib, stream);
  EXPECT_EQ(graphs.report().graphs, 0u);
  limited.arena->free(large);
  for (int i = 0; i < 3; ++i) {
    OneRun run(*limited.arena, stream, x, y);
    graphs.run(run);
  }
  EXPECT_EQ(graphs.report().graphs, 0u);  // not at once
  stream.ref().synchronize();
}

TEST_F(RegionGraphsTest, WhatGraphsGiveBackHasNoneOfARunsBlocksBesideIt) {
  const Limited limited({.max_bytes = 8 * kMib, .grow_by_doubling = false});
  limited.arena->free(limited.arena->allocate(2 * kMib, stream));
  RegionGraphs graphs({"another", 3, {"x"}, {"y"}, {}}, op, *limited.store);
  DeviceArray<float> x(kMib / 8), y(kMib / 8);
  for (int i = 0; i < 3; ++i) {
    OneRun run(*limited.arena, stream, x, y);
    graphs.run(run);
  }
  EXPECT_EQ(graphs.report().graphs, 1u);
  std::vector<void*> blocks;
  for (size_t mib : {2, 1, 5}) blocks.push_back(limited.arena->allocate(mib * kMib, stream));
  EXPECT_EQ(graphs.report().graphs, 0u);
  for (void* block : blocks) limited.arena->free(block);
}

TEST_F(RegionGraphsTest, ScratchThatIsNotToBeHadInOnePieceIsTakenInSeveral) {
  for (const size_t most_graphs : {0, 32}) {
    const Limited limited({.max_bytes = 8 * kMib, .first_chunk_bytes = 8 * kMib});
    GraphStore store(0, limited.arena, most_graphs);
    RegionGraphs graphs({"another", 3, {"x"}, {"y"}, {}}, op, store);
    std::vector<void*> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(limited.arena->allocate(kMib, stream));
    for (int i : {0, 1, 2, 4, 5, 6, 7}) limited.arena->free(blocks[size_t(i)]);
    DeviceArray<float> x(std::vector<float>(3 * kMib / 4, 1)), y(3 * kMib / 4);
    for (int i = 0; i < 5; ++i) {
      OneRun run(*limited.arena, stream, x, y);
      graphs.run(run);
    }
    EXPECT_EQ(y.download(stream), std::vector<float>(y.size(), 4));
    limited.arena->free(blocks[3]);
  }
}

TEST_F(RegionGraphsTest, OutputsAreNotMadeAheadWhereScratchIsAllThereIs) {
  for (const size_t limit : {7 * kMib, 14 * kMib}) {
    const Limited limited({.max_bytes = limit, .grow_by_doubling = false});
    const Repeat repeat;
    RegionGraphs graphs({"another", 3, {"x"}, {"y"}, {}}, repeat, *limited.store);
    DeviceArray<float> x(std::vector<float>(kMib / 4, 1));
    for (int i = 0; i < 6; ++i) {
      WholeRun run(*limited.arena, stream, x);
      graphs.run(run);
      EXPECT_EQ(run.result(), std::vector<float>(6 * kMib / 4, 3)) << limit << " bytes, run " << i;
    }
    EXPECT_EQ(graphs.report().graphs, limit > 13 * kMib ? 1u : 0u) << graphs.report().refusal;
  }
}

// Graphs that may hold so many bytes.
class BoundedGraphsTest : public RegionGraphsTest {
 protected:
  ~BoundedGraphsTest() override { bounded.stream_is_gone(stream); }
  void run(int64_t count, int times = 1) {
    DeviceArray<float> x(std::vector<float>(size_t(count), 1)), y(static_cast<size_t>(count), 0);
    for (int i = 0; i < times; ++i) {
      OneRun run(*arena, stream, x, y);
      few.run(run);
    }
    EXPECT_EQ(y.download(stream), std::vector<float>(size_t(count), 4));
  }
  size_t graphs_of(int64_t count) {
    for (const ShapesReport& shapes : few.report().shapes)
      if (shapes.inputs.at(0).second.at(0) == count) return shapes.graphs;
    return 0;
  }
  size_t held_bytes() {
    const HeldReport held = bounded.held();
    return held.workspace_bytes + held.node_bytes;
  }

  static constexpr size_t kMost = 2 * kMib;
  GraphStore bounded{0, arena, 1000, kMost};
  RegionGraphs few{{"a bounded one", 3, {"x"}, {"y"}, {}}, op, bounded};
};

TEST_F(BoundedGraphsTest, NodesCount) {
  for (int round = 0; round < 3; ++round)
    for (int64_t count = 1; count <= 200; ++count) run(count);
  const HeldReport held = bounded.held();
  EXPECT_EQ(held.limit_bytes, kMost);
  EXPECT_EQ(held.graphs, few.report().graphs);
  EXPECT_GT(held.graphs, 20u);
  EXPECT_LT(held.graphs, 200u);
  EXPECT_GE(held.node_bytes, held.graphs * 3 * kBytesOfNode);
  EXPECT_LE(held_bytes(), kMost);
  EXPECT_GT(few.report().crowded, 0);
  EXPECT_THAT(few.report().refusal, testing::HasSubstr("(auto_graph_mem_limit)"));
}

TEST_F(BoundedGraphsTest, WhatWouldNeedMoreIsRunWithoutGraphs) {
  const int64_t large = kMib / 4, small = 100;  // two blocks of scratch each
  for (int i = 0; i < 3; ++i) run(small), run(large);
  EXPECT_EQ(graphs_of(small), 1u);
  EXPECT_EQ(graphs_of(large), 0u);
  EXPECT_THAT(few.report().refusal, testing::HasSubstr("(auto_graph_mem_limit)"));
}

TEST_F(BoundedGraphsTest, AWorkspaceGoesWithTheLastGraphThatNeedsIt) {
  const int64_t one = 3 * kMib / 32, more = 7 * kMib / 32;
  run(one, 3);
  EXPECT_EQ(graphs_of(one), 1u);
  const size_t before = held_bytes();
  run(more, 9);  // more often than the other one
  EXPECT_EQ(graphs_of(one), 0u);
  EXPECT_EQ(graphs_of(more), 1u);
  EXPECT_LE(held_bytes(), kMost);
  EXPECT_GT(held_bytes() + before, kMost);  // both would be too much
}

TEST_F(BoundedGraphsTest, EachSetOfShapesTellsWhatItNeeds) {
  run(1000, 3);
  run(3000, 3);
  const std::vector<ShapesReport> told = few.report().shapes;
  ASSERT_EQ(told.size(), 2u);
  for (size_t i : {0, 1}) {
    EXPECT_EQ(told[i].inputs, (std::vector<std::pair<std::string, std::vector<int64_t>>>{{"x", {i ? 3000 : 1000}}}));
    EXPECT_EQ(told[i].scratch_bytes, i ? 24064u : 8192u);  // two blocks in whole units
    EXPECT_EQ(told[i].workspace_bytes, told[i].scratch_bytes);
    EXPECT_EQ(told[i].graphs, 1u);
    EXPECT_EQ(told[i].graph_nodes, 3u);
  }
  EXPECT_EQ(few.report().scratch_bytes, 24064u);
  EXPECT_EQ(bounded.held().node_bytes, 6 * kBytesOfNode);
  EXPECT_GE(bounded.held().workspace_bytes, 24064u);
}

TEST_F(RegionGraphsTest, NothingIsLeftWhenTheStreamGoes) {
  DeviceArray<float> x(10, 0), y(10, 0);
  for (int i = 0; i < 3; ++i) run(x, y);
  store.stream_is_gone(stream);
  EXPECT_EQ(graphs.report().graphs, 0u);
  EXPECT_EQ(arena->stats().in_use_bytes, 0u);
}

}  // namespace
}  // namespace encore::automatic::tests
