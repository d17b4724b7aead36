#include "profile/recorder.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "../device/kernels.h"
#include "device/capture_stream.h"
#include "device/graph.h"
#include "profile/timeline.h"

namespace encore::profile::tests {
namespace {

using device::for_each_index;
using device::tests::AddTo;

const Node kOuter{"loop", "Loop"}, kFirst{"conv", "Conv"}, kSecond{"relu", "Relu"}, kHidden{nullptr, nullptr};

struct RecorderTest : testing::Test {
  std::vector<std::string> warnings;
  int switches = 0;
  const device::Stream stream{0};
  device::DeviceArray<int> x{std::vector<int>(1000, 0)};
  const std::shared_ptr<Recorder> recorder =
      std::make_shared<Recorder>(0, [this](const std::string& warning) { warnings.push_back(warning); });

  RecorderTest() {
    recorder->when_switched([this] { ++switches; });
  }
  ~RecorderTest() override { stream.ref().synchronize(); }
  void work(device::StreamRef on) const { work(on, x); }
  static void work(device::StreamRef on, const device::DeviceArray<int>& x) {
    for_each_index(on, 1000, AddTo{x.data(), 1});
  }
  void run(Timeline& timeline, device::StreamRef on) const { run(timeline, on, x); }
  static void run(Timeline& timeline, device::StreamRef on, const device::DeviceArray<int>& x) {
    const Timeline::Scope scope(&timeline);
    timeline.begin(kOuter);
    work(on, x);
    {
      Steps steps;
      steps.next(kFirst);
      work(on, x);
      steps.next(kSecond);
      work(on, x);
    }
    work(on, x);
    timeline.end();
  }
  void run_once() const {
    const auto timeline = recorder->timeline(stream, Timeline::Of::run);
    run(*timeline, stream);
    timeline->finish();
    recorder->add(timeline);
  }
};

void expect_run(const std::vector<Span>& spans, size_t at, bool is_replay) {
  ASSERT_GE(spans.size(), at + 3);
  const Span &outer = spans[at], &first = spans[at + 1], &second = spans[at + 2];
  EXPECT_STREQ(outer.name, "loop");
  EXPECT_STREQ(first.name, "conv");
  EXPECT_STREQ(second.name, "relu");
  EXPECT_STREQ(second.op, "Relu");
  EXPECT_EQ(outer.depth, 0);
  EXPECT_EQ(first.depth, 1);
  EXPECT_EQ(second.depth, 1);
  for (const Span* span : {&outer, &first, &second}) {
    EXPECT_GT(span->own_us, 0);
    EXPECT_EQ(span->is_replay, is_replay);
  }
  EXPECT_EQ(first.us, first.own_us);
  EXPECT_NEAR(outer.us, outer.own_us + first.us + second.us, 1e-6);
  EXPECT_GT(first.begin, outer.begin);
  const auto gap = second.begin - first.begin - std::chrono::duration<double, std::micro>(first.us);
  EXPECT_LT(std::abs(std::chrono::duration<double, std::micro>(gap).count()), 0.01);
}

TEST_F(RecorderTest, TellsOfRuns) {
  EXPECT_FALSE(recorder->is_on());
  const auto profile = recorder->start();
  EXPECT_TRUE(recorder->is_on());
  const Clock::time_point begin = Clock::now();
  run_once();
  run_once();
  const std::vector<Span> spans = profile->take();
  ASSERT_EQ(spans.size(), 6u);
  expect_run(spans, 0, false);
  expect_run(spans, 3, false);
  EXPECT_EQ(spans[0].stream, stream.ref().native());
  EXPECT_GT(spans[0].begin, begin - std::chrono::milliseconds(1));
  EXPECT_LT(spans[5].begin, Clock::now());
  EXPECT_TRUE(warnings.empty());
}

TEST_F(RecorderTest, TellsOfEachLaunchOfAGraph) {
  const auto profile = recorder->start();
  const device::CaptureStream capturing(0);
  device::begin_capture(capturing, device::CaptureMode::thread_local_);
  const auto timeline = recorder->timeline(capturing, Timeline::Of::graph);
  run(*timeline, capturing);
  timeline->finish();
  const device::GraphExec exec = device::end_capture(capturing).instantiate();
  for (int launch = 0; launch < 3; ++launch) timeline->launch(exec, stream);  // waits for nothing but the one before
  const std::vector<Span> spans = profile->take();
  ASSERT_EQ(spans.size(), 9u);
  for (size_t launch = 0; launch < 3; ++launch) expect_run(spans, 3 * launch, true);
  EXPECT_GT(spans[3].begin, spans[2].begin);
  EXPECT_EQ(spans[0].stream, stream.ref().native());
  EXPECT_EQ(x.download(stream)[0], 12);
}

TEST_F(RecorderTest, AGraphMayGoWhileItRuns) {
  auto profile = recorder->start();
  for (int i = 0; i < 50; ++i) {
    const auto timeline = recorder->timeline(stream, Timeline::Of::graph);
    device::begin_capture(stream, device::CaptureMode::thread_local_);
    run(*timeline, stream);
    timeline->finish();
    const device::GraphExec exec = device::end_capture(stream).instantiate();
    timeline->launch(exec, stream);
    if (i % 2) profile = recorder->start();  // which forgets what has not been read
    profile.reset();
    timeline->launch(exec, stream);  // as it may until it is forgotten
    profile = recorder->start();
  }
  EXPECT_EQ(x.download(stream)[0], 400);  // and nothing has failed there
}

TEST_F(RecorderTest, WhatIsHiddenIsNotTheNodesAround) {
  const auto profile = recorder->start();
  const auto timeline = recorder->timeline(stream, Timeline::Of::run);
  timeline->begin(kFirst);
  timeline->begin(kHidden);
  work(stream);
  timeline->end();
  timeline->finish();
  recorder->add(timeline);
  const std::vector<Span> spans = profile->take();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_LT(spans[0].own_us, spans[0].us);
}

TEST_F(RecorderTest, NothingIsToldWithoutAProfile) {
  run_once();
  recorder->start();  // and ends at once
  EXPECT_EQ(switches, 2);
  const auto first = recorder->start();
  run_once();
  stream.ref().synchronize();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto second = recorder->start();
  EXPECT_EQ(switches, 3);
  EXPECT_EQ(first->take().size(), 3u);
  EXPECT_EQ(second->take().size(), 0u);  // it ran before
  run_once();
  EXPECT_EQ(first->take().size(), 3u);
  EXPECT_EQ(second->take().size(), 3u);
}

TEST_F(RecorderTest, ThreadsAtOnce) {
  const auto profile = recorder->start();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([this] {
      const device::DeviceArray<int> its(std::vector<int>(1000, 0));
      const device::Stream own(0);
      for (int n = 0; n < 50; ++n) {
        const auto timeline = recorder->timeline(own, Timeline::Of::run);
        run(*timeline, own, its);
        timeline->finish();
        recorder->add(timeline);
        recorder->collect(Recorder::Wait::no);
      }
      own.ref().synchronize();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(profile->take().size(), 600u);
  EXPECT_TRUE(warnings.empty());
}

TEST_F(RecorderTest, AnInvalidCaptureIsNotTold) {
  const auto profile = recorder->start();
  device::begin_capture(stream, device::CaptureMode::thread_local_);
  const auto timeline = recorder->timeline(stream, Timeline::Of::graph);
  timeline->begin(kFirst);
  EXPECT_ERROR(stream.ref().synchronize(), Code::capture_forbidden);
  timeline->next(kSecond);
  timeline->finish();
  device::abandon_capture(stream);
  EXPECT_TRUE(profile->take().empty());
}

TEST_F(RecorderTest, WhatIsTooLongIsCutOff) {
  const auto profile = recorder->start();
  const auto timeline = recorder->timeline(stream, Timeline::Of::run);
  const int kLong = 70'000;
  timeline->begin(kOuter);
  for (int i = 0; i < kLong; ++i) {
    timeline->begin(kFirst);
    timeline->end();
  }
  timeline->finish();
  recorder->add(timeline);
  const size_t told = profile->take().size();
  EXPECT_GT(told, 30'000u);
  EXPECT_LT(told, 33'000u);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("too long"), std::string::npos);
}

}  // namespace
}  // namespace encore::profile::tests
