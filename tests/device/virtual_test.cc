// What only the virtual GPU does: it runs kernels in several orders, poisons memory, has a capacity that tests set,
// traces what streams do, and delays.
#ifdef ENCORE_VIRTUAL
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "device/device.h"
#include "device/dnn.h"
#include "device/graph.h"
#include "device/label.h"
#include "device/trace.h"
#include "device/virtual/control.h"
#include "device/virtual/queue.h"
#include "in_order.h"
#include "kernels.h"

namespace encore::device::tests {
namespace {

using ::testing::HasSubstr;
using virtual_gpu::Order;

struct Journal {
  int64_t *visited, *count;
  void operator()(int64_t i) const { visited[atomic_add(count, int64_t(1))] = i; }
};

std::vector<int64_t> visited(Order order, int64_t n) {
  InOrder in(order);
  PinnedArray<int64_t> visited{size_t(n)}, count(1);
  Stream stream(0);
  for_each_index(stream, n, Journal{visited.data(), count.data()});
  stream.ref().synchronize();
  return {visited.data(), visited.data() + count[0]};
}

TEST(VirtualOrder, IsObeyed) {
  EXPECT_EQ(visited(Order::forward, 4), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(visited(Order::reversed, 4), (std::vector<int64_t>{3, 2, 1, 0}));
  auto split = visited(Order::split, 1001);
  std::ranges::sort(split);
  for (int64_t i = 0; i < 1001; ++i) ASSERT_EQ(split[size_t(i)], i);
}

struct ThreadOf {
  std::thread::id* threads;
  void operator()(int64_t i) const { threads[i] = std::this_thread::get_id(); }
};

TEST(VirtualOrder, SplitTakesTwoThreads) {
  InOrder in(Order::split);
  Stream stream(0);
  PinnedArray<std::thread::id> pinned(10);
  for_each_index(stream, 10, ThreadOf{pinned.data()});
  stream.ref().synchronize();
  const std::vector<std::thread::id> threads(pinned.data(), pinned.data() + 10);
  EXPECT_EQ(std::ranges::count(threads, threads.front()), 5);
  EXPECT_EQ(std::ranges::count(threads, threads.back()), 5);
  EXPECT_NE(threads.front(), threads.back());
}

struct ThrowAt {
  int64_t bad;
  void operator()(int64_t i) const {
    if (i == bad) throw std::runtime_error("index " + std::to_string(i));
  }
};

TEST(VirtualOrder, SplitKeepsFailures) {
  InOrder in(Order::split);
  for (int64_t bad : {1, 8}) {
    Stream stream(0);
    for_each_index(stream, 10, ThrowAt{bad});
    EXPECT_ERROR(stream.ref().synchronize(), Code::device_failed);
    clear_error(0);
  }
}

// Needs its barriers and its shared memory whatever the order: neighbours' sums, then a scan and a reduction.
struct Windows {
  static constexpr int kThreads = 64;
  struct Shared {
    int value[kThreads];
  };
  const int* x;
  int* y;
  void operator()(Block<Shared>& b, const Shared&) const {
    const int64_t base = b.index() * b.size();
    PerThread<int, kThreads> own, before;
    b.threads([&](int t, Shared& s) { s.value[t] = x[base + t]; });
    b.threads([&](int t, Shared& s) { own[t] = s.value[t] + s.value[(t + 1) % b.size()]; });
    const int total = b.scan(
        before, 0, [&](int t) { return own[t]; }, [](int a, int c) { return a + c; });
    const int most = b.reduce(
        0, [&](int t) { return own[t]; }, [](int a, int c) { return a > c ? a : c; });
    b.template reduce_groups<8>(
        own, [&](int t) { return own[t]; }, [](int a, int c) { return a + c; });
    b.threads([&](int t, Shared&) { y[base + t] = own[t] * 3 + before[t] * 5 + total * 7 + most; });
  }
};

std::vector<int> windows(Order order) {
  InOrder in(order);
  Stream stream(0);
  std::vector<int> x(64 * 20);
  for (size_t i = 0; i < x.size(); ++i) x[i] = int(i * i % 1009);
  DeviceArray<int> in_x(x), y(x.size());
  block_kernel<Windows::Shared>(stream, {20, 64}, Windows{in_x.data(), y.data()});
  return y.download(stream);
}

TEST(VirtualOrder, BlocksDoNotCare) {
  const auto forward = windows(Order::forward);
  EXPECT_EQ(windows(Order::reversed), forward);
  EXPECT_EQ(windows(Order::split), forward);
}

// A kernel which reads a neighbour in the phase that writes it is wrong, and the orders show it.
struct MissingBarrier {
  struct Shared {
    int value[32];
  };
  int* y;
  void operator()(Block<Shared>& b, const Shared&) const {
    b.threads([&](int t, Shared& s) { s.value[t] = t; });
    b.threads([&](int t, Shared& s) { s.value[t] = s.value[t == 0 ? 0 : t - 1] + 1; });
    b.threads([&](int t, Shared& s) { y[t] = s.value[t]; });
  }
};

TEST(VirtualOrder, ShowsAMissingBarrier) {
  std::vector<std::vector<int>> seen;
  for (Order order : {Order::forward, Order::reversed}) {
    InOrder in(order);
    Stream stream(0);
    DeviceArray<int> y(32);
    block_kernel<MissingBarrier::Shared>(stream, {1, 32}, MissingBarrier{y.data()});
    seen.push_back(y.download(stream));
  }
  EXPECT_NE(seen[0], seen[1]);
}

struct ReadShared {
  struct Shared {
    float value;
    int count;
  };
  float* y;
  void operator()(Block<Shared>& b, const Shared&) const {
    b.threads([&](int t, Shared& s) { y[t] = t % 2 ? s.value : float(s.count); });
  }
};

TEST(VirtualMemory, SharedMemoryBeginsAsNotANumber) {
  Stream stream(0);
  DeviceArray<float> y(32);
  block_kernel<ReadShared::Shared>(stream, {1, 32}, ReadShared{y.data()});
  const auto seen = y.download(stream);
  EXPECT_EQ(seen[0], -1.f);
  EXPECT_TRUE(std::isnan(seen[1]));
}

// A graph whose branches nobody orders gives another result in another order.
TEST(VirtualOrder, ReplayTakesAnotherOrder) {
  Stream stream(0), fork(0);
  Event begin(0), end(0);
  DeviceArray<int> x(std::vector<int>{0});
  begin_capture(stream, CaptureMode::thread_local_);
  begin.record(stream);
  fork.ref().wait(begin);
  for_each_index(stream, 1, Set{x.data(), 1});  // these two race
  for_each_index(fork, 1, Set{x.data(), 2});
  end.record(fork);
  stream.ref().wait(end);
  GraphExec exec = end_capture(stream).instantiate();
  std::vector<int> seen;
  for (Order order : {Order::forward, Order::reversed}) {
    InOrder in(order);
    exec.launch(stream);
    seen.push_back(x.download(stream)[0]);
  }
  EXPECT_EQ(seen, (std::vector<int>{2, 1}));
}

TEST(VirtualOrder, ReplayObeysDependenciesInAnyOrder) {
  Stream stream(0), fork(0);
  Event begin(0), end(0);
  DeviceArray<int> x(std::vector<int>(100, 0)), y(std::vector<int>(100, 0));
  begin_capture(stream, CaptureMode::thread_local_);
  for_each_index(stream, 100, AddTo{x.data(), 1});
  begin.record(stream);
  fork.ref().wait(begin);
  for_each_index(fork, 100, CopyTo{y.data(), x.data()});
  for_each_index(fork, 100, MultiplyBy{y.data(), 10});
  end.record(fork);
  for_each_index(stream, 100, Nothing{});
  stream.ref().wait(end);
  for_each_index(stream, 100, CopyTo{x.data(), y.data()});
  GraphExec exec = end_capture(stream).instantiate();
  for (Order order : {Order::forward, Order::reversed, Order::split}) {
    InOrder in(order);
    x.upload(stream, std::vector<int>(100, 4));
    y.upload(stream, std::vector<int>(100, 0));
    exec.launch(stream);
    EXPECT_EQ(x.download(stream), std::vector<int>(100, 50));
  }
}

TEST(VirtualGraph, LaunchWaitsForTheOneBefore) {
  Gate gate;
  Stream first(0), second(0);
  PinnedArray<int> x(1, 0);
  begin_capture(first, CaptureMode::thread_local_);
  for_each_index(first, 1, AddTo{x.data(), 1});
  GraphExec exec = end_capture(first).instantiate();
  gate.close(first);
  exec.launch(first);
  exec.launch(second);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_FALSE(second.ref().done());
  gate.open();
  second.ref().synchronize();
  EXPECT_EQ(x[0], 2);
}

TEST(VirtualMemory, IsPoisonedWhenFresh) {
  Stream stream(0);
  DeviceArray<unsigned char> x(100);
  EXPECT_EQ(x.download(stream), std::vector<unsigned char>(100, 0xff));
  PinnedArray<unsigned char> seen(100, 0);
  void* pooled = allocate_async(stream, 100);
  copy(stream, seen.data(), pooled, 100);
  free_async(stream, pooled);
  stream.ref().synchronize();
  for (size_t i = 0; i < 100; ++i) ASSERT_EQ(seen[i], 0xff);
}

// In a graph each replay finds fresh memory, so nothing can be kept there between replays.
TEST(VirtualMemory, OfAGraphIsFreshAtEachReplay) {
  Stream stream(0);
  DeviceArray<int> seen(std::vector<int>{0});
  begin_capture(stream, CaptureMode::thread_local_);
  int* scratch = static_cast<int*>(allocate_async(stream, 4));
  for_each_index(stream, 1, CopyTo{seen.data(), scratch});
  for_each_index(stream, 1, Set{scratch, 1});
  free_async(stream, scratch);
  Graph graph = end_capture(stream);
  GraphExec exec = graph.instantiate();
  EXPECT_EQ(place_of(scratch), Place::device);
  for (int i = 0; i < 2; ++i) {
    exec.launch(stream);
    EXPECT_EQ(seen.download(stream)[0], -1);
  }
  graph = {};
  EXPECT_EQ(place_of(scratch), Place::device);  // the executable holds it
  exec = {};
  EXPECT_EQ(place_of(scratch), Place::host);
}

// Restores what the knobs were set to.
class Capacity {
 public:
  explicit Capacity(size_t bytes) : before_(virtual_gpu::memory_bytes()) { virtual_gpu::set_memory_bytes(bytes); }
  ~Capacity() { virtual_gpu::set_memory_bytes(before_); }

 private:
  size_t before_;
};

TEST(VirtualMemory, HasTheCapacityThatIsSet) {
  Capacity capacity((1 << 20) + (describe(0).total_bytes - memory_info(0).free_bytes));
  const size_t free_bytes = memory_info(0).free_bytes;
  EXPECT_EQ(free_bytes, size_t(1) << 20);
  void* most = allocate(0, (1 << 20) - 1000);
  EXPECT_EQ(memory_info(0).free_bytes, 1000u);
  try {
    allocate(0, 1001);
    ADD_FAILURE() << "allocated beyond the capacity";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::out_of_memory);
    EXPECT_THAT(error.what(), HasSubstr("1001 bytes were wanted"));
    EXPECT_THAT(error.what(), HasSubstr("1000 of "));
  }
  void* rest = allocate(0, 1000);
  EXPECT_ERROR(allocate(0, 1), Code::out_of_memory);
  free(0, most);
  free(0, rest);
  Stream stream(0);
  EXPECT_ERROR(allocate_async(stream, free_bytes + 1), Code::out_of_memory);
  for (int i = 0; i < 100; ++i) free_async(stream, allocate_async(stream, free_bytes));
  stream.ref().synchronize();
  EXPECT_EQ(memory_info(0).free_bytes, free_bytes);
  free_pinned(allocate_pinned(4 << 20));  // pinned memory is the host's
}

TEST(VirtualMemory, ForeignAddressesAreNamed) {
  int local = 0;
  const auto message = [](auto call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message([&] { free(0, &local); }), HasSubstr(text(&local)));
  void* pinned = allocate_pinned(64);
  EXPECT_THAT(message([&] { free(0, pinned); }), HasSubstr("it is pinned memory"));
  free_pinned(pinned);
  Stream stream(0);
  void* pooled = allocate_async(stream, 64);
  EXPECT_THAT(message([&] { free(0, pooled); }), HasSubstr("stream-ordered pool"));
  free_async(stream, pooled);
  EXPECT_THAT(message([&] { free_async(stream, pooled); }), HasSubstr("not allocated"));
  stream.ref().synchronize();
  DeviceArray<char> x(100);
  std::vector<char> host(200);
  EXPECT_THAT(message([&] { copy(stream, x.data() + 50, host.data(), 51); }), HasSubstr("only 50 are allocated"));
  EXPECT_THAT(message([&] { fill(stream, host.data(), 0, 10); }), HasSubstr("pageable"));
}

TEST(VirtualDevices, AreCounted) {
  const int before = count();
  virtual_gpu::set_device_count(0);
  std::string why;
  EXPECT_EQ(count(&why), 0);
  EXPECT_THAT(why, HasSubstr("ENCORE_VIRTUAL_DEVICES"));
  EXPECT_ERROR(Stream stream(0), Code::no_device);
  virtual_gpu::set_device_count(2);
  EXPECT_EQ(count(), 2);
  EXPECT_NE(describe(0).pci_bus_id, describe(1).pci_bus_id);
  {
    Stream stream(1);
    EXPECT_ERROR(stream.ref().synchronize(), Code::internal);  // CUDA would start device 0 for this thread
    const Current current(1);
    DeviceArray<int> far(std::vector<int>{1, 2}, 1), near(2, 0);
    const size_t free_before = memory_info(1).free_bytes;
    void* more = allocate(1, 1000);
    EXPECT_EQ(memory_info(1).free_bytes, free_before - 1000);
    EXPECT_THROW(free(0, more), Error);
    free(1, more);
    copy_peer(stream, near.data(), 0, far.data(), 1, 8);
    EXPECT_EQ(near.download(stream), (std::vector<int>{1, 2}));
    EXPECT_THROW(copy_peer(stream, near.data(), 1, far.data(), 0, 8), Error);
  }
  virtual_gpu::set_device_count(before);
}

TEST(VirtualStream, FailureStaysUntilCleared) {
  Stream stream(0), other(0);
  DeviceArray<int> x(std::vector<int>{0});
  Event after(0);
  {
    Label label("Gather_3");
    for_each_index(stream, 10, ThrowAt{7});
  }
  for_each_index(stream, 1, AddTo{x.data(), 1});  // does not run
  after.record(stream);                           // but nobody waits for ever
  after.synchronize();
  for (int i = 0; i < 2; ++i) {
    try {
      stream.ref().synchronize();
      ADD_FAILURE() << "the failure got lost";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::device_failed);
      EXPECT_THAT(error.what(), HasSubstr("ThrowAt"));
      EXPECT_THAT(error.what(), HasSubstr("Gather_3"));
      EXPECT_THAT(error.what(), HasSubstr("index 7"));
    }
  }
  EXPECT_ERROR(stream.ref().done(), Code::device_failed);
  other.ref().synchronize();
  EXPECT_TRUE(clear_error(0));
  EXPECT_FALSE(clear_error(count()));
  stream.ref().synchronize();
  for_each_index(stream, 1, AddTo{x.data(), 10});
  EXPECT_EQ(x.download(stream)[0], 10);
}

TEST(VirtualStream, FailureInAGraphNamesTheNode) {
  Stream stream(0);
  begin_capture(stream, CaptureMode::thread_local_);
  {
    Label label("Slice_5");
    for_each_index(stream, 10, ThrowAt{2});
  }
  GraphExec exec = end_capture(stream).instantiate();
  for (Order order : {Order::forward, Order::split}) {
    InOrder in(order);
    exec.launch(stream);
    try {
      stream.ref().synchronize();
      ADD_FAILURE() << "the failure got lost";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("ThrowAt"));
      EXPECT_THAT(error.what(), HasSubstr("Slice_5"));
    }
    clear_error(0);
  }
}

// Pageable memory has been read, or written, when the copy returns.
TEST(VirtualStream, CopiesOfPageableMemoryWait) {
  virtual_gpu::set_delay_us(2000);
  Stream stream(0);
  DeviceArray<int> x(4);
  std::vector<int> host = {1, 2, 3, 4};
  copy(stream, x.data(), host.data(), 16);
  host.assign(4, 0);
  copy(stream, host.data(), x.data(), 16);
  EXPECT_EQ(host, (std::vector<int>{1, 2, 3, 4}));
  virtual_gpu::set_delay_us(0);
}

TEST(VirtualStream, Delays) {
  using Clock = std::chrono::steady_clock;
  virtual_gpu::set_delay_us(2000);
  Stream stream(0);
  const auto begin = Clock::now();
  for (int i = 0; i < 30; ++i) for_each_index(stream, 1, Nothing{});
  stream.ref().synchronize();
  virtual_gpu::set_delay_us(0);
  EXPECT_GT(Clock::now() - begin, std::chrono::milliseconds(5));
}

TEST(VirtualStream, ErrorsOfACaptureSayWhatBrokeIt) {
  Stream stream(0);
  begin_capture(stream, CaptureMode::thread_local_);
  {
    Label label("Conv_9");
    EXPECT_ERROR(stream.ref().synchronize(), Code::capture_forbidden);
  }
  try {
    end_capture(stream);
    ADD_FAILURE() << "an invalid capture gave a graph";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::capture_failed);
    EXPECT_THAT(error.what(), HasSubstr("synchronizing"));
    EXPECT_THAT(error.what(), HasSubstr("Conv_9"));
  }
}

TEST(VirtualTrace, ShowsWhatStreamsDid) {
  Stream stream(0), other(0);
  Event event(0);
  DeviceArray<int> x(std::vector<int>(4, 0)), y(4);
  start_trace();
  {
    Label label("Add_1");
    for_each_index(stream, 4, AddTo{x.data(), 1});
  }
  copy(stream, y.data(), x.data(), 16);
  event.record(stream);
  stream.ref().synchronize();
  fill(other, x.data(), 0, 16);
  other.ref().synchronize();
  begin_capture(stream, CaptureMode::thread_local_);
  {
    Label label("Mul_2");
    for_each_index(stream, 4, MultiplyBy{x.data(), 2});
  }
  GraphExec exec = end_capture(stream).instantiate();
  exec.launch(other);
  other.ref().synchronize();
  const auto entries = stop_trace();

  std::vector<std::string> seen;
  for (const auto& entry : entries)
    if (entry.what != Traced::synchronize)
      seen.push_back(
          text(entry.stream == stream.ref().native() ? "stream" : "other", ' ', name(entry.what), ' ', entry.label));
  EXPECT_EQ(seen, (std::vector<std::string>{"stream kernel Add_1", "stream copy ", "stream record ", "other fill ",
                                            "other graph ", "other kernel Mul_2"}));
  EXPECT_EQ(std::ranges::count(entries, Traced::synchronize, &TraceEntry::what), 3);
  const auto kernel = std::ranges::find(entries, Traced::kernel, &TraceEntry::what);
  ASSERT_NE(kernel, entries.end());
  EXPECT_THAT(kernel->name, HasSubstr("AddTo"));

  for_each_index(stream, 4, Nothing{});
  stream.ref().synchronize();
  EXPECT_TRUE(stop_trace().empty());
}

TEST(VirtualDnn, SaysThatThereIsNone) {
  Dnn dnn(0);
  std::string why;
  EXPECT_FALSE(dnn.available(&why));
  EXPECT_THAT(why, HasSubstr("virtual GPU"));
  Stream stream(0);
  EXPECT_ERROR(dnn.prepare(stream, {}), Code::library_missing);
  EXPECT_ERROR(dnn.run(stream, {}, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr), Code::library_missing);
}

}  // namespace
}  // namespace encore::device::tests
#endif
