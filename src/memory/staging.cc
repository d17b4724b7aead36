#include "memory/staging.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <vector>

#include "device/device.h"
#include "device/error.h"
#include "device/gone.h"
#include "device/graph.h"
#include "device/memory.h"
#include "memory/copy_past_caches.h"

namespace encore::memory {

namespace {
constexpr size_t kSlots = 4, kSlotBytes = size_t(1) << 20;
size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

// While one piece is on the wire the host moves the next: a few, since each costs a microsecond or two.
constexpr size_t kSmallestPiece = Staging::kSmall, kPieces = kSlotBytes / kSmallestPiece;
size_t piece_for(size_t bytes) { return std::clamp(aligned((bytes + 2) / 3), kSmallestPiece, kSlotBytes); }

}  // namespace

struct Staging::State {
  struct Slot {
    char* pinned = nullptr;          // made when first needed
    device::Event last;              // what still uses the slot
    device::StreamRef user;          // whose that is,
    size_t used = 0;                 // and how much it uses, if more may be put behind it
    device::Event arrived[kPieces];  // of a download
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
        const device::Current current(device);
        const device::RelaxedCapture relaxed;
        slot.last.synchronize();
        device::free_pinned(slot.pinned);
      } catch (const std::exception& e) {
        device::complain("a staging buffer could not be given back", e);
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
    wait();
  }
  // One for an upload, which begins at `at`: small ones may share it.
  Lease(State& state, device::StreamRef stream, size_t bytes) : state_(state) {
    {
      std::unique_lock lock(state_.mutex);
      state_.given_back.wait(lock, [&] { return !state_.free.empty(); });
      Slot* const latest = state_.free.back();
      if (latest->used > 0 && latest->user == stream && bytes <= kSlotBytes - latest->used) {
        slots.push_back(latest);
        state_.free.pop_back();
        at = latest->used;
      } else {
        slots.push_back(state_.free.front());
        state_.free.pop_front();
      }
    }
    if (at == 0) {
      wait();
      return;
    }
    try {
      stream.wait(slots[0]->last);  // another stream may have had the handle before
    } catch (...) {
      give_back();
      throw;
    }
  }
  ~Lease() { give_back(); }
  Lease(const Lease&) = delete;

  // That the stream uses the slots; up to there if others may share them.
  void note(device::StreamRef stream, size_t used = 0) {
    for (Slot* slot : slots) {
      slot->last.record(stream);
      slot->user = stream, slot->used = used;
    }
  }

  std::vector<Slot*> slots;
  size_t at = 0;

 private:
  void wait() {
    try {
      device::RelaxedCapture relaxed;
      for (Slot* slot : slots) {
        if (!slot->last.ref().native()) slot->last = device::Event(state_.device);
        if (!slot->pinned) {
          slot->pinned = static_cast<char*>(device::allocate_pinned(kSlotBytes));
          state_.held_bytes += kSlotBytes;
        }
        slot->last.synchronize();
        slot->used = 0;
      }
    } catch (...) {
      give_back();
      throw;
    }
  }
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

// Whatever has gone wrong, work that was enqueued may still use the slots.
template <class State>
void note_failure(Lease<State>& lease, device::StreamRef stream) noexcept {
  try {
    const device::Current current(stream.device());
    lease.note(stream);
  } catch (const std::exception&) {  // then nothing is on its way any more
  }
}

}  // namespace

Staging::Staging(int device) : state_(std::make_unique<State>(device)) {}
Staging::~Staging() = default;
size_t Staging::held_bytes() const { return state_->held_bytes; }

void Staging::upload(device::StreamRef stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  check_not_capturing(stream);
  auto* target = static_cast<char*>(to);
  auto* source = static_cast<const char*>(from);
  const size_t most = piece_for(bytes);
  while (bytes > 0) {
    const size_t part = std::min(bytes, kSlotBytes);
    Lease lease(*state_, stream, part);
    char* const pinned = lease.slots[0]->pinned + lease.at;
    for (size_t at = 0; at < part; at += most) {
      const size_t piece = std::min(most, part - at);
      copy_past_caches(pinned + at, source + at, piece);
      device::copy(stream, target + at, pinned + at, piece);
    }
    lease.note(stream, std::min(aligned(lease.at + part), kSlotBytes));
    target += part, source += part, bytes -= part;
  }
}

void Staging::upload(device::StreamRef stream, std::span<const device::Copy> copies) {
  check_not_capturing(stream);
  while (!copies.empty()) {
    size_t count = 0, bytes = 0;
    for (; count < copies.size() && bytes + aligned(copies[count].bytes) <= kSlotBytes; ++count)
      bytes += aligned(copies[count].bytes);
    Lease lease(*state_, stream, bytes);
    std::vector<device::Copy> staged(copies.begin(), copies.begin() + long(count));
    size_t at = lease.at;
    for (device::Copy& copy : staged) {
      char* const pinned = lease.slots[0]->pinned + at;
      std::memcpy(pinned, copy.from, copy.bytes);
      copy.from = pinned;
      at += aligned(copy.bytes);
    }
    device::copy_many(stream, staged);
    lease.note(stream, at);
    copies = copies.subspan(count);
  }
}

void Staging::download(device::StreamRef stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  check_not_capturing(stream);
  auto* target = static_cast<char*>(to);
  auto* source = static_cast<const char*>(from);
  const size_t most = piece_for(bytes), room = kSlotBytes / most;  // of a slot, in pieces
  const size_t pieces = (bytes + most - 1) / most;
  Lease lease(*state_, std::min(kSlots, (pieces + room - 1) / room));
  const size_t places = lease.slots.size() * room;
  const auto size_of = [&](size_t piece) { return std::min(most, bytes - piece * most); };
  const auto pinned = [&](size_t piece) {
    const size_t place = piece % places;
    return lease.slots[place / room]->pinned + place % room * most;
  };
  const auto arrived = [&](size_t piece) -> device::Event& {
    const size_t place = piece % places;
    return lease.slots[place / room]->arrived[place % room];
  };
  try {
    // The device brings the later pieces while the earliest is moved on.
    for (size_t issued = 0, moved = 0; moved < pieces; ++moved) {
      for (; issued < pieces && issued < moved + places; ++issued) {
        device::copy(stream, pinned(issued), source + issued * most, size_of(issued));
        if (!arrived(issued).ref().native()) arrived(issued) = device::Event(state_->device);
        arrived(issued).record(stream);
      }
      {
        device::RelaxedCapture relaxed;
        arrived(moved).synchronize();
      }
      std::memcpy(target + moved * most, pinned(moved), size_of(moved));
    }
  } catch (...) {
    note_failure(lease, stream);
    throw;
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
    if (!arrived) note_failure(lease, stream);
  }
  State::Slot& slot() { return *lease.slots[0]; }
  bool fits(size_t bytes) const { return bytes <= kSlotBytes - used; }
  // Where a tensor is going to be until it is moved to `to`.
  void* place(void* to, size_t bytes) {
    parts.push_back({to, used, bytes});
    used += aligned(bytes);
    return slot().pinned + parts.back().at;
  }
};

Staging::Downloads::Downloads() = default;
Staging::Downloads::~Downloads() = default;

void Staging::Downloads::add(Staging& staging, device::StreamRef stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  check_not_capturing(stream);
  const bool small = bytes <= kSmall;
  if (!small || !has_room(staging, stream, bytes)) finish();
  if (!small) return staging.download(stream, to, from, bytes);
  if (!batch_) batch_ = std::make_unique<Batch>(staging, stream);
  device::copy(stream, batch_->place(to, bytes), from, bytes);
}

void Staging::Downloads::add(Staging& staging, device::StreamRef stream, std::span<const device::Copy> copies) {
  check_not_capturing(stream);
  std::vector<device::Copy> staged;
  const auto launch = [&] {
    device::copy_many(stream, staged);
    staged.clear();
  };
  for (const device::Copy& copy : copies) {
    if (!has_room(staging, stream, copy.bytes)) launch(), finish();
    if (!batch_) batch_ = std::make_unique<Batch>(staging, stream);
    staged.push_back({copy.from, batch_->place(copy.to, copy.bytes), copy.bytes});
  }
  launch();
}

bool Staging::Downloads::has_room(const Staging& staging, device::StreamRef stream, size_t bytes) const {
  return batch_ && &batch_->staging == &staging && batch_->stream == stream && batch_->fits(bytes);
}

void Staging::Downloads::finish() {
  if (!batch_) return;
  const std::unique_ptr<Batch> batch = std::move(batch_);
  const device::Current current(batch->stream.device());
  batch->lease.note(batch->stream);
  {
    device::RelaxedCapture relaxed;
    batch->slot().last.synchronize();
  }
  batch->arrived = true;
  for (const Batch::Part& part : batch->parts) std::memcpy(part.to, batch->slot().pinned + part.at, part.bytes);
}

}  // namespace encore::memory
