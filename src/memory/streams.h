// Streams which may hold work on memory that is freed without naming a stream, and how to wait for that work.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "device/stream.h"

namespace encore::memory {

// Every stream that allocates from an arena, or whose work uses an arena's memory, is enlisted while it lives. Counted:
// two sessions may enlist one caller's stream. The last delist comes before the stream is destroyed, and waits for what
// is enqueued on it; then its memory in all arenas may serve other streams.
void enlist(device::StreamRef stream);
void delist(device::StreamRef stream) noexcept;
bool is_enlisted(device::StreamRef stream);

// Who hears of streams that are enlisted no more, and idle.
class StreamListener {
 public:
  virtual ~StreamListener() = default;
  virtual void stream_is_gone(device::StreamRef stream) = 0;
};
void listen(std::weak_ptr<StreamListener> listener);

// Around a capture of an enlisted stream: what was enqueued before stays waitable meanwhile.
void capture_begins(device::StreamRef stream);
void capture_ends(device::StreamRef stream) noexcept;

// What is enqueued on a stream up to now; null if it can't be told. Of a capture, only what came before it.
using Tail = std::shared_ptr<device::Event>;
Tail tail(device::StreamRef stream);
// Of all enlisted streams that are busy; of one device, or all but one stream.
std::vector<Tail> tails(std::optional<int> device = {}, device::StreamRef but = {});
// These may be used in a thread that captures. False also if the device cannot tell any more.
bool is_done(const std::vector<Tail>& tails) noexcept;
bool is_idle(device::StreamRef stream) noexcept;
bool wait_for(const std::vector<Tail>& tails) noexcept;

}  // namespace encore::memory
