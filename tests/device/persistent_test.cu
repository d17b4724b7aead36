// Persistent kernels: blocks that tell one another values from step to step.
#include "device/persistent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "device/conditional.h"
#include "device/device.h"
#include "device/error.h"
#include "device/graph.h"
#include "kernels.h"

namespace encore::device::tests {

// Each block has kWidth values, and makes of each in each step the sum of all blocks' in that place, of which its own
// counts twice, modulo a number that floats hold. Threads count the steps.
struct SumsOfSteps {
  static constexpr int kMaxThreads = 64, kWidth = 16;
  static constexpr float kModulus = 8191;
  struct Shared {
    float own[kWidth], sums[kWidth];
  };
  struct Own {
    int steps;
  };
  StepValues values;
  int64_t all;
  float* y;
  int* steps;
  DEVICE_FN void begin(Block<Shared>& b, const Shared&, PerThread<Own, kMaxThreads>& own) const {
    b.threads([&](int t, Shared& s) {
      own[t].steps = t;
      if (t >= kWidth) return;
      const int64_t i = b.index() * kWidth + t;
      s.own[t] = float(i % 7);
      values.put(i, -1, s.own[t]);
    });
  }
  DEVICE_FN void operator()(Block<Shared>& b, const Shared&, PerThread<Own, kMaxThreads>& own, int64_t step) const {
    b.threads([&](int t, Shared& s) {
      if (t >= kWidth / 2) return;
      float sums[2] = {s.own[2 * t], s.own[2 * t + 1]};
      for (int64_t first = 2 * t; first < all; first += 4 * kWidth) {
        Pack<float, 2> pairs[4];
        values.get_pairs<4>(first, kWidth, all, step - 1, pairs);
        for (const Pack<float, 2>& pair : pairs)
          for (int half = 0; half < 2; ++half) sums[half] += pair.at[half];
      }
      for (int half = 0; half < 2; ++half) s.sums[2 * t + half] = std::fmod(sums[half], kModulus);
    });
    b.threads([&](int t, Shared& s) {
      if (++own[t].steps; t == kWidth) steps[b.index()] = own[t].steps - kWidth;
      if (t >= kWidth) return;
      s.own[t] = y[b.index() * kWidth + t] = s.sums[t];
      values.put(b.index() * kWidth + t, step, s.sums[t]);
    });
  }
};

class Persistence : public ::testing::Test {
 protected:
  static std::vector<float> expected(int64_t blocks, int64_t steps) {
    const auto width = size_t(SumsOfSteps::kWidth);
    std::vector<float> own(size_t(blocks) * width);
    for (size_t i = 0; i < own.size(); ++i) own[i] = float(i % 7);
    for (int64_t step = 0; step < steps; ++step) {
      std::vector<float> sums(width), next = own;
      for (size_t i = 0; i < own.size(); ++i) sums[i % width] += own[i];
      for (size_t i = 0; i < own.size(); ++i) next[i] = std::fmod(own[i] + sums[i % width], SumsOfSteps::kModulus);
      own = next;
    }
    return own;
  }
  void launch(int64_t blocks, int64_t steps) { launch(blocks, steps, stream); }
  void launch(int64_t blocks, int64_t steps, StreamRef on) {
    fill(on, slots.data(), 0, slots.size());
    persistent_kernel<SumsOfSteps::Shared>(
        on, {blocks, SumsOfSteps::kMaxThreads, steps},
        SumsOfSteps{values(blocks), blocks * SumsOfSteps::kWidth, y.data(), counts.data()});
  }
  StepValues values(int64_t blocks) { return {slots.data(), blocks * SumsOfSteps::kWidth}; }
  std::vector<float> made(int64_t blocks) {
    std::vector<float> all = y.download(stream);
    all.resize(size_t(blocks * SumsOfSteps::kWidth));
    return all;
  }

  Stream stream{0};
  const int64_t most = multiprocessors(0);
  DeviceArray<char> slots{size_t(StepValues::bytes_of(most * SumsOfSteps::kWidth))};
  DeviceArray<float> y{size_t(most * SumsOfSteps::kWidth)};
  DeviceArray<int> counts{size_t(most)};
};

TEST_F(Persistence, EachStepHasTheValuesOfTheOneBefore) {
  for (const int64_t blocks : {int64_t(1), int64_t(2), int64_t(7), most})
    for (const int64_t steps : {1, 2, 3, 12}) {
      launch(blocks, steps);
      EXPECT_EQ(made(blocks), expected(blocks, steps)) << blocks << " blocks, " << steps << " steps";
      EXPECT_EQ(counts.download(stream)[size_t(blocks - 1)], steps);
    }
}

TEST_F(Persistence, BeginsAnewInEachReplay) {
  launch(most, 1);  // the kernels are loaded
  begin_capture(stream, CaptureMode::thread_local_);
  launch(most, 9);
  const Graph graph = end_capture(stream);
  EXPECT_EQ(graph.size(), 2u);
  const GraphExec exec = graph.instantiate();
  for (int replay = 0; replay < 3; ++replay) {
    fill(stream, y.data(), 0, y.size() * sizeof(float));
    exec.launch(stream);
    EXPECT_EQ(made(most), expected(most, 9));
  }
}

TEST_F(Persistence, InABodyThatTheDeviceTakes) {
  ASSERT_EQ(why_no_conditionals(0), "");
  launch(most, 1);
  DeviceArray<bool> yes(1);
  fill(stream, yes.data(), 1, 1);
  begin_capture(stream, CaptureMode::thread_local_);
  capture_if(stream, yes.data(), [&](StreamRef on) { launch(most, 5, on); });
  const Graph graph = end_capture(stream);
  graph.instantiate().launch(stream);
  EXPECT_EQ(made(most), expected(most, 5));
}

TEST_F(Persistence, TwoStreamsDoNotWaitForOneAnother) {
  Stream other(0);
  DeviceArray<char> their_slots(slots.size());
  DeviceArray<float> their_y(y.size());
  DeviceArray<int> their_counts(counts.size());
  const StepValues theirs(their_slots.data(), most * SumsOfSteps::kWidth);
  for (int i = 0; i < 5; ++i) {
    launch(most, 12);
    fill(other, their_slots.data(), 0, their_slots.size());
    persistent_kernel<SumsOfSteps::Shared>(
        other, {most, SumsOfSteps::kMaxThreads, 9},
        SumsOfSteps{theirs, most * SumsOfSteps::kWidth, their_y.data(), their_counts.data()});
  }
  EXPECT_EQ(made(most), expected(most, 12));
  EXPECT_EQ(their_y.download(other), expected(most, 9));
}

TEST_F(Persistence, NoMoreBlocksThanRunAtTheSameTime) {
  EXPECT_THROW(launch(most + 1, 1), Error);
  launch(0, 1);
  launch(most, 0);
  stream.ref().synchronize();
}

}  // namespace encore::device::tests
