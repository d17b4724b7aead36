#include "memory/staging.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <vector>

#include "device/error.h"
#include "device/graph.h"
#include "device/memory.h"

namespace encore::memory {

namespace {
// Small slots: while one is on the wire the host fills or empties the next.
constexpr size_t kSlots = 32, kSlotBytes = size_t(128) << 10;
}  // namespace

struct Staging::State {
  struct Slot {
    char* pinned = nullptr;  // made when first needed
    device::Event last;      // what still uses the slot
  };

  const int device;
  Slot slots[kSlots];
  std::mutex mutex;
  std::condition_variable given_back;
  std::deque<Slot*> free;  // the longest unused first
  std::atomic<size_t> held_bytes{0};

  explicit State(int device) : device(device) {
    for (Slot& slot : slots) free.push_back(&slot);
  }
  ~State() {
    for (Slot& slot : slots) {
      if (!slot.pinned) continue;
      try {
        device::RelaxedCapture relaxed;
        slot.last.synchronize();
        device::free_pinned(slot.pinned);
      } catch (const std::exception& e) {
        std::fprintf(stderr, "encore: a staging buffer could not be given back: %s\n", e.what());
      }
    }
  }
};

namespace {

// At least one slot, at most `most`, whose earlier use is over. A thread never waits for slots while it has some.
template <class State>
class Lease {
 public:
  using Slot = typename State::Slot;

  Lease(State& state, size_t most) : state_(state) {
    {
      std::unique_lock lock(state_.mutex);
      state_.given_back.wait(lock, [&] { return !state_.free.empty(); });
      for (; !state_.free.empty() && slots.size() < most; state_.free.pop_front()) slots.push_back(state_.free.front());
    }
    try {
      device::RelaxedCapture relaxed;
      for (Slot* slot : slots) {
        if (!slot->last.ref().native()) slot->last = device::Event(state_.device);
        if (!slot->pinned) {
          slot->pinned = static_cast<char*>(device::allocate_pinned(kSlotBytes));
          state_.held_bytes += kSlotBytes;
        }
        slot->last.synchronize();
      }
    } catch (...) {
      give_back();
      throw;
    }
  }
  ~Lease() { give_back(); }
  Lease(const Lease&) = delete;

  std::vector<Slot*> slots;

 private:
  void give_back() {
    {
      std::lock_guard lock(state_.mutex);
      state_.free.insert(state_.free.end(), slots.begin(), slots.end());
    }
    state_.given_back.notify_all();
  }
  State& state_;
};

// What was captured would read or write the buffer again at every replay, when it serves others.
void check_not_capturing(device::StreamRef stream) {
  if (stream.capture_status() != device::CaptureStatus::none)
    fail(Code::capture_forbidden,
         "pageable host memory cannot be copied while the stream captures; bind device memory");
}

size_t slots_for(size_t bytes) { return std::min(kSlots, (bytes + kSlotBytes - 1) / kSlotBytes); }

}  // namespace

Staging::Staging(int device) : state_(std::make_unique<State>(device)) {}
Staging::~Staging() = default;
size_t Staging::held_bytes() const { return state_->held_bytes; }

void Staging::upload(device::StreamRef stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  check_not_capturing(stream);
  auto* target = static_cast<char*>(to);
  auto* source = static_cast<const char*>(from);
  while (bytes > 0) {
    const size_t piece = std::min(bytes, kSlotBytes);
    Lease lease(*state_, 1);
    auto* slot = lease.slots[0];
    std::memcpy(slot->pinned, source, piece);
    device::copy(stream, target, slot->pinned, piece);
    slot->last.record(stream);
    target += piece, source += piece, bytes -= piece;
  }
}

void Staging::download(device::StreamRef stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  check_not_capturing(stream);
  auto* target = static_cast<char*>(to);
  auto* source = static_cast<const char*>(from);
  Lease lease(*state_, slots_for(bytes));
  const size_t count = lease.slots.size(), pieces = (bytes + kSlotBytes - 1) / kSlotBytes;
  const auto size_of = [&](size_t piece) { return std::min(kSlotBytes, bytes - piece * kSlotBytes); };
  // The device fills the later slots while the earliest is emptied.
  for (size_t issued = 0, emptied = 0; emptied < pieces; ++emptied) {
    for (; issued < pieces && issued < emptied + count; ++issued) {
      auto* slot = lease.slots[issued % count];
      device::copy(stream, slot->pinned, source + issued * kSlotBytes, size_of(issued));
      slot->last.record(stream);
    }
    auto* slot = lease.slots[emptied % count];
    {
      device::RelaxedCapture relaxed;
      slot->last.synchronize();
    }
    std::memcpy(target + emptied * kSlotBytes, slot->pinned, size_of(emptied));
  }
}

// What lies in one slot, one after the other.
struct Staging::Downloads::Batch {
  struct Part {
    void* to;
    size_t at, bytes;
  };
  const Staging& staging;
  const device::StreamRef stream;
  Lease<State> lease;
  std::vector<Part> parts = {};
  size_t used = 0;
  bool arrived = false;

  Batch(const Staging& staging, device::StreamRef stream)
      : staging(staging), stream(stream), lease(*staging.state_, 1) {}
  ~Batch() {
    if (arrived) return;
    try {
      slot().last.record(stream);
    } catch (const std::exception&) {  // then nothing is on its way any more
    }
  }
  State::Slot& slot() { return *lease.slots[0]; }
};

Staging::Downloads::Downloads() = default;
Staging::Downloads::~Downloads() = default;

void Staging::Downloads::add(Staging& staging, device::StreamRef stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  check_not_capturing(stream);
  const bool small = bytes <= kSlotBytes / 2;
  const bool fits =
      small && batch_ && &batch_->staging == &staging && batch_->stream == stream && bytes <= kSlotBytes - batch_->used;
  if (!fits) finish();
  if (!small) return staging.download(stream, to, from, bytes);
  if (!batch_) batch_ = std::make_unique<Batch>(staging, stream);
  batch_->parts.push_back({to, batch_->used, bytes});
  device::copy(stream, batch_->slot().pinned + batch_->used, from, bytes);
  batch_->used += (bytes + 63) / 64 * 64;
}

void Staging::Downloads::finish() {
  if (!batch_) return;
  const std::unique_ptr<Batch> batch = std::move(batch_);
  batch->slot().last.record(batch->stream);
  {
    device::RelaxedCapture relaxed;
    batch->slot().last.synchronize();
  }
  batch->arrived = true;
  for (const Batch::Part& part : batch->parts) std::memcpy(part.to, batch->slot().pinned + part.at, part.bytes);
}

}  // namespace encore::memory
