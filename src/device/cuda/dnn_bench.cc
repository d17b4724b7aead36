#include "device/cuda/dnn_bench.h"

#include <algorithm>
#include <mutex>

#include "device/cuda/stopwatch.h"
#include "device/error.h"
#include "device/memory.h"

namespace encore::device {
namespace {

// Timings are taken one after another in the whole process.
std::mutex& quiet() {
  static std::mutex mutex;
  return mutex;
}

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }
size_t input_bytes(const Convolution& p) {
  return aligned(bytes_of(p.x, p.type)) + aligned(bytes_of(p.w, p.type)) + aligned(bytes_of(p.y, p.type)) +
         aligned(bytes_of({p.y[1]}, p.type));
}

}  // namespace

Bench::Bench(cudnnHandle_t handle, const DnnSettings& settings, StreamRef stream)
    : handle_(handle), settings_(settings), stream_(stream) {
  if (set_stream(handle_, native()) != CUDNN_STATUS_SUCCESS) fail(Code::device_failed, "cuDNN does not take a stream");
}
Bench::~Bench() {
  try {
    stream_.synchronize();
  } catch (const Error&) {  // whoever runs next is told
  }
  set_stream(handle_, nullptr);
}

bool Bench::Block::holds(Bench& bench, size_t wanted) {
  if (wanted <= bytes) return true;
  bench.stream_.synchronize();
  memory.reset(), bytes = 0;
  try {
    memory = bench.settings_.memory(wanted);
  } catch (const Error& error) {
    if (error.code() != Code::out_of_memory) throw;
    return false;
  }
  bytes = wanted;
  fill(bench.stream_, memory.get(), 0x2c, bytes);  // small numbers in every type
  return true;
}

template <class F>
std::optional<double> Bench::timed(const Convolution& p, const ConvolutionPlan& plan, F time) {
  if (!has_room(p)) return std::nullopt;
  std::vector<void*> addresses;
  char* next = static_cast<char*>(inputs_.memory.get());
  for (const int64_t id : plan.ids) {
    addresses.push_back(id == kConvolutionY ? output_.memory.get() : next);
    next += aligned(id == kConvolutionX          ? bytes_of(p.x, p.type)
                    : id == kConvolutionW        ? bytes_of(p.w, p.type)
                    : id == kConvolutionResidual ? bytes_of(p.y, p.type)
                                                 : bytes_of({p.y[1]}, p.type));
  }
  constexpr size_t kMuch = size_t{64} << 20;  // not in every thread at a time
  std::unique_lock alone(quiet(), std::defer_lock);
  if (plan.workspace_bytes() > kMuch) alone.lock();
  if (plan.workspace_bytes() && !workspace_.holds(*this, plan.workspace_bytes())) return std::nullopt;
  const auto run = [&] { return !execute(handle_, plan, addresses, workspace_.memory.get()); };
  const auto begin = Clock::now();
  if (!run()) return std::nullopt;  // that loads the kernel, too
  stream_.synchronize();
  load_s += seconds_since(begin);
  if (!alone) alone.lock();
  const auto start = Clock::now();
  const double us = time(run);
  time_s += seconds_since(start);
  if (workspace_.bytes > kMuch) workspace_ = {};
  return us;
}

std::optional<double> Bench::glance(const Convolution& problem, const ConvolutionPlan& plan) {
  cuda::Stopwatch watch;
  return timed(problem, plan, [&](const auto& run) {
    const double first = watch.glance(native(), run);  // other threads' first runs may be in the way of one
    return std::min(first, watch.glance(native(), run));
  });
}
std::optional<double> Bench::measure(const Convolution& problem, const ConvolutionPlan& plan, double about) {
  cuda::Stopwatch watch;
  return timed(problem, plan, [&](const auto& run) { return watch.measure(native(), about, run); });
}

bool Bench::has_room(const Convolution& problem) {
  return inputs_.holds(*this, input_bytes(problem)) && output_.holds(*this, bytes_of(problem.y, problem.type));
}
void Bench::let_go() {
  stream_.synchronize();
  inputs_ = output_ = workspace_ = {};
}

}  // namespace encore::device
