#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "graph/session_graphs.h"
#include "model.h"

namespace encore::graph {
namespace {

using namespace encore::test;

TEST(Threads, have_streams_and_graphs_of_their_own) {
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0});
  Model model(graphs);
  EXPECT_TRUE(model.run(0));
  std::thread([&] {
    EXPECT_FALSE(graphs.is_captured(0));
    EXPECT_THROW(graphs.replay(0), Error);
    EXPECT_TRUE(graphs.reports().empty());
    Model mine(graphs);
    EXPECT_TRUE(mine.run(0));
    EXPECT_TRUE(graphs.is_captured(0));
    mine.set_input(2);
    graphs.replay(0);
    EXPECT_EQ(mine.output(), mine.expected(2));
  }).join();
  model.set_input(3);
  graphs.replay(0);
  EXPECT_EQ(model.output(), model.expected(3));
}

TEST(Threads, leave_nothing_behind_when_they_end) {
  memory::Arena arena(0, {.grow_by_doubling = false}, "test");
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 1});
  for (int round = 0; round < 20; ++round) {
    std::thread([&] {
      Model model(graphs, arena);
      for (int i = 0; i < 4; ++i) model.run_or_replay(i % 2);
    }).join();
    arena.shrink();
    ASSERT_EQ(arena.stats().held_bytes, 0u);
  }
}

// Takes its time, and tells.
class SlowSource final : public memory::Source {
 public:
  SlowSource() : Source(0), pool_(0) {}
  void* take(size_t bytes) override { return pool_.take(bytes); }
  void give_back(void* chunk) noexcept override {
    has_begun = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    pool_.give_back(chunk);
    std::fputs("given back\n", stderr);
  }
  void shrink() override { pool_.shrink(); }

  std::atomic<bool> has_begun{false};

 private:
  memory::PoolSource pool_;
};

TEST(Threads, that_end_beside_the_process_are_waited_for) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto end_at_once = [] {
    const auto source = std::make_shared<SlowSource>();
    auto& graphs = *new SessionGraphs(0, {.enabled = true, .warm_ups = 0, .memory = source});  // stays
    std::thread([&] { Model(graphs).run(0); }).detach();
    while (!source->has_begun) std::this_thread::yield();
    std::exit(0);
  };
  EXPECT_EXIT(end_at_once(), testing::ExitedWithCode(0), "given back");
}

TEST(Threads, may_outlive_the_session) {
  memory::Arena arena(0, {.grow_by_doubling = false}, "test");
  auto graphs = std::make_unique<SessionGraphs>(0, Settings{.enabled = true, .warm_ups = 0});
  std::barrier captured(4), destroyed(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      {
        Model model(*graphs, arena);
        model.run(0);
        graphs->replay(0);
      }
      captured.arrive_and_wait();
      destroyed.arrive_and_wait();
      SessionGraphs next(0, {.enabled = true, .warm_ups = 0});  // perhaps where the other one was
      EXPECT_FALSE(next.is_captured(0));
      Model model(next, arena);
      model.set_input(1);
      model.run(0);
      EXPECT_EQ(model.output(), model.expected(1));
    });
  }
  captured.arrive_and_wait();
  graphs.reset();
  arena.shrink();
  EXPECT_EQ(arena.stats().held_bytes, 0u);
  destroyed.arrive_and_wait();
  for (auto& thread : threads) thread.join();
}

TEST(Threads, may_end_while_the_session_ends) {
  for (int round = 0; round < 50; ++round) {
    memory::Arena arena(0, {}, "test");
    auto graphs = std::make_unique<SessionGraphs>(0, Settings{.enabled = true, .warm_ups = 0});
    std::barrier captured(3);
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&] {
        { Model(*graphs, arena).run(0); }
        captured.arrive_and_wait();
      });
    }
    captured.arrive_and_wait();
    graphs.reset();
    for (auto& thread : threads) thread.join();
  }
}

TEST(Threads, capture_and_replay_side_by_side) {
  constexpr int kThreads = 8, kIds = 4;
  memory::Arena arena(0, {.first_chunk_bytes = 1 << 16}, "test");
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 1});
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::unique_ptr<Model>> models;
      for (int id = 0; id < kIds; ++id) models.push_back(std::make_unique<Model>(graphs, arena));
      for (int round = 0; round < 24; ++round) {
        Model& model = *models[size_t(round % kIds)];
        const float input = float(t * 1000 + round);
        model.set_input(input);
        model.run_or_replay(round % 5 == 4 ? kEagerId : round % kIds);
        EXPECT_EQ(model.output(), model.expected(input));
        if (round == 15) arena.shrink();
      }
      EXPECT_EQ(graphs.reports().size(), size_t(kIds));
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Threads, release_what_others_replay) {
  memory::Arena arena(0, {.first_chunk_bytes = 1 << 16}, "test");
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0});
  std::atomic<bool> stop = false;
  std::thread releaser([&] {
    while (!stop) {
      graphs.release(0);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      Model model(graphs, arena);
      for (int round = 0; round < 100; ++round) {
        model.set_input(float(round));
        if (graphs.is_captured_at_begin(0))
          graphs.replay(0);
        else
          EXPECT_TRUE(model.run(0));
        EXPECT_TRUE(graphs.is_captured_at_end(0));
        EXPECT_EQ(model.output(), model.expected(float(round)));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  stop = true;
  releaser.join();
}

// From another thread.
void release(SessionGraphs& graphs, int id) {
  std::thread([&] { graphs.release(id); }).join();
}

TEST(Threads, keep_what_they_were_promised) {
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0});
  Model model(graphs);
  EXPECT_TRUE(model.run(0));
  release(graphs, 0);  // between the capture and the question at the end of its run
  EXPECT_EQ(graphs.reports()[0].state, State::releasing);
  EXPECT_TRUE(graphs.is_captured_at_end(0));
  EXPECT_TRUE(graphs.reports().empty()) << "it goes when the run is over";

  EXPECT_TRUE(model.run(0));
  EXPECT_TRUE(graphs.is_captured_at_end(0));
  EXPECT_TRUE(graphs.is_captured_at_begin(0));
  release(graphs, 0);
  model.set_input(3);
  graphs.replay(0);
  release(graphs, 0);
  EXPECT_EQ(model.output(), model.expected(3));
  EXPECT_TRUE(graphs.is_captured_at_end(0));
  EXPECT_TRUE(graphs.reports().empty());
  EXPECT_FALSE(graphs.is_captured_at_begin(0));
}

TEST(Threads, release_at_once_what_no_run_waits_for) {
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0});
  Model model(graphs);
  for (int id = 0; id < 2; ++id) {
    EXPECT_TRUE(model.run(id));
    EXPECT_TRUE(graphs.is_captured_at_end(id));
  }
  EXPECT_TRUE(graphs.is_captured_at_begin(0));
  release(graphs, 1);
  EXPECT_FALSE(graphs.is_captured(1));
  graphs.release(0);
  EXPECT_TRUE(graphs.reports().empty()) << "a thread may break what it was promised itself";
}

TEST(Threads, are_promised_nothing_beyond_their_next_run) {
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0});
  Model model(graphs);
  EXPECT_TRUE(model.run(0));
  EXPECT_TRUE(graphs.is_captured_at_end(0));
  for (const int next : {0, 1}) {
    EXPECT_TRUE(graphs.is_captured_at_begin(0));  // and then the replay fails, say
    release(graphs, 0);
    EXPECT_FALSE(graphs.is_captured_at_begin(next));
    EXPECT_TRUE(graphs.reports().empty());
    EXPECT_TRUE(model.run(0));
    EXPECT_TRUE(graphs.is_captured_at_end(0));
  }
}

TEST(Threads, capture_while_others_run_eagerly_and_allocate) {
  memory::Arena arena(0, {.first_chunk_bytes = 1 << 14}, "test");
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0});
  std::atomic<bool> stop = false;
  std::thread eager([&] {
    Model model(graphs, arena);
    for (int round = 0; !stop; ++round) {
      void* block = arena.allocate(size_t(1) << (10 + round % 8), {});  // from the driver now and then
      arena.free(block);
      model.set_input(float(round));
      model.run(kEagerId);
      EXPECT_EQ(model.output(), model.expected(float(round)));
      arena.shrink();
    }
  });
  Model model(graphs, arena);
  for (int round = 0; round < 60; ++round) {
    model.set_input(float(round));
    EXPECT_TRUE(model.run(round));
    ASSERT_TRUE(graphs.is_captured(round));
    EXPECT_EQ(model.output(), model.expected(float(round)));
  }
  stop = true;
  eager.join();
}

}  // namespace
}  // namespace encore::graph
