// Capture and replay. What is legal during a capture stands in capture_rules_test.cu.
#include "device/graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "device/label.h"
#include "kernels.h"

namespace encore::device::tests {
namespace {

Graph captured(StreamRef stream, auto work) {
  begin_capture(stream, CaptureMode::thread_local_);
  work();
  return end_capture(stream);
}

TEST(Graph, CaptureRunsNothing) {
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>{1, 2, 3});
  Graph graph = captured(stream, [&] { for_each_index(stream, 3, AddTo{x.data(), 1}); });
  EXPECT_TRUE(graph);
  EXPECT_EQ(graph.size(), 1u);
  EXPECT_EQ(x.download(stream), (std::vector<int>{1, 2, 3}));
}

TEST(Graph, ReplaysWithNewContents) {
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>(1000, 0)), y(1000);
  Graph graph = captured(stream, [&] {
    copy(stream, y.data(), x.data(), 4000);
    for_each_index(stream, 1000, MultiplyBy{y.data(), 3});
    for_each_index(stream, 1000, AddTo{y.data(), 1});
    fill(stream, y.data(), 0, 4);
  });
  GraphExec exec = graph.instantiate();
  exec.upload(stream);
  for (int value : {5, 6, -7}) {
    x.upload(stream, std::vector<int>(1000, value));
    exec.launch(stream);
    std::vector<int> expected(1000, value * 3 + 1);
    expected[0] = 0;
    EXPECT_EQ(y.download(stream), expected);
  }
}

TEST(Graph, FillsWhatAFillWould) {
  Stream stream(0);
  constexpr int kSize = (1 << 20) + 200;
  DeviceArray<unsigned char> x(kSize);
  struct Part {
    int from, bytes;
  };
  const Part parts[] = {{0, 1}, {3, 2}, {7, 30}, {48, 16}, {65, 47}, {127, 1 << 20}, {kSize - 5, 5}};
  Graph graph = captured(stream, [&] {
    unsigned char value = 0xf1;
    for (const Part& part : parts) fill(stream, x.data() + part.from, value++, size_t(part.bytes));
  });
  EXPECT_EQ(graph.size(), std::size(parts));
  GraphExec exec = graph.instantiate();
  for (const unsigned char before : {1, 2}) {
    std::vector<unsigned char> expected(kSize, before);
    x.upload(stream, expected);
    exec.launch(stream);
    unsigned char value = 0xf1;
    for (const Part& part : parts) std::fill_n(expected.begin() + part.from, part.bytes, value++);
    EXPECT_EQ(x.download(stream), expected);
  }
}

TEST(Graph, ListsItsNodes) {
  Stream stream(0);
  DeviceArray<int> x(4), y(4);
  Graph graph = captured(stream, [&] {
    Label outer("Add_7");
    for_each_index(stream, 4, AddTo{x.data(), 1});
    {
      Label inner("Copy_8");
      copy(stream, y.data(), x.data(), 16);
    }
    for_each_index(stream, 4, MultiplyBy{x.data(), 1});
    Label last("Fill_9");
    fill(stream, x.data(), 0, 16);
  });
  const std::vector<GraphNode> nodes = graph.nodes();
  ASSERT_EQ(nodes.size(), 4u);
  EXPECT_EQ(graph.size(), 4u);
  EXPECT_EQ(nodes[0].kind, NodeKind::kernel);
  EXPECT_NE(nodes[0].name.find("AddTo"), std::string::npos) << nodes[0].name;
  EXPECT_EQ(nodes[0].label, "Add_7");
  EXPECT_EQ(nodes[1].kind, NodeKind::copy);
  EXPECT_EQ(nodes[1].name, "");
  EXPECT_EQ(nodes[1].label, "Copy_8");
  EXPECT_NE(nodes[2].name.find("MultiplyBy"), std::string::npos) << nodes[2].name;
  EXPECT_EQ(nodes[2].label, "Add_7");
  EXPECT_EQ(nodes[3].kind, NodeKind::fill);
  EXPECT_EQ(nodes[3].label, "Fill_9");
}

TEST(Graph, RecordsEventsAtLaunches) {
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>(1000, 0));
  Event begin(0, Timing::on), between(0, Timing::on), end(0, Timing::on), before(0, Timing::on), after(0, Timing::on);
  Graph graph = captured(stream, [&] {
    begin.ref().record_at_launch(stream);
    for_each_index(stream, 1000, AddTo{x.data(), 1});
    between.ref().record_at_launch(stream);
    fill(stream, x.data(), 0, 4);
    for_each_index(stream, 1000, AddTo{x.data(), 1});
    end.ref().record_at_launch(stream);
  });
  EXPECT_EQ(std::ranges::count(graph.nodes(), NodeKind::event, &GraphNode::kind), 3);
  EXPECT_EQ(graph.nodes().at(0).kind, NodeKind::event);
  EXPECT_EQ(graph.nodes().at(2).kind, NodeKind::event);
  EXPECT_ERROR(elapsed_us(begin, end), Code::invalid_input);  // a capture records nothing
  const GraphExec exec = graph.instantiate();
  EXPECT_TRUE(begin.done());
  double last = 0;
  for (int launch = 1; launch <= 3; ++launch) {
    before.record(stream);
    exec.launch(stream);
    after.record(stream);
    after.synchronize();
    const double first_part = elapsed_us(begin, between).value(), second_part = elapsed_us(between, end).value();
    EXPECT_GT(first_part, 0);
    EXPECT_GT(second_part, 0);
    EXPECT_NEAR(elapsed_us(begin, end).value(), first_part + second_part, 2);
    EXPECT_GE(elapsed_us(before, begin).value(), 0);
    EXPECT_GE(elapsed_us(end, after).value(), 0);
    if (launch > 1) EXPECT_GT(elapsed_us(before, end).value(), 0);
    last = elapsed_us(begin, end).value();
  }
  EXPECT_GT(last, 0);
  EXPECT_EQ(x.download(stream)[1], 6);
}

TEST(Graph, KeepsCopiesOfLabels) {
  Stream stream(0);
  DeviceArray<int> x(4);
  std::string name = "a name that is longer than any short string";
  Graph graph = captured(stream, [&] {
    Label label(name.c_str());
    for_each_index(stream, 4, AddTo{x.data(), 1});
  });
  EXPECT_EQ(graph.nodes().at(0).label, name);
}

TEST(Graph, ForksAndJoins) {
  Stream stream(0), left(0), right(0);
  constexpr int kSize = 5000;
  DeviceArray<int> x(std::vector<int>(kSize, 0)), a(kSize), b(kSize);
  Event start(0), left_done(0), right_done(0);
  Graph graph = captured(stream, [&] {
    for_each_index(stream, kSize, AddTo{x.data(), 1});
    start.record(stream);
    left.ref().wait(start);
    right.ref().wait(start);
    EXPECT_EQ(left.ref().capture_status(), CaptureStatus::active);
    for_each_index(left, kSize, CopyTo{a.data(), x.data()});
    for_each_index(right, kSize, CopyTo{b.data(), x.data()});
    for_each_index(left, kSize, MultiplyBy{a.data(), 2});
    for_each_index(right, kSize, MultiplyBy{b.data(), 3});
    left_done.record(left);
    right_done.record(right);
    stream.ref().wait(left_done);
    stream.ref().wait(right_done);
    for_each_index(stream, kSize, CopyTo{x.data(), b.data()});
  });
  EXPECT_EQ(left.ref().capture_status(), CaptureStatus::none);
  EXPECT_EQ(graph.size(), 6u);
  EXPECT_EQ(std::ranges::count(graph.nodes(), NodeKind::kernel, &GraphNode::kind), 6);
  GraphExec exec = graph.instantiate();
  for (int i = 0; i < 3; ++i) exec.launch(stream);
  // x: 1 → 3 → (3+1)*3=12 → 39; a is twice the x of the last replay.
  EXPECT_EQ(x.download(stream), std::vector<int>(kSize, 39));
  EXPECT_EQ(a.download(stream), std::vector<int>(kSize, 26));
  // The forks are ordinary streams again.
  for_each_index(left, kSize, AddTo{a.data(), 1});
  EXPECT_EQ(a.download(left), std::vector<int>(kSize, 27));
}

// On two streams without any order between them: 2x + 1 tells overlapping launches from one after the other.
TEST(Graph, LaunchesOfOneNeverOverlap) {
  Stream capturing(0), first(0), second(0);
  DeviceArray<int> x(std::vector<int>(100'000, 0));
  GraphExec exec = captured(capturing, [&] {
                     for_each_index(capturing, 100'000, MultiplyBy{x.data(), 2});
                     for_each_index(capturing, 100'000, AddTo{x.data(), 1});
                   }).instantiate();
  for (int i = 0; i < 20; ++i) exec.launch(i % 2 ? first : second);
  first.ref().synchronize();
  second.ref().synchronize();
  EXPECT_EQ(x.download(first), std::vector<int>(100'000, (1 << 20) - 1));
}

TEST(Graph, LivesInItsExecutable) {
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>{0});
  GraphExec exec;
  EXPECT_FALSE(exec);
  {
    Graph graph = captured(stream, [&] { for_each_index(stream, 1, AddTo{x.data(), 1}); });
    GraphExec other = graph.instantiate();
    exec = graph.instantiate();
    other.launch(stream);
  }
  exec.launch(stream);
  EXPECT_EQ(x.download(stream)[0], 2);
}

TEST(Graph, MayBeReleasedWhileItRuns) {
  Gate gate;
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>{0});
  gate.close(stream);
  {
    GraphExec exec = captured(stream, [&] { for_each_index(stream, 1, AddTo{x.data(), 1}); }).instantiate();
    exec.launch(stream);
  }
  gate.open();
  EXPECT_EQ(x.download(stream)[0], 1);
}

TEST(Graph, Moves) {
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>{0});
  Graph a = captured(stream, [&] { for_each_index(stream, 1, AddTo{x.data(), 1}); });
  Graph b(std::move(a));
  EXPECT_FALSE(a);
  EXPECT_EQ(b.size(), 1u);
  a = std::move(b);
  GraphExec exec = a.instantiate(), other;
  other = std::move(exec);
  EXPECT_TRUE(other);
  other.launch(stream);
  EXPECT_EQ(x.download(stream)[0], 1);
}

TEST(Graph, MayBeEmpty) {
  Stream stream(0);
  Graph graph = captured(stream, [] {});
  EXPECT_EQ(graph.size(), 0u);
  EXPECT_TRUE(graph.nodes().empty());
  GraphExec exec = graph.instantiate();
  exec.launch(stream);
  stream.ref().synchronize();
}

struct Settable {
  explicit Settable(StreamRef stream, const AddBlocks& body)
      : graph(captured(stream,
                       [&] {
                         block_kernel<NoShared>(stream, {1, 64}, body);
                         node = latest_kernel(stream);
                         for_each_index(stream, 64, MultiplyBy{body.y, 2});
                       })),
        exec(graph.instantiate()) {}
  KernelNode node;
  Graph graph;
  GraphExec exec;
};

TEST(Graph, KernelsGetOtherFunctors) {
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>(256, 1)), other(std::vector<int>(256, 10)), y(std::vector<int>(256, 0));
  const Settable graph(stream, {x.data(), y.data(), 3});
  graph.exec.launch(stream);
  EXPECT_EQ(y.download(stream)[0], 8);
  for (int value = 0; value < 3; ++value) {
    set_block_kernel<NoShared>(graph.exec, graph.node, {1, 64}, AddBlocks{other.data(), y.data(), value});
    for (int i = 0; i < 2; ++i) graph.exec.launch(stream);
    EXPECT_EQ(y.download(stream)[63], 2 * (10 + value));
  }
  set_block_kernel<NoShared>(graph.exec, graph.node, {4, 64}, AddBlocks{other.data(), y.data(), 5});
  graph.exec.launch(stream);
  std::vector<int> expected(256, 15);
  std::fill_n(expected.begin(), 64, 30);
  EXPECT_EQ(y.download(stream), expected);
  // Another executable has what was captured.
  graph.graph.instantiate().launch(stream);
  EXPECT_EQ(y.download(stream)[0], 8);
}

TEST(Graph, LaunchesUnderWayKeepTheirFunctors) {
  Gate gate;
  Stream stream(0);
  constexpr int kLaunches = 20;
  DeviceArray<int> x(std::vector<int>(64, 1)), y(std::vector<int>(64 * kLaunches, 0));
  const Settable graph(stream, {x.data(), y.data(), 0});
  graph.exec.launch(stream);  // so that it is there before the gate is closed
  stream.ref().synchronize();
  gate.close(stream);
  for (int i = 0; i < kLaunches; ++i) {
    set_block_kernel<NoShared>(graph.exec, graph.node, {1, 64}, AddBlocks{x.data(), y.data() + 64 * i, i});
    graph.exec.launch(stream);
  }
  gate.open();
  const std::vector<int> got = y.download(stream);
  for (int i = 1; i < kLaunches; ++i) EXPECT_EQ(got[size_t(64 * i)], i + 1);
  EXPECT_EQ(got[0], 1 << kLaunches);  // doubled by all, after the first two had set it
}

TEST(Graph, OnlyWhatWasCapturedLastIsAKernel) {
  Stream stream(0);
  DeviceArray<int> x(4);
  EXPECT_ERROR(latest_kernel(stream), Code::internal);
  begin_capture(stream, CaptureMode::thread_local_);
  EXPECT_ERROR(latest_kernel(stream), Code::internal);
  for_each_index(stream, 4, AddTo{x.data(), 1});
  latest_kernel(stream);
  copy(stream, x.data(), x.data() + 2, 4);
  EXPECT_ERROR(latest_kernel(stream), Code::internal);
  abandon_capture(stream);
}

TEST(Graph, AKernelHasToHaveBlocks) {
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>(64, 1)), y(std::vector<int>(64, 0));
  const Settable graph(stream, {x.data(), y.data(), 3});
  EXPECT_THROW(set_block_kernel<NoShared>(graph.exec, graph.node, {0, 64}, AddBlocks{x.data(), y.data(), 4}), Error);
  EXPECT_THROW(set_block_kernel<NoShared>(graph.exec, graph.node, {1, 63}, AddBlocks{x.data(), y.data(), 4}), Error);
  graph.exec.launch(stream);
  EXPECT_EQ(y.download(stream)[0], 8);
}

TEST(Graph, AllocatesItsOwnMemory) {
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>(100, 1));
  Graph graph = captured(stream, [&] {
    int* scratch = static_cast<int*>(allocate_async(stream, 400));
    for_each_index(stream, 100, CopyTo{scratch, x.data()});
    for_each_index(stream, 100, MultiplyBy{scratch, 2});
    for_each_index(stream, 100, CopyTo{x.data(), scratch});
    free_async(stream, scratch);
  });
  ASSERT_EQ(graph.size(), 5u);
  EXPECT_EQ(graph.nodes().front().kind, NodeKind::allocate);
  EXPECT_EQ(graph.nodes().back().kind, NodeKind::free);
  GraphExec exec = graph.instantiate();
  for (int i = 0; i < 3; ++i) exec.launch(stream);
  EXPECT_EQ(x.download(stream), std::vector<int>(100, 8));
}

// With thousands of nodes, as models have.
TEST(Graph, TakesManyNodes) {
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>(8, 0));
  Graph graph = captured(stream, [&] {
    for (int i = 0; i < 3000; ++i) for_each_index(stream, 8, AddTo{x.data(), 1});
  });
  EXPECT_EQ(graph.size(), 3000u);
  EXPECT_EQ(graph.nodes().size(), 3000u);
  GraphExec exec = graph.instantiate();
  exec.launch(stream);
  exec.launch(stream);
  EXPECT_EQ(x.download(stream), std::vector<int>(8, 6000));
}

TEST(Graph, CapturesInTwoThreadsDoNotMeet) {
  const auto work = [](int value) {
    Stream stream(0);
    PinnedArray<int> x(16, 0);
    for (int round = 0; round < 10; ++round) {
      GraphExec exec = captured(stream, [&] {
                         for (int i = 0; i < 20; ++i) for_each_index(stream, 16, AddTo{x.data(), value});
                       }).instantiate();
      exec.launch(stream);
      stream.ref().synchronize();
    }
    for (int i = 0; i < 16; ++i) EXPECT_EQ(x[size_t(i)], 200 * value);
  };
  std::thread other(work, 3);
  work(4);
  other.join();
}

TEST(Graph, AbandonedCaptureLeavesTheStreamUsable) {
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>{1});
  begin_capture(stream, CaptureMode::thread_local_);
  for_each_index(stream, 1, AddTo{x.data(), 1});
  abandon_capture(stream);
  EXPECT_EQ(stream.ref().capture_status(), CaptureStatus::none);
  EXPECT_EQ(x.download(stream)[0], 1);
  abandon_capture(stream);  // nothing to drop
  begin_capture(stream, CaptureMode::thread_local_);
  EXPECT_THROW(stream.ref().synchronize(), Error);
  EXPECT_EQ(stream.ref().capture_status(), CaptureStatus::invalidated);
  abandon_capture(stream);
  EXPECT_EQ(stream.ref().capture_status(), CaptureStatus::none);
  Graph graph = captured(stream, [&] { for_each_index(stream, 1, AddTo{x.data(), 1}); });
  graph.instantiate().launch(stream);
  EXPECT_EQ(x.download(stream)[0], 2);
}

}  // namespace
}  // namespace encore::device::tests
