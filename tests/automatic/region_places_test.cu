// Tensors that move from run to run, and streams that take turns.
#include "add_three.h"

namespace encore::automatic::tests {
namespace {

TEST_F(RegionGraphsTest, SmallTensorsMayMove) {
  std::vector<DeviceArray<float>> places;
  for (int i = 0; i < 20; ++i) places.emplace_back(size_t(1000), 0);
  for (int i = 0; i < 10; ++i) run(places[size_t(2 * i)], places[size_t(2 * i + 1)]);
  EXPECT_EQ(graphs.report().captures, 1);
  EXPECT_EQ(op.runs, 2);
}

TEST_F(RegionGraphsTest, SmallTensorsMayMoveLater) {
  DeviceArray<float> x(1000, 0), y(1000, 0), other_x(1000, 0), other_y(1000, 0);
  for (int i = 0; i < 3; ++i) run(x, y);
  for (int i = 0; i < 3; ++i) run(other_x, y);
  for (int i = 0; i < 3; ++i) run(x, other_y);
  for (int i = 0; i < 3; ++i) run(other_x, other_y);
  EXPECT_LE(graphs.report().captures, 3);
  EXPECT_EQ(graphs.report().graphs, 1u);
}

TEST_F(RegionGraphsTest, WhatStaysIsCopiedNoMore) {
  DeviceArray<float> x(100, 0), y(100, 0), other_x(100, 0), other_y(100, 0);
  for (int i = 0; i < 4; ++i) i % 2 ? run(other_x, other_y) : run(x, y);
  for (int i = 0; i < 40; ++i) run(x, y);
  const int64_t copied = graphs.report().staged, captures = graphs.report().captures;
  for (int i = 0; i < 10; ++i) run(x, y);
  EXPECT_EQ(graphs.report().staged, copied);
  // The graph that copies is still there for what is elsewhere.
  for (int i = 0; i < 10; ++i) i % 2 ? run(other_x, other_y) : run(x, y);
  EXPECT_EQ(graphs.report().staged, copied + 10);
  EXPECT_EQ(graphs.report().captures, captures);
}

TEST_F(RegionGraphsTest, LargeTensorsHaveAGraphForEachPlace) {
  auto places = large_places(3);
  for (int round = 0; round < 3; ++round) run(places[0], places[1]), run(places[1], places[2]);
  EXPECT_EQ(graphs.report().captures, 2);
  EXPECT_EQ(graphs.report().replays, 2);
  EXPECT_EQ(graphs.report().staged, 0);
  run(places[1], places[0]);
  EXPECT_EQ(graphs.report().refusal, "'y', of 4194308 bytes, is at a place that no graph has");
}

TEST_F(RegionGraphsTest, LargeTensorsAtManyPlacesAreCopied) {
  RegionGraphs graphs({"another", 15, {"x"}, {"y"}, {}}, op, store);
  auto places = large_places(10);
  const auto run = [&](size_t in, size_t out) {
    places[in].upload(stream, std::vector<float>(places[in].size(), float(++fed)));
    {
      OneRun run(*arena, stream, places[in], places[out]);
      graphs.run(run);
    }
    EXPECT_EQ(places[out].download(stream), std::vector<float>(places[out].size(), float(fed + 3)));
  };
  for (size_t i = 0; i < 20; ++i) run(i % 10, (i + 1) % 10);
  EXPECT_EQ(graphs.report().captures, 1);
  EXPECT_EQ(graphs.report().replays, 11);
  EXPECT_EQ(graphs.report().staged, 24);
  // Where they stay there is a graph without copies in the end, beside the other one.
  for (size_t i = 0; i < 20; ++i) run(0, 1);
  EXPECT_EQ(graphs.report().graphs, 2u);
  const int64_t copied = graphs.report().staged;
  run(0, 1);
  EXPECT_EQ(graphs.report().staged, copied);
  run(2, 3);
  EXPECT_EQ(graphs.report().staged, copied + 2);
  EXPECT_EQ(graphs.report().captures, 2);
}

TEST_F(RegionGraphsTest, FewNodesDoNotCopyLargeTensors) {
  RegionGraphs graphs({"another", 2, {"x"}, {"y"}, {}}, op, store);
  auto places = large_places(10);
  for (size_t i = 0; i < 20; ++i) {
    OneRun run(*arena, stream, places[i % 10], places[(i + 1) % 10]);
    graphs.run(run);
  }
  stream.ref().synchronize();
  EXPECT_EQ(graphs.report().captures, 0);
  EXPECT_EQ(graphs.report().moved, 19);
  EXPECT_EQ(graphs.report().refusal, "'x', of 4194308 bytes, is at a place that no graph has");
}

// Streams that take turns, each with tensors of its own.
class InTurn {
 public:
  InTurn(RegionGraphs& graphs, memory::Arena& arena, size_t count) : graphs_(graphs), arena_(arena) {
    for (size_t i = 0; i < count; ++i) {
      streams_.emplace_back(0), places_.emplace_back(100, 0);
      memory::enlist(streams_.back());
    }
  }
  ~InTurn() {
    for (const device::Stream& stream : streams_) memory::delist(stream);
  }
  // A run on each, somewhere else if `elsewhere` is another number.
  void run_each(size_t elsewhere = 0) {
    for (size_t i = 0; i < streams_.size(); ++i) {
      DeviceArray<float>& x = places_[(i + elsewhere) % places_.size()];
      x.upload(streams_[i], std::vector<float>(x.size(), float(++fed_)));
      {
        OneRun run(arena_, streams_[i], x, x);
        graphs_.run(run);
      }
      EXPECT_EQ(x.download(streams_[i]), std::vector<float>(x.size(), float(fed_ + 3)));
    }
  }

 private:
  RegionGraphs& graphs_;
  memory::Arena& arena_;
  std::vector<device::Stream> streams_;
  std::vector<DeviceArray<float>> places_;
  int fed_ = 0;
};

TEST_F(RegionGraphsTest, AnyNumberOfStreamsMayTakeTurns) {
  GraphStore store(0, arena, 64);
  RegionGraphs graphs({"another", 3, {"x"}, {"y"}, {}}, op, store);
  InTurn streams(graphs, *arena, 40);
  streams.run_each();
  EXPECT_EQ(graphs.report().moved, 39);
  EXPECT_EQ(graphs.report().refusal, "a stream has its first run with these shapes");
  for (int i = 0; i < 4; ++i) streams.run_each();
  EXPECT_EQ(graphs.report().captures, 40);
  EXPECT_EQ(graphs.report().replays, 3 * 40);
  store.give_back();
}

TEST_F(RegionGraphsTest, WhatStaysIsCopiedNoMoreThoughStreamsTakeTurns) {
  InTurn streams(graphs, *arena, 4);
  for (size_t i = 0; i < 4; ++i) streams.run_each(i);
  for (int i = 0; i < 20; ++i) streams.run_each();
  const int64_t copied = graphs.report().staged;
  EXPECT_GT(copied, 0);
  for (int i = 0; i < 5; ++i) streams.run_each();
  EXPECT_EQ(graphs.report().staged, copied);
  store.give_back();
}

TEST_F(RegionGraphsTest, WhatIsReadAndWrittenInOnePlaceAdvancesOnceARun) {
  DeviceArray<float> state(std::vector<float>(50, 0.f)), other(std::vector<float>(50, 100.f));
  const auto advance = [&](DeviceArray<float>& at) {
    OneRun run(*arena, stream, at, at);
    graphs.run(run);
  };
  for (int i = 0; i < 4; ++i) advance(state);
  EXPECT_EQ(state.download(stream), std::vector<float>(50, 12.f));
  for (int i = 0; i < 4; ++i) advance(other), advance(state);
  EXPECT_EQ(state.download(stream), std::vector<float>(50, 24.f));
  EXPECT_EQ(other.download(stream), std::vector<float>(50, 112.f));
}

}  // namespace
}  // namespace encore::automatic::tests
