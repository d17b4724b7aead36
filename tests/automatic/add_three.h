// Graphs of a region that adds three.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "automatic/region_graphs.h"
#include "memory/streams.h"
#include "one_run.h"

namespace encore::automatic::tests {

// y = x + 3, with scratch between.
class AddThree final : public ops::Op {
 public:
  void run(ops::Context& context) const override {
    ++runs;
    planned_runs += context.is_planned();
    for (int i = 0; i < more_blocks; ++i) context.give_back(context.scratch(256));
    const Tensor& x = context.input(0);
    const Tensor y = context.output(0, x.shape);
    auto* const first = static_cast<float*>(context.scratch(x.bytes() + more_scratch));
    add(context, x.as<float>(), first);
    auto* const second = static_cast<float*>(context.scratch(x.bytes()));
    add(context, first, second);
    context.give_back(first);
    if (reads_back) context.read_back(&read, second, sizeof read);
    add(context, second, y.as<float>());
    context.give_back(second);
  }
  mutable int runs = 0, planned_runs = 0;
  mutable float read = 0;
  int more_blocks = 0;
  size_t more_scratch = 0;
  bool reads_back = false;

 private:
  static void add(ops::Context& context, const float* x, float* y) {
    device::for_each_index(context.stream(), context.input(0).count(), AddOne{x, y});
  }
};

class RegionGraphsTest : public testing::Test {
 protected:
  RegionGraphsTest() { memory::enlist(stream); }
  ~RegionGraphsTest() override {
    store.stream_is_gone(stream);
    memory::delist(stream);
  }
  void run(DeviceArray<float>& x, DeviceArray<float>& y) {
    std::vector<float> values(x.size());
    std::iota(values.begin(), values.end(), float(++fed));
    x.upload(stream, values);
    {
      OneRun run(*arena, stream, x, y);
      graphs.run(run);
    }
    for (float& value : values) value += 3;
    EXPECT_EQ(y.download(stream), values);
  }
  void run(int64_t count) {
    DeviceArray<float> x(size_t(count), 0), y(size_t(count), 0);
    run(x, y);
  }

  std::shared_ptr<memory::Arena> arena = std::make_shared<memory::Arena>(0, memory::Settings{}, "the test");
  device::Stream stream{0};
  GraphStore store{0, arena, 32};
  AddThree op;
  RegionGraphs graphs{{"the region", 3, {"x"}, {"y"}, {}}, op, store};
  int fed = 0;
};

inline constexpr size_t kMib = size_t(1) << 20;

// Large tensors, each as small as may be.
inline std::vector<DeviceArray<float>> large_places(size_t count) {
  std::vector<DeviceArray<float>> places;
  for (size_t i = 0; i < count; ++i) places.emplace_back(kMib + 1, 0);
  return places;
}

}  // namespace encore::automatic::tests
