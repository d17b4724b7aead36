#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "graph/session_graphs.h"
#include "model.h"

namespace encore::graph {
namespace {

using namespace encore::test;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Fixture {
  explicit Fixture(OnError on_error)
      : graphs(0, {.enabled = true,
                   .warm_ups = 1,
                   .on_error = on_error,
                   .warn = [this](const std::string& why) { warnings.push_back(why); }}),
        model(graphs) {}
  std::vector<std::string> warnings;
  SessionGraphs graphs;
  Model model;

  // A run in which a kernel does what no capture allows, as a kernel adapter sees it.
  bool run_a_forbidden_kernel(int id, Holds holds = Holds::for_id) {
    graphs.begin_run(id);
    model.compute();
    try {
      device::Label label("NonZero_3");
      graphs.stream().synchronize();
    } catch (const Error& e) {
      graphs.refuse(text("node NonZero_3: ", e.what()), holds);
      return graphs.end_run(false);
    }
    return graphs.end_run(true);
  }
  void expect_replays() {
    EXPECT_TRUE(graphs.is_captured(0));
    model.set_input(9);
    graphs.replay(0);
    EXPECT_EQ(model.output(), model.expected(9));
  }
};

TEST(Refusal, fails_with_the_reason_and_the_way_out) {
  Fixture f(OnError::fail);
  EXPECT_TRUE(f.run_a_forbidden_kernel(0));  // warming up, it is legal
  const std::string why = message_of([&] { f.run_a_forbidden_kernel(0); }, Code::capture_failed);
  EXPECT_THAT(why, AllOf(HasSubstr("graph id 0 could not be captured"), HasSubstr("node NonZero_3"),
                         HasSubstr("gpu_graph_id=-1"), HasSubstr("graph_on_error=eager")));
  EXPECT_TRUE(f.graphs.enabled());
  EXPECT_FALSE(f.graphs.capturing());
  const Report report = f.graphs.reports()[0];
  EXPECT_EQ(report.state, State::refused);
  EXPECT_THAT(report.refusal, HasSubstr("NonZero_3"));
  EXPECT_EQ(report.held_bytes, 0u);
  EXPECT_THAT(f.warnings, IsEmpty());

  // The session goes on, and the id warms up anew.
  f.model.set_input(1);
  EXPECT_TRUE(f.model.run(kEagerId));
  EXPECT_EQ(f.model.output(), f.model.expected(1));
  EXPECT_TRUE(f.model.run(0));
  EXPECT_FALSE(f.graphs.is_captured(0));
  EXPECT_TRUE(f.model.run(0));
  f.expect_replays();
}

TEST(Refusal, names_what_invalidated_the_capture_unseen) {
  Fixture f(OnError::fail);
  EXPECT_TRUE(f.model.run(0));
  f.graphs.begin_run(0);
  f.model.compute();
  EXPECT_THROW(f.graphs.stream().synchronize(), Error);  // and nobody tells
  EXPECT_THAT(message_of([&] { f.graphs.end_run(true); }, Code::capture_failed), HasSubstr("invalidated"));
  EXPECT_TRUE(f.model.run(0));
  EXPECT_TRUE(f.model.run(0));
  f.expect_replays();
}

TEST(Refusal, keeps_the_first_reason) {
  Fixture f(OnError::fail);
  EXPECT_FALSE(f.graphs.refuse("outside of a run"));
  f.graphs.begin_run(0);
  EXPECT_FALSE(f.graphs.refuse("warming up"));
  f.model.compute();
  EXPECT_TRUE(f.graphs.end_run(true));
  f.graphs.begin_run(0);
  EXPECT_TRUE(f.graphs.refuse("input 'x' is in host memory; bind it on the device"));
  EXPECT_TRUE(f.graphs.refuse("a later failure"));
  const std::string why = message_of([&] { f.graphs.end_run(false); }, Code::capture_failed);
  EXPECT_THAT(why, HasSubstr("input 'x' is in host memory"));
  EXPECT_THAT(why, testing::Not(HasSubstr("later")));
}

TEST(Refusal, makes_only_its_id_eager) {
  Fixture f(OnError::eager);
  EXPECT_TRUE(f.model.run(1));
  EXPECT_TRUE(f.model.run(1));
  EXPECT_TRUE(f.run_a_forbidden_kernel(0));
  EXPECT_TRUE(f.graphs.captures_latest());
  EXPECT_FALSE(f.run_a_forbidden_kernel(0)) << "the run did nothing";
  EXPECT_FALSE(f.graphs.captures_latest());
  EXPECT_THAT(f.warnings, ElementsAre(AllOf(HasSubstr("NonZero_3"), HasSubstr("Runs with this id go on without"))));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(f.run_a_forbidden_kernel(0));
  std::thread([&] {
    EXPECT_TRUE(f.run_a_forbidden_kernel(0)) << "nor in other threads";
    EXPECT_TRUE(f.run_a_forbidden_kernel(0));
  }).join();
  EXPECT_EQ(f.warnings.size(), 1u);
  EXPECT_TRUE(f.graphs.is_captured(1));
  EXPECT_TRUE(f.model.run(2));
  EXPECT_TRUE(f.model.run(2));
  EXPECT_TRUE(f.graphs.captures_latest());
  EXPECT_TRUE(f.graphs.is_captured(2));
  f.graphs.release(0);
  EXPECT_TRUE(f.model.run(0));
  EXPECT_TRUE(f.model.run(0));
  f.expect_replays();
}

TEST(Refusal, that_holds_for_the_model_makes_an_eager_session_eager_for_good) {
  Fixture f(OnError::eager);
  EXPECT_TRUE(f.model.run(1));
  EXPECT_TRUE(f.model.run(1));
  EXPECT_TRUE(f.graphs.is_captured(1));
  EXPECT_TRUE(f.run_a_forbidden_kernel(0));
  EXPECT_FALSE(f.run_a_forbidden_kernel(0, Holds::for_model)) << "the run did nothing";
  EXPECT_THAT(f.warnings, ElementsAre(AllOf(HasSubstr("NonZero_3"), HasSubstr("session goes on without graphs"))));
  EXPECT_FALSE(f.graphs.enabled());
  EXPECT_FALSE(f.graphs.is_captured(1));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(f.run_a_forbidden_kernel(0));
  f.model.set_input(2);
  EXPECT_TRUE(f.model.run(0));
  EXPECT_EQ(f.model.output(), f.model.expected(2));
  EXPECT_EQ(f.warnings.size(), 1u);
}

TEST(Refusal, loses_no_run_in_an_eager_session_while_the_capture_is_valid) {
  Fixture f(OnError::eager);
  EXPECT_TRUE(f.model.run(0));
  f.model.set_input(4);
  f.graphs.begin_run(0);
  EXPECT_TRUE(f.graphs.capturing());
  const auto stream = f.graphs.stream();
  auto* scratch = static_cast<float*>(f.model.arena().allocate(Model::kBytes, stream));
  device::for_each_index(stream, Model::kCount, Fill{scratch, 40});
  EXPECT_FALSE(f.graphs.refuse("a fetch is in host memory"));
  EXPECT_FALSE(f.graphs.capturing());
  EXPECT_EQ(read(stream, scratch, Model::kCount), std::vector<float>(Model::kCount, 40.f));
  f.model.compute();
  f.model.arena().free(scratch);
  EXPECT_TRUE(f.graphs.end_run(true));
  EXPECT_EQ(f.model.output(), f.model.expected(4));
  EXPECT_FALSE(f.graphs.captures_latest());
  EXPECT_EQ(f.warnings.size(), 1u);
}

TEST(Refusal, of_a_capture_in_which_another_run_begins) {
  Fixture f(OnError::fail);
  EXPECT_TRUE(f.model.run(0));
  f.model.set_input(2);
  f.graphs.begin_run(0);
  EXPECT_TRUE(f.model.run(1));
  EXPECT_EQ(f.model.output(), f.model.expected(2));
  EXPECT_THAT(message_of([&] { f.graphs.check_run(); }, Code::capture_failed), HasSubstr("another run"));
  EXPECT_THAT(message_of([&] { f.graphs.end_run(true); }, Code::capture_failed), HasSubstr("another run"));
  EXPECT_TRUE(f.model.run(0));
  EXPECT_TRUE(f.model.run(0));
  f.expect_replays();
}

TEST(Refusal, of_a_run_whose_end_nobody_tells) {
  Fixture f(OnError::fail);
  EXPECT_TRUE(f.model.run(0));
  for (const bool asked : {false, true}) {
    f.model.set_input(3);
    f.graphs.begin_run(0);
    EXPECT_TRUE(f.graphs.capturing());
    if (asked) {
      EXPECT_FALSE(f.graphs.is_captured_at_begin(0));
      EXPECT_FALSE(f.graphs.in_run());
      EXPECT_EQ(f.graphs.reports()[0].state, State::refused);
    }
    EXPECT_TRUE(f.model.run(0));
    EXPECT_EQ(f.model.output(), f.model.expected(3));
  }
  EXPECT_TRUE(f.model.run(0));
  f.expect_replays();
}

TEST(Refusal, of_a_capture_that_is_left) {
  Fixture f(OnError::fail);
  EXPECT_TRUE(f.model.run(0));
  f.graphs.begin_run(0);
  f.graphs.leave_run();
  EXPECT_FALSE(f.graphs.capturing());
  EXPECT_TRUE(f.graphs.end_run(false)) << "it failed by itself";
  EXPECT_TRUE(f.model.run(0));
  f.expect_replays();

  EXPECT_TRUE(f.model.run(1));
  f.graphs.begin_run(1);
  EXPECT_TRUE(f.graphs.refuse("a copy failed"));
  f.graphs.leave_run();
  EXPECT_THAT(message_of([&] { f.graphs.end_run(false); }, Code::capture_failed), HasSubstr("a copy failed"));
  EXPECT_TRUE(f.graphs.end_run(true));
}

TEST(Refusal, of_a_capture_in_which_another_session_runs) {
  Fixture f(OnError::fail), other(OnError::fail);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(other.model.run(0));
  for (const bool replay : {false, true}) {
    EXPECT_TRUE(f.model.run(0));
    f.graphs.begin_run(0);
    EXPECT_TRUE(f.graphs.capturing());
    other.model.set_input(5);
    if (replay)
      other.graphs.replay(0);
    else
      EXPECT_TRUE(other.model.run(kEagerId));
    EXPECT_FALSE(f.graphs.capturing());
    EXPECT_EQ(other.model.output(), other.model.expected(5));
    EXPECT_THROW(f.graphs.end_run(true), Error);
  }
  EXPECT_TRUE(f.model.run(0));
  EXPECT_TRUE(f.model.run(0));
  f.expect_replays();
}

TEST(Refusal, of_a_capture_whose_session_ends_in_another_thread) {
  auto f = std::make_unique<Fixture>(OnError::fail);
  EXPECT_TRUE(f->model.run(0));
  f->graphs.begin_run(0);
  std::thread([&] { f.reset(); }).join();
  Fixture next(OnError::fail);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(next.model.run(0));
  next.expect_replays();
  auto warming_up = std::make_unique<Fixture>(OnError::fail);
  warming_up->graphs.begin_run(0);
  std::thread([&] { warming_up.reset(); }).join();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(next.model.run(1));
}

TEST(Refusal, of_a_graph_too_large_for_the_limit) {
  SessionGraphs graphs(0, {.enabled = true, .warm_ups = 0});
  memory::Arena arena(0, {.max_bytes = 3 * Model::kBytes + 1024, .grow_by_doubling = false}, "session 'a'");
  Model model(graphs, arena);
  graphs.begin_run(0);
  std::string why = message_of([&] { model.compute(); }, Code::out_of_memory);
  EXPECT_TRUE(graphs.refuse(why));
  EXPECT_THAT(message_of([&] { graphs.end_run(false); }, Code::capture_failed), HasSubstr("session 'a'"));
}

}  // namespace
}  // namespace encore::graph
