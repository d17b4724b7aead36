#include "graph/shared_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "device/trace.h"
#include "graph/session_graphs.h"
#include "model.h"

namespace encore::graph {
namespace {

using namespace encore::test;
using ::testing::HasSubstr;

// Captures and replays in a thread of its own; everything that it does outside of runs is in turn.
void run_in_turn(SharedStream& shared, SessionGraphs& graphs, memory::Arena& arena, int ids, int rounds, float base) {
  std::vector<std::unique_ptr<Model>> models;
  {
    const auto turn = shared.turn();
    for (int id = 0; id < ids; ++id) models.push_back(std::make_unique<Model>(graphs, arena));
  }
  for (int round = 0; round < rounds; ++round) {
    const int id = round % ids;
    Model& model = *models[size_t(id)];
    const float input = base + float(round);
    {
      const auto turn = shared.turn();
      model.set_input(input);
    }
    model.run_or_replay(round % 5 == 4 ? kEagerId : id);
    const auto turn = shared.turn();
    EXPECT_EQ(model.output(), model.expected(input));
  }
  for (const Report& report : graphs.reports()) {
    if (report.id == kEagerId) continue;
    EXPECT_EQ(report.state, State::ready);
    EXPECT_EQ(report.nodes, 3u) << "of this thread alone";
  }
  const auto turn = shared.turn();
  models.clear();
}

#ifdef ENCORE_VIRTUAL
TEST(SharedStream, marks_turns_only_for_other_threads) {
  const SharedStream shared(0);
  const auto marks = [&] {
    shared.ref().synchronize();
    device::start_trace();
    for (int i = 0; i < 3; ++i) shared.turn();
    shared.ref().synchronize();
    return std::ranges::count(device::stop_trace(), device::Traced::record, &device::TraceEntry::what);
  };
  EXPECT_EQ(marks(), 0);
  std::thread([&] { shared.turn(); }).join();
  EXPECT_EQ(marks(), 3);
}
#endif

TEST(SharedStream, threads_of_a_session_take_turns) {
  memory::Arena arena(0, {}, "test");
  SharedStream shared(0);
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 1, .shared = &shared});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] { run_in_turn(shared, graphs, arena, 2, 15, float(t * 100)); });
  for (auto& thread : threads) thread.join();
}

TEST(SharedStream, keeps_others_out_of_a_capture) {
  SharedStream shared(0);
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0, .shared = &shared});
  Model mine(graphs), others(graphs);
  std::atomic<bool> started{false}, done{false};
  graphs.begin_run(0);
  std::thread other([&] {
    started = true;
    EXPECT_TRUE(others.run(kEagerId));
    done = true;
  });
  while (!started) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(done);
  mine.compute();
  EXPECT_TRUE(graphs.end_run(true));
  other.join();
  EXPECT_EQ(graphs.nodes(0).size(), 3u);
}

// Whoever waits may hold what the run that has the turn needs to go on, such as Python's lock.
TEST(SharedStream, is_waited_for_while_another_thread_has_its_turn) {
  SharedStream shared(0);
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0, .shared = &shared});
  Model mine(graphs), others(graphs);
  std::thread([&] { EXPECT_TRUE(others.run(kEagerId)); }).join();
  for (const int id : {0, kEagerId}) {
    Gate gate;
    {
      const auto turn = shared.turn();
      gate.hold(shared.ref());
      mine.set_input(float(id));
    }
    EXPECT_TRUE(mine.run(kEagerId));
    std::atomic<bool> in_run{false}, waited{false};
    std::thread other([&] {
      graphs.begin_run(id);  // id 0 captures
      in_run = true;
      while (!waited) std::this_thread::yield();
      others.compute();
      EXPECT_TRUE(graphs.end_run(true));
    });
    while (!in_run) std::this_thread::yield();
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      gate.open();
    });
    shared.wait();
    const device::Stream apart(0);
    EXPECT_EQ(mine.output(apart), mine.expected(float(id)));
    waited = true;
    opener.join();
    other.join();
  }
}

TEST(SharedStream, sessions_on_one_stream_of_the_application_take_turns) {
  const device::Stream stream(0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      memory::Arena arena(0, {}, "test");
      SharedStream shared(stream.ref());
      SessionGraphs graphs(0, {.enabled = true, .warm_ups = 1, .shared = &shared});
      run_in_turn(shared, graphs, arena, 2, 15, float(t * 100));
    });
  }
  for (auto& thread : threads) thread.join();
  stream.ref().synchronize();  // it is still there
}

TEST(SharedStream, is_where_everything_runs) {
  const device::Stream stream(0);
  SharedStream shared(stream.ref());
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0, .shared = &shared});
  EXPECT_EQ(graphs.stream(), stream.ref());
  std::thread([&] { EXPECT_EQ(graphs.stream(), stream.ref()); }).join();
}

TEST(SharedStream, that_the_application_captures_is_refused_and_left_alone) {
  const device::Stream stream(0);
  SharedStream shared(stream.ref());
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0, .shared = &shared});
  Model model(graphs);
  EXPECT_TRUE(model.run(0));
  device::begin_capture(stream, device::CaptureMode::thread_local_);
  for (auto use : {+[](SessionGraphs& g) { g.begin_run(1); }, +[](SessionGraphs& g) { g.begin_run(kEagerId); },
                   +[](SessionGraphs& g) { g.replay(0); }}) {
    try {
      use(graphs);
      FAIL() << "it was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::capture_forbidden);
      EXPECT_THAT(error.what(), HasSubstr("user_compute_stream"));
    }
  }
  EXPECT_EQ(device::end_capture(stream).size(), 0u);
  model.set_input(4);
  graphs.replay(0);
  EXPECT_EQ(model.output(), model.expected(4));
}

TEST(SharedStream, has_no_turn_left_over_after_runs_that_fail_or_nest) {
  SharedStream shared(0);
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0, .shared = &shared});
  graphs.begin_run(kEagerId);
  graphs.begin_run(kEagerId);  // a node runs the session again
  graphs.end_run(true);
  graphs.end_run(true);
  graphs.end_run(true);  // one that began nowhere
  graphs.begin_run(0);
  graphs.begin_run(0);  // while it captures
  graphs.end_run(true);
  EXPECT_THROW(graphs.end_run(true), Error);
  graphs.begin_run(0);  // and its end is not told
  EXPECT_TRUE(graphs.is_captured_at_begin(0));
  shared.begin_run();
  shared.end_run();
  shared.end_run();
  std::thread([&] { const auto turn = shared.turn(); }).join();  // hangs if one was kept
}

TEST(SharedStream, keeps_its_turn_when_a_run_of_another_session_within_it_ends_twice) {
  const device::Stream stream(0);
  SharedStream of_outer(stream.ref()), of_inner(stream.ref());
  SessionGraphs outer(0, {.enabled = true, .warm_ups = 0, .shared = &of_outer});
  SessionGraphs inner(0, {.enabled = true, .warm_ups = 0, .shared = &of_inner});
  Model within(inner);
  outer.begin_run(kEagerId);
  EXPECT_TRUE(within.run(kEagerId));  // as an application's allocator or logger may
  EXPECT_TRUE(inner.end_run(true));   // which onnxruntime tells once more
  std::atomic<bool> done{false};
  std::thread other([&] {
    const auto turn = of_outer.turn();
    done = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(done);
  EXPECT_TRUE(outer.end_run(true));
  other.join();
}

}  // namespace
}  // namespace encore::graph
