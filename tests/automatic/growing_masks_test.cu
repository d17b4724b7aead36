#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "automatic/region_graphs.h"
#include "memory/streams.h"
#include "one_run.h"

namespace encore::automatic::tests {
namespace {

struct SumOfRow {
  const int64_t* mask;
  int64_t *y, length;
  DEVICE_FN void operator()(int64_t row) const {
    int64_t sum = 0;
    for (int64_t i = 0; i < length; ++i) sum += mask[row * length + i];
    y[row] = sum;
  }
};

// A mask of integers, summed up; and what there is room for.
class SumOfMask final : public ops::Op {
 public:
  void run(ops::Context& context) const override {
    ++runs;
    const Tensor& mask = context.input(0);
    lengths.insert(mask.shape[1]);
    const Tensor y = context.output(0, Shape{mask.shape[0]});
    device::for_each_index(context.stream(), mask.shape[0],
                           SumOfRow{mask.as<int64_t>(), y.as<int64_t>(), mask.shape[1]});
  }
  mutable int runs = 0;
  mutable std::set<int64_t> lengths;
};

class MaskRun final : public OneRun {
 public:
  MaskRun(memory::Arena& arena, device::StreamRef stream, DeviceArray<int64_t>& mask, DeviceArray<int64_t>& y,
          int64_t rows, int64_t room)
      : OneRun(arena, stream),
        mask_{Type::i64, ops::Where::device, Shape{rows, int64_t(mask.size()) / rows}, mask.data()},
        cache_{Type::f32, ops::Where::device, Shape{rows, room, 0}, nullptr},
        y_(y.data()) {}
  int input_count() const override { return 2; }
  const Tensor* find_input(int i) override { return i == 0 ? &mask_ : &cache_; }
  Tensor output(int, const Shape& shape) override { return {Type::i64, ops::Where::device, shape, y_}; }

 private:
  Tensor mask_, cache_;
  int64_t* y_;
};

class GrowingMasks : public testing::Test {
 protected:
  GrowingMasks() { memory::enlist(stream); }
  ~GrowingMasks() override {
    store.stream_is_gone(stream);
    memory::delist(stream);
  }
  // In places of its own, or where another one was.
  void run(int64_t length, int64_t rows = 1, int64_t room = 1 << 20, bool moves = true) {
    if (moves || !y_ || y_->size() != size_t(rows)) y_ = std::make_unique<DeviceArray<int64_t>>(size_t(rows), 0);
    std::vector<int64_t> ones(size_t(length * rows), 1);
    for (int64_t row = 0; row < rows; ++row) ones[size_t(row * length)] = 10 + row;
    auto mask = std::make_unique<DeviceArray<int64_t>>(ones);
    {
      MaskRun run(*arena, stream, *mask, *y_, rows, room);
      graphs.run(run);
    }
    std::vector<int64_t> expected;
    for (int64_t row = 0; row < rows; ++row) expected.push_back(length + 9 + row);
    EXPECT_EQ(y_->download(stream), expected) << length;
    used_.push_back(std::move(mask));
  }

  std::shared_ptr<memory::Arena> arena = std::make_shared<memory::Arena>(0, memory::Settings{}, "the test");
  device::Stream stream{0};
  GraphStore store{0, arena, 32};
  SumOfMask op;
  RegionGraphs graphs{{"the region", 3, {"mask", "cache"}, {"y"}, {{"total", {{0, 1}}, 1000, {{1, 1}}}}}, op, store};

 private:
  std::unique_ptr<DeviceArray<int64_t>> y_;
  std::vector<std::unique_ptr<DeviceArray<int64_t>>> used_;  // so that the next are elsewhere
};

TEST_F(GrowingMasks, FewGraphsAreOfAllLengths) {
  for (int64_t length = 5; length < 300; ++length) run(length);
  EXPECT_EQ(op.lengths, (std::set<int64_t>{5, 256, 512}));
  const RegionReport report = graphs.report();
  EXPECT_EQ(report.keys, 3u);
  EXPECT_EQ(report.captures, 2);
  EXPECT_EQ(report.first_runs, 3);
  EXPECT_EQ(report.replays, 295 - 3 - 2);
  EXPECT_EQ(report.grown, 294);
  EXPECT_EQ(report.lengths, (std::map<std::string, std::set<int64_t>>{{"total", {256, 512}}}));
  EXPECT_EQ(report.changing, (std::set<std::string>{"mask[1]"}));
}

TEST_F(GrowingMasks, OneThatStaysIsAsLongAsItIs) {
  for (int i = 0; i < 5; ++i) run(5);
  EXPECT_EQ(op.lengths, (std::set<int64_t>{5}));
  EXPECT_EQ(graphs.report().grown, 0);
}

TEST_F(GrowingMasks, AreNoLongerThanThereIsRoom) {
  for (int64_t length : {5, 6, 299, 300, 301, 302}) run(length, 1, 300);
  EXPECT_EQ(op.lengths, (std::set<int64_t>{5, 256, 300, 301, 302}));
  for (int64_t length : {600, 1000, 1001}) run(length);
  EXPECT_EQ(op.lengths, (std::set<int64_t>{5, 256, 300, 301, 302, 1000, 1001}));
}

TEST_F(GrowingMasks, OfMoreThanOneRow) {
  for (int64_t length = 5; length < 40; ++length)
    for (int64_t rows : {1, 3, 30}) run(length, rows);
  EXPECT_EQ(op.lengths, (std::set<int64_t>{5, 256}));
  EXPECT_EQ(graphs.report().captures, 3);
}

// What would be much more than there is becomes less than twice as much.
TEST_F(GrowingMasks, OfManyRows) {
  for (int64_t length = 5; length < 40; ++length) run(length, 100);
  EXPECT_EQ(op.lengths, (std::set<int64_t>{5, 8, 16, 32, 64}));
  for (int64_t length : {300, 301}) run(length, 2000);  // too much to be copied in each run
  EXPECT_EQ(op.lengths, (std::set<int64_t>{5, 8, 16, 32, 64, 300, 301}));
}

// A mask is copied anyway; what else is copied stops when it stays.
TEST_F(GrowingMasks, WhatElseStaysIsCopiedNoMore) {
  for (int64_t length = 5; length < 10; ++length) run(length);
  for (int64_t length = 10; length < 60; ++length) run(length, 1, 1 << 20, false);
  const int64_t copied = graphs.report().staged, captures = graphs.report().captures;
  for (int64_t length = 60; length < 70; ++length) run(length, 1, 1 << 20, false);
  EXPECT_EQ(graphs.report().staged, copied + 10);
  EXPECT_EQ(graphs.report().captures, captures);
  EXPECT_EQ(captures, 2);
}

// A graph from before a mask was seen to grow is for what has that length by itself.
TEST_F(GrowingMasks, TheFirstLengthMayBeOneOfThose) {
  for (int i = 0; i < 4; ++i) run(256);
  for (int64_t length : {257, 256, 200, 201, 256, 202, 256}) run(length);
  EXPECT_EQ(op.lengths, (std::set<int64_t>{256, 512}));
  EXPECT_EQ(graphs.report().captures, 2);
}

// Of two dimensions of a mask one grows.
TEST_F(GrowingMasks, AlongOneAxis) {
  RegionGraphs graphs({"the region", 3, {"mask", "cache"}, {"y"}, {{"rows", {{0, 0}}}, {"total", {{0, 1}}}}}, op,
                      store);
  for (int64_t size : {5, 6, 7, 8, 9}) {
    DeviceArray<int64_t> mask(std::vector<int64_t>(size_t(size * size), 1)), y(256, 0);
    MaskRun run(*arena, stream, mask, y, size, 0);
    graphs.run(run);
    std::vector<int64_t> sums = y.download(stream);
    sums.resize(size_t(size));
    EXPECT_EQ(sums, std::vector<int64_t>(size_t(size), size));
  }
  EXPECT_EQ(graphs.report().lengths, (std::map<std::string, std::set<int64_t>>{{"rows", {256}}}));
}

// Prompts, all of which is new, are as long as they are.
TEST_F(GrowingMasks, WhereAllIsNewTheyStay) {
  RegionGraphs graphs({"the region", 3, {"mask", "cache"}, {"y"}, {{"total", {{0, 1}}, 1000, {}, 7}}}, op, store);
  for (int64_t length : {5, 6, 7, 8, 9, 10}) {
    DeviceArray<int64_t> mask(std::vector<int64_t>(size_t(length), 1)), y(1, 0);
    MaskRun run(*arena, stream, mask, y, 1, 0);
    graphs.run(run);
    EXPECT_EQ(y.download(stream), std::vector<int64_t>{length});
  }
  EXPECT_EQ(op.lengths, (std::set<int64_t>{5, 6, 7, 8, 256}));
}

}  // namespace
}  // namespace encore::automatic::tests
