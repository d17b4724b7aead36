// Order on a stream and between streams.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <utility>

#include "device/device.h"
#include "device/external_stream.h"
#include "kernels.h"

namespace encore::device::tests {

struct ShiftIn {
  unsigned* x;
  unsigned value;
  DEVICE_FN void operator()(int64_t i) const { x[i] = x[i] * 3 + value; }
};

namespace {

TEST(Device, IsDescribed) {
  ASSERT_GT(count(), 0);
  const Description description = describe(0);
  EXPECT_FALSE(description.name.empty());
  EXPECT_GT(description.total_bytes, 0u);
  EXPECT_GT(multiprocessors(0), 0);
  EXPECT_GT(description.compute_capability_major, 0);
  EXPECT_FALSE(description.pci_bus_id.empty());
  EXPECT_ERROR(describe(count()), Code::no_device);
  EXPECT_ERROR(describe(-1), Code::no_device);
  EXPECT_ERROR(Current current(count()), Code::no_device);
  EXPECT_TRUE(clear_error(0));
}

TEST(Stream, RunsWorkInOrder) {
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>(1000, 1));
  for (int i = 0; i < 20; ++i) {
    for_each_index(stream, 1000, AddTo{x.data(), 1});
    for_each_index(stream, 1000, MultiplyBy{x.data(), 2});
  }
  int expected = 1;
  for (int i = 0; i < 20; ++i) expected = (expected + 1) * 2;
  EXPECT_EQ(x.download(stream), std::vector<int>(1000, expected));
}

TEST(Stream, IsAsynchronous) {
  Gate gate;
  Stream stream(0);
  EXPECT_TRUE(stream.ref().done());
  gate.close(stream);
  EXPECT_FALSE(stream.ref().done());
  gate.open();
  stream.ref().synchronize();
  EXPECT_TRUE(stream.ref().done());
}

TEST(Stream, RunsBesideOthers) {
  Gate gate;
  Stream busy(0), free(0);
  PinnedArray<int> x(1, 1);
  gate.close(busy);
  for_each_index(free, 1, AddTo{x.data(), 1});
  free.ref().synchronize();
  EXPECT_EQ(x[0], 2);
  EXPECT_FALSE(busy.ref().done());
  gate.open();
  busy.ref().synchronize();
}

TEST(Stream, WorkOutlivesIt) {
  Gate gate;
  DeviceArray<int> x(std::vector<int>{1});
  Event end(0);
  {
    Stream stream(0);
    gate.close(stream);
    for_each_index(stream, 1, AddTo{x.data(), 41});
    end.record(stream);
  }
  EXPECT_FALSE(end.done());
  gate.open();
  end.synchronize();
  Stream reader(0);
  EXPECT_EQ(x.download(reader)[0], 42);
}

TEST(Stream, Moves) {
  Stream a(0), b;
  EXPECT_FALSE(b.ref());
  const StreamRef native = a;
  b = std::move(a);
  EXPECT_EQ(b.ref(), native);
  EXPECT_EQ(b.ref().device(), 0);
  Stream c(std::move(b));
  EXPECT_EQ(c.ref(), native);
  EXPECT_FALSE(b.ref());
  c.ref().synchronize();
}

TEST(Stream, IsRefusedWithoutADevice) { EXPECT_ERROR(Stream stream(count()), Code::no_device); }

TEST(Stream, TakesWorkFromManyThreads) {
  constexpr int kThreads = 4, kEach = 200;
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>(64, 0));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < kEach; ++n) for_each_index(stream, 64, AddTo{x.data(), 1});
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(x.download(stream), std::vector<int>(64, kThreads * kEach));
}

TEST(Event, NeverRecordedIsDone) {
  Event event(0);
  EXPECT_TRUE(event.done());
  event.synchronize();
  Stream stream(0);
  stream.ref().wait(event);
  stream.ref().synchronize();
}

TEST(Event, OrdersStreams) {
  Gate gate;
  Stream first(0), second(0);
  DeviceArray<int> x(std::vector<int>(4096, 0)), y(4096);
  gate.close(first);
  for_each_index(first, 4096, AddTo{x.data(), 7});
  Event ready(0);
  ready.record(first);
  second.ref().wait(ready);
  for_each_index(second, 4096, CopyTo{y.data(), x.data()});
  EXPECT_FALSE(ready.done());
  EXPECT_FALSE(second.ref().done());
  gate.open();
  EXPECT_EQ(y.download(second), std::vector<int>(4096, 7));
  EXPECT_TRUE(ready.done());
}

// Hands values around a ring of streams; each wait is needed.
TEST(Event, OrdersARingOfStreams) {
  constexpr int kRounds = 50;
  Stream streams[3] = {Stream(0), Stream(0), Stream(0)};
  DeviceArray<unsigned> x(std::vector<unsigned>(1024, 0));
  Event turn(0);
  for (int round = 0; round < kRounds; ++round)
    for (auto& stream : streams) {
      stream.ref().wait(turn);
      for_each_index(stream, 1024, ShiftIn{x.data(), unsigned(round)});
      turn.record(stream);
    }
  unsigned expected = 0;
  for (int round = 0; round < kRounds; ++round)
    for (int i = 0; i < 3; ++i) expected = expected * 3 + unsigned(round);
  turn.synchronize();
  EXPECT_EQ(x.download(streams[0]), std::vector<unsigned>(1024, expected));
}

TEST(Event, WaitIsForTheNewestRecordAtTheCall) {
  Gate gate;
  Stream recorder(0), waiter(0);
  Event event(0);
  event.record(recorder);
  waiter.ref().wait(event);  // the first record, which nothing holds up
  gate.close(recorder);
  event.record(recorder);
  waiter.ref().synchronize();
  EXPECT_FALSE(event.done());
  waiter.ref().wait(event);
  EXPECT_FALSE(waiter.ref().done());
  gate.open();
  waiter.ref().synchronize();
  EXPECT_TRUE(event.done());
}

TEST(Event, MayDieBeforeItHappens) {
  Gate gate;
  Stream first(0), second(0);
  DeviceArray<int> x(std::vector<int>{1});
  {
    Event event(0);
    gate.close(first);
    for_each_index(first, 1, AddTo{x.data(), 1});
    event.record(first);
    second.ref().wait(event);
  }
  for_each_index(second, 1, MultiplyBy{x.data(), 10});
  EXPECT_FALSE(second.ref().done());
  gate.open();
  EXPECT_EQ(x.download(second)[0], 20);
}

TEST(ExternalStream, IsBorrowed) {
  const Stream stream(0);
  EXPECT_EQ(external_stream(stream.ref().native(), 0, true), stream.ref());
  DeviceArray<int> x(std::vector<int>(1, 1));
  for_each_index(external_stream(stream.ref().native(), 0, false), 1, AddTo{x.data(), 1});
  EXPECT_EQ(x.download(stream)[0], 2);
}

TEST(ExternalStream, ThatIsNoneIsRefused) {
  EXPECT_ERROR(external_stream(reinterpret_cast<void*>(0x7fff0000dead000), 0, false), Code::invalid_input);
  EXPECT_ERROR(external_stream(reinterpret_cast<void*>(2), 0, false), Code::invalid_input);
  EXPECT_ERROR(external_stream(reinterpret_cast<void*>(1), 0, true), Code::invalid_input);  // the legacy default stream
}

TEST(ExternalStream, OfAnotherDeviceIsRefused) {
  if (count() < 2) GTEST_SKIP() << "this takes two devices";
  const Stream other(1);
  EXPECT_ERROR(external_stream(other.ref().native(), 0, false), Code::invalid_input);
}

TEST(Event, TellsTheTimeBetween) {
  Stream stream(0), other(0);
  Gate gate;
  Event first(0, Timing::on), second(0, Timing::on), third(0, Timing::on);
  first.record(stream);
  first.synchronize();  // a thread of a busy machine may come to it late
  gate.close(stream);
  second.record(stream);
  third.record(other);
  EXPECT_EQ(elapsed_us(first, second), std::nullopt);
  EXPECT_EQ(elapsed_us(second, first), std::nullopt);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  gate.open();
  stream.ref().synchronize();
  other.ref().synchronize();
  const double time = elapsed_us(first, second).value();
  EXPECT_GT(time, 19'000);
  EXPECT_LT(time, 2'000'000);
  EXPECT_LT(elapsed_us(first, third).value(), time);  // of any stream of the device
  first.record(stream);
  first.synchronize();
  EXPECT_GT(elapsed_us(second, first).value(), 0);
}

TEST(Event, WithoutTimingTellsNone) {
  Stream stream(0);
  Event plain(0), timed(0, Timing::on), never(0, Timing::on);
  plain.record(stream);
  timed.record(stream);
  stream.ref().synchronize();
  EXPECT_ERROR(elapsed_us(plain, timed), Code::invalid_input);
  EXPECT_ERROR(elapsed_us(timed, plain), Code::invalid_input);
  EXPECT_ERROR(elapsed_us(timed, never), Code::invalid_input);
  EXPECT_EQ(elapsed_us(timed, timed), 0.0);
}

TEST(Event, SynchronizeWaits) {
  Gate gate;
  Stream stream(0);
  PinnedArray<int> seen(1, 0);
  gate.close(stream);
  for_each_index(stream, 1, Set{seen.data(), 5});
  Event event(0);
  event.record(stream);
  std::thread opener([&] { gate.open(); });
  event.synchronize();
  EXPECT_EQ(seen[0], 5);
  opener.join();
}

}  // namespace
}  // namespace encore::device::tests
