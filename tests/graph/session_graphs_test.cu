#include "graph/session_graphs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "device/label.h"
#include "model.h"

namespace encore::graph {
namespace {

using namespace encore::test;
using testing::HasSubstr;

TEST(SessionGraphs, warms_up_captures_and_replays) {
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 2});
  Model model(graphs);
  for (int warm_up = 0; warm_up < 2; ++warm_up) {
    model.set_input(float(warm_up));
    EXPECT_FALSE(graphs.is_captured(0));
    EXPECT_TRUE(model.run(0));
    EXPECT_EQ(graphs.reports()[0].state, State::warming_up);
    EXPECT_EQ(model.output(), model.expected(float(warm_up)));
  }
  model.set_input(5);
  graphs.begin_run(0);
  EXPECT_TRUE(graphs.capturing());
  EXPECT_TRUE(graphs.in_run());
  EXPECT_EQ(graphs.reports()[0].state, State::capturing);
  model.compute();
  EXPECT_TRUE(graphs.end_run(true));
  EXPECT_FALSE(graphs.capturing());
  EXPECT_FALSE(graphs.in_run());
  EXPECT_TRUE(graphs.is_captured(0));
  EXPECT_EQ(model.output(), model.expected(5)) << "the capture's own run has outputs too";
  for (float input : {6.f, 7.f}) {
    model.set_input(input);
    graphs.replay(0);
    graphs.synchronize();
    EXPECT_EQ(model.output(), model.expected(input));
  }
  const Report report = graphs.reports()[0];
  EXPECT_EQ(report.state, State::ready);
  EXPECT_STREQ(name(report.state), "ready");
  EXPECT_EQ(report.nodes, 3u);
  EXPECT_EQ(report.replays, 2);
  EXPECT_GT(report.held_bytes, 0u);
  const auto nodes = graphs.nodes(0);
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[1].label, "Add_1");
  EXPECT_THAT(nodes[1].name, HasSubstr("Add"));
}

TEST(SessionGraphs, captures_at_once_without_warm_ups) {
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0});
  Model model(graphs);
  model.set_input(1);
  EXPECT_TRUE(model.run(0));
  EXPECT_TRUE(graphs.is_captured(0));
  EXPECT_EQ(model.output(), model.expected(1));
}

TEST(SessionGraphs, keeps_ids_apart) {
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 1});
  Model one(graphs), two(graphs);
  one.set_input(1);
  two.set_input(2);
  EXPECT_TRUE(one.run(7));
  EXPECT_TRUE(one.run(7));
  EXPECT_TRUE(graphs.is_captured(7));
  EXPECT_FALSE(graphs.is_captured(8));
  EXPECT_TRUE(two.run(8));
  EXPECT_FALSE(graphs.is_captured(8)) << "each id warms up for itself";
  EXPECT_TRUE(two.run(8));
  one.set_input(10);
  two.set_input(20);
  graphs.replay(8);
  graphs.replay(7);
  EXPECT_EQ(one.output(), one.expected(10));
  EXPECT_EQ(two.output(), two.expected(20));
  EXPECT_EQ(graphs.reports().size(), 2u);
}

TEST(SessionGraphs, runs_eagerly_where_told_to) {
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0});
  Model model(graphs);
  EXPECT_TRUE(graphs.enabled());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(model.run(kEagerId));
  EXPECT_FALSE(graphs.captures_latest());
  EXPECT_FALSE(graphs.is_captured(kEagerId));
  EXPECT_TRUE(graphs.reports().empty());

  SessionGraphs off(0, {.warm_ups = 0});
  Model other(off);
  other.set_input(3);
  EXPECT_FALSE(off.enabled());
  EXPECT_TRUE(other.run(0));
  EXPECT_TRUE(other.run(0));
  EXPECT_FALSE(off.is_captured(0));
  EXPECT_EQ(other.output(), other.expected(3));
}

TEST(SessionGraphs, counts_only_warm_ups_that_succeeded) {
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 1});
  Model model(graphs);
  graphs.begin_run(0);
  EXPECT_TRUE(graphs.end_run(false));
  EXPECT_TRUE(model.run(0));
  EXPECT_FALSE(graphs.is_captured(0));
  EXPECT_TRUE(model.run(0));
  EXPECT_TRUE(graphs.is_captured(0));
}

TEST(SessionGraphs, captures_again_after_a_run_that_failed_by_itself) {
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 1});
  Model model(graphs);
  model.set_input(1);
  EXPECT_TRUE(model.run(0));
  graphs.begin_run(0);
  EXPECT_TRUE(graphs.capturing());
  EXPECT_TRUE(graphs.end_run(false));
  EXPECT_FALSE(graphs.capturing());
  EXPECT_FALSE(graphs.is_captured(0));
  EXPECT_TRUE(model.run(0));
  EXPECT_TRUE(graphs.is_captured(0));
  EXPECT_EQ(model.output(), model.expected(1));
}

TEST(SessionGraphs, keeps_a_graphs_memory_from_everybody) {
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 1});
  Model model(graphs);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(model.run(0));
  for (int round = 0; round < 20; ++round) {
    // Whatever can be had is overwritten, by the graph's stream and by others.
    EnlistedStream other;
    std::vector<void*> blocks;
    for (int i = 0; i < 20; ++i) {
      for (device::StreamRef stream : {graphs.stream(), device::StreamRef(other)}) {
        auto* block = static_cast<float*>(model.arena().allocate(Model::kBytes, stream));
        device::for_each_index(stream, Model::kCount, Fill{block, -1e30f});
        blocks.push_back(block);
      }
    }
    model.set_input(float(round));
    graphs.replay(0);
    for (void* block : blocks) model.arena().free(block);
    EXPECT_EQ(model.output(), model.expected(float(round)));
  }
}

TEST(SessionGraphs, sizes_the_graphs_memory_by_its_warm_ups) {
  std::vector<std::string> warnings;
  SessionGraphs graphs(
      0, {.enabled = true, .warm_ups = 1, .warn = [&](const std::string& why) { warnings.push_back(why); }});
  Model model(graphs);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(model.run(0));
  EXPECT_TRUE(graphs.is_captured(0));
  EXPECT_THAT(warnings, testing::IsEmpty());
  EXPECT_EQ(model.arena().stats().driver_allocations_in_capture, 0);
  EXPECT_LE(graphs.reports()[0].held_bytes, 2 * Model::kBytes + 2 * Model::kBytes / 4);
}

TEST(SessionGraphs, warns_once_of_memory_that_no_warm_up_used) {
  std::vector<std::string> warnings;
  SessionGraphs graphs(
      0, {.enabled = true, .warm_ups = 1, .warn = [&](const std::string& why) { warnings.push_back(why); }});
  Model model(graphs);
  EXPECT_TRUE(model.run(4));
  graphs.begin_run(4);
  {
    device::Label label("Conv_9");
    std::vector<void*> blocks;
    for (int i = 0; i < 20; ++i) blocks.push_back(model.arena().allocate(100 << 10, graphs.stream()));
    for (void* block : blocks) model.arena().free(block);
  }
  model.compute();
  EXPECT_TRUE(graphs.end_run(true));
  EXPECT_THAT(warnings, testing::ElementsAre(testing::AllOf(HasSubstr("graph id 4"), HasSubstr("node Conv_9"))));
  EXPECT_GT(model.arena().stats().driver_allocations_in_capture, 0);
  model.set_input(3);
  graphs.replay(4);
  EXPECT_EQ(model.output(), model.expected(3));
}

TEST(SessionGraphs, releases_and_captures_again) {
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0});
  Model model(graphs);
  size_t held = 0;
  for (int cycle = 0; cycle < 1000; ++cycle) {
    model.set_input(float(cycle));
    ASSERT_TRUE(model.run(0));
    graphs.replay(0);
    graphs.release(0);
    ASSERT_FALSE(graphs.is_captured(0));
    if (cycle == 0) held = model.arena().stats().held_bytes;
    ASSERT_EQ(model.arena().stats().held_bytes, held);
  }
  EXPECT_EQ(model.output(), model.expected(999));
  graphs.release(0);
  graphs.release(123);
  EXPECT_THAT(message_of([&] { graphs.replay(0); }, Code::invalid_input), HasSubstr("graph id 0 cannot be replayed"));
}

TEST(SessionGraphs, frees_memory_after_the_last_launch) {
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0});
  Model model(graphs);
  model.set_input(1);
  EXPECT_TRUE(model.run(0));
  model.set_input(2);
  Gate gate;
  gate.hold(graphs.stream());
  graphs.replay(0);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    gate.open();
  });
  graphs.release(0);
  opener.join();
  EXPECT_EQ(model.output(), model.expected(2));
}

TEST(SessionGraphs, gives_everything_back_at_the_end) {
  auto arena = std::make_unique<memory::Arena>(0, memory::Settings{.grow_by_doubling = false}, "test");
  {
    SessionGraphs graphs(0, {.enabled = true, .warm_ups = 1});
    Model model(graphs, *arena);
    for (int id = 0; id < 3; ++id)
      for (int i = 0; i < 2; ++i) EXPECT_TRUE(model.run(id));
  }
  arena->shrink();
  EXPECT_EQ(arena->stats().held_bytes, 0u);
}

// Of this process; sanitizers keep what is freed.
size_t resident_bytes() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 0;
#else
  size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * 4096;
#endif
}

TEST(SessionGraphs, captures_and_releases_without_growth) {
  constexpr size_t kSlack = size_t(4) << 20;
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0});
  Model model(graphs);
  const auto capture_and_release = [&](int times) {
    for (int i = 0; i < times; ++i) {
      ASSERT_TRUE(model.run(i % 3));
      graphs.release(i % 3);
    }
    graphs.synchronize();
  };
  capture_and_release(100);
  const size_t held = model.arena().stats().held_bytes, free = device::memory_info(0).free_bytes;
  const size_t host = resident_bytes();
  capture_and_release(1000);
  EXPECT_EQ(model.arena().stats().held_bytes, held);
  EXPECT_EQ(model.arena().stats().graph_bytes, 0u);
  EXPECT_GE(device::memory_info(0).free_bytes + kSlack, free);
  EXPECT_LE(resident_bytes(), host + kSlack);
}

TEST(SessionGraphs, replays_without_waiting) {
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0});
  Model model(graphs);
  EXPECT_TRUE(model.run(0));
  model.set_input(2);
  Gate gate;
  gate.hold(graphs.stream());
  for (int i = 0; i < 10; ++i) graphs.replay(0);  // hangs if one waits
  gate.open();
  graphs.synchronize();
  EXPECT_EQ(model.output(), model.expected(2));
}

TEST(SessionGraphs, keeps_sessions_apart) {
  SessionGraphs one(0, {.enabled = true, .warm_ups = 0}), two(0, {.enabled = true, .warm_ups = 0});
  Model a(one), b(two);
  EXPECT_TRUE(a.run(0));
  EXPECT_FALSE(two.is_captured(0));
  EXPECT_TRUE(b.run(0));
  EXPECT_FALSE(one.stream() == two.stream());
  one.release(0);
  EXPECT_TRUE(two.is_captured(0));
  b.set_input(4);
  two.replay(0);
  EXPECT_EQ(b.output(), b.expected(4));
}

}  // namespace
}  // namespace encore::graph
