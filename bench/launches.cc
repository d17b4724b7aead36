// Times what a launch of a small kernel costs the host, with nothing around: it is launched as all of Encore's are.
//
//     ./encore build cuda --target launches_bench && build/cuda/launches_bench [seconds]
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "captured.h"
#include "ops/host_values.h"

int main(int count, char** arguments) {
  using namespace encore;
  using Clock = std::chrono::steady_clock;
  constexpr int kLaunches = 200;  // so that the device's queue never fills
  const std::chrono::duration<double> seconds(count > 1 ? std::atof(arguments[1]) : 0.2);
  const device::Stream stream(0);
  const bench::Memory<int32_t> memory(1);
  constexpr std::array<int32_t, 1> kWord{1};
  std::vector<double> us;
  for (const auto end = Clock::now() + seconds; Clock::now() < end;) {
    const auto begin = Clock::now();
    for (int i = 0; i < kLaunches; ++i) ops::store(stream, kWord, static_cast<int32_t*>(memory.at()));
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / kLaunches);
    stream.ref().synchronize();
  }
  std::ranges::nth_element(us, us.begin() + ptrdiff_t(us.size() / 2));
  std::printf("%.3f us a launch\n", us[us.size() / 2]);
}
