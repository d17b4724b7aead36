#include "memory/staging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

#include "device/graph.h"
#include "gate.h"

namespace encore::memory {
namespace {

using namespace encore::test;

std::vector<unsigned char> noise(size_t bytes, unsigned seed) {
  std::vector<unsigned char> values(bytes);
  for (auto& value : values) value = (unsigned char)((seed = seed * 1664525 + 1013904223) >> 24);
  return values;
}

class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes) : data_(device::allocate(0, bytes)) {}
  ~DeviceBuffer() { device::free(0, data_); }
  void* get() const { return data_; }

 private:
  void* data_;
};

TEST(Staging, brings_any_size_there_and_back) {
  EnlistedStream stream;
  Staging staging(0);
  for (size_t bytes :
       {size_t(1), size_t(5000), size_t(128) << 10, (size_t(128) << 10) + 1, size_t(600000), (size_t(6) << 20) + 3}) {
    DeviceBuffer buffer(bytes);
    const auto sent = noise(bytes, unsigned(bytes));
    std::vector<unsigned char> source(bytes + 1);  // from any address
    std::ranges::copy(sent, source.begin() + 1);
    staging.upload(stream, buffer.get(), source.data() + 1, bytes);
    std::ranges::fill(source, (unsigned char)(0));  // it has been read
    std::vector<unsigned char> received(bytes);
    staging.download(stream, received.data(), buffer.get(), bytes);
    EXPECT_EQ(received, sent) << bytes;
  }
  staging.upload(stream, nullptr, nullptr, 0);
  staging.download(stream, nullptr, nullptr, 0);
}

TEST(Staging, uploads_without_waiting_for_the_stream) {
  EnlistedStream stream;
  Staging staging(0);
  DeviceBuffer buffer(4096);
  const auto sent = noise(4096, 1);
  Gate gate;
  gate.hold(stream);
  staging.upload(stream, buffer.get(), sent.data(), sent.size());  // hangs if it waits
  gate.open();
  std::vector<unsigned char> received(sent.size());
  staging.download(stream, received.data(), buffer.get(), sent.size());
  EXPECT_EQ(received, sent);
}

TEST(Staging, small_uploads_share_slots_and_none_waits_for_the_stream) {
  EnlistedStream stream, other;
  Staging staging(0);
  constexpr size_t kEach = 3000, kCount = 300;
  DeviceBuffer buffer(kEach * kCount);
  const auto sent = noise(kEach * kCount, 9);
  const auto part = [&](size_t i) { return static_cast<char*>(buffer.get()) + i * kEach; };
  Gate gate;
  gate.hold(stream);
  for (size_t i = 0; i < kCount; ++i) {  // hangs if they take a slot each
    auto source = std::vector<unsigned char>(sent.begin() + long(i * kEach), sent.begin() + long((i + 1) * kEach));
    staging.upload(i == 100 ? other : stream, part(i), source.data(), kEach);
  }
  gate.open();
  for (const auto* each : {&stream, &other}) (*each)->synchronize();
  std::vector<unsigned char> received(sent.size());
  staging.download(stream, received.data(), buffer.get(), sent.size());
  EXPECT_EQ(received, sent);
}

TEST(Staging, brings_several_small_ones_together) {
  EnlistedStream stream, other;
  Staging staging(0);
  constexpr size_t kBytes = size_t(1) << 20;
  DeviceBuffer buffer(kBytes);
  const auto sent = noise(kBytes, 5);
  staging.upload(stream, buffer.get(), sent.data(), kBytes);
  stream->synchronize();
  // Of all sizes, more than one slot holds, and in the middle another stream and one that is no small one.
  std::vector<std::vector<unsigned char>> received;
  Staging::Downloads downloads;
  for (size_t i = 0; i < 200; ++i) received.emplace_back(i == 90 ? size_t(700) << 10 : i * 37 % 5000);
  for (size_t i = 0; i < received.size(); ++i)
    downloads.add(staging, i % 50 == 49 ? other : stream, received[i].data(), static_cast<char*>(buffer.get()) + i,
                  received[i].size());
  downloads.finish();
  for (size_t i = 0; i < received.size(); ++i)
    EXPECT_TRUE(std::ranges::equal(received[i], std::span(sent).subspan(i, received[i].size()))) << i;
  downloads.finish();
}

TEST(Staging, brings_several_small_ones_by_one_kernel) {
  EnlistedStream stream;
  Staging staging(0);
  constexpr size_t kBytes = size_t(8) << 20;
  DeviceBuffer buffer(kBytes);
  const auto at = [&](size_t byte) { return static_cast<char*>(buffer.get()) + byte; };
  // Of all sizes and at all addresses, more than a slot holds.
  for (const size_t count : {size_t(2), size_t(40), size_t(90)}) {
    std::vector<std::vector<unsigned char>> sent, received;
    std::vector<device::Copy> up, down;
    size_t place = 0;
    for (size_t i = 0; i < count; ++i) {
      sent.push_back(noise(1 + i * 7919 % (Staging::kSmall / (i % 3 ? 100 : 2)), unsigned(i)));
      received.emplace_back(sent[i].size());
    }
    sent[0] = noise(Staging::kSmall, 1), received[0].resize(Staging::kSmall);
    for (size_t i = 0; i < count; ++i) {
      up.push_back({sent[i].data(), at(place), sent[i].size()});
      down.push_back({at(place), received[i].data(), sent[i].size()});
      place += sent[i].size() + i % 5;
    }
    ASSERT_LE(place, kBytes);
    const auto kept = sent;
    staging.upload(stream, up);
    for (auto& each : sent) std::ranges::fill(each, (unsigned char)(0));  // they have been read
    Staging::Downloads downloads;
    std::vector<unsigned char> alone(100);
    downloads.add(staging, stream, alone.data(), at(0), alone.size());
    downloads.add(staging, stream, down);
    downloads.finish();
    EXPECT_EQ(received, kept) << count;
    EXPECT_TRUE(std::ranges::equal(alone, std::span(kept[0]).first(alone.size())));
  }
  staging.upload(stream, {});
}

TEST(Staging, forgets_downloads_that_nobody_finishes) {
  EnlistedStream stream;
  Staging staging(0);
  DeviceBuffer buffer(4096);
  std::vector<unsigned char> untouched(4096, 7);
  Gate gate;
  gate.hold(stream);
  {
    Staging::Downloads downloads;
    downloads.add(staging, stream, untouched.data(), buffer.get(), untouched.size());
  }
  gate.open();
  const auto sent = noise(5 << 20, 1);  // through all slots, that one too
  DeviceBuffer large(sent.size());
  std::vector<unsigned char> received(sent.size());
  staging.upload(stream, large.get(), sent.data(), sent.size());
  staging.download(stream, received.data(), large.get(), sent.size());
  EXPECT_EQ(received, sent);
  EXPECT_EQ(untouched, std::vector<unsigned char>(4096, 7));
}

TEST(Staging, serves_many_threads) {
  Staging staging(0);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 5; ++t) {
    threads.emplace_back([&, t] {
      EnlistedStream stream;
      const size_t bytes = (size_t(1) << 20) * (1 + t % 3) + t * 77;
      DeviceBuffer buffer(bytes);
      for (unsigned round = 0; round < 3; ++round) {
        const auto sent = noise(bytes, t * 100 + round);
        staging.upload(stream, buffer.get(), sent.data(), bytes);
        std::vector<unsigned char> received(bytes);
        staging.download(stream, received.data(), buffer.get(), bytes);
        EXPECT_TRUE(received == sent);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Staging, refuses_a_capturing_stream_and_leaves_the_capture_valid) {
  EnlistedStream stream, other;
  Staging staging(0);
  DeviceBuffer buffer(64);
  char host[64] = {};
  device::begin_capture(stream, device::CaptureMode::thread_local_);
  EXPECT_THAT(message_of([&] { staging.upload(stream, buffer.get(), host, 64); }, Code::capture_forbidden),
              testing::HasSubstr("bind device memory"));
  EXPECT_THROW(staging.download(stream, host, buffer.get(), 64), Error);
  staging.upload(other, buffer.get(), host, 64);  // another stream's copies go on in this thread
  staging.download(other, host, buffer.get(), 64);
  EXPECT_EQ(device::end_capture(stream).size(), 0u);
}

}  // namespace
}  // namespace encore::memory
