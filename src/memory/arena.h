// Device memory of one session: chunks from a source, split and reused in stream order.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/stream.h"
#include "memory/source.h"

namespace encore::memory {

// How freed memory is used again.
enum class Reuse {
  blocks,        // by the arena, which holds chunks and cuts them
  stream_order,  // by a pool of the driver's; the arena holds nothing
  none,          // it is not: once idle, it goes back
};

struct Settings {
  size_t max_bytes = SIZE_MAX;  // of everything held, graph pools that allocated through this arena included
  Reuse reuse = Reuse::blocks;
  External external;  // where memory comes from, if not from the driver

  bool grow_by_doubling = true;  // else by what is asked for
  size_t first_chunk_bytes = size_t(1) << 20;
  size_t growth_after_shrink_bytes = 0;  // the least, instead of first_chunk_bytes; zero: the same
  size_t largest_growth_bytes = size_t(1) << 30;
  size_t dead_bytes = 0;  // what may be wasted of a block, rather than cut it

  size_t pool_keeps_bytes = 0, pool_keeps_on_shrink_bytes = 0;  // of unused memory, with Reuse::stream_order

  bool operator==(const Settings&) const = default;
};

struct Stats {
  size_t in_use_bytes = 0, held_bytes = 0, graph_bytes = 0, peak_in_use_bytes = 0, limit_bytes = 0, largest_bytes = 0;
  int64_t allocations = 0, reserves = 0, driver_allocations = 0, driver_allocations_in_capture = 0, shrinks = 0;
};

// Who has memory in use: an ONNX node, or one of the words below for what onnxruntime allocates by itself.
struct Holder {
  std::string name;
  size_t bytes = 0;
  int64_t blocks = 0;
};

inline constexpr const char* kReserved = "weights";
inline constexpr const char* kOutsideOfRuns = "weights, and tensors made outside of runs";
inline constexpr const char* kForGraphs = "freed tensors that captured graphs still use";
inline constexpr const char* kAheadOfRun = "inputs, outputs and blocks of intermediates made ahead of nodes";

// Who keeps memory of an arena that could do without.
class Hoard {
 public:
  virtual ~Hoard() = default;
  virtual bool give_back() = 0;  // false if there was nothing; called without a lock, in a thread that allocates
};

class Arena {
 public:
  Arena(int device, Settings settings, std::string owner);  // the owner is named in errors
  // Gives all chunks back, except those with blocks in use: tensors may outlive their session, and since nobody could
  // free them any more, their memory stays for the rest of the process, and one line on stderr says so. Whoever hands
  // out blocks therefore keeps the arena alive as long as they may come back.
  ~Arena();
  Arena(const Arena&) = delete;

  // Aligned to 256 bytes; null for zero bytes. With a stream, which must be enlisted, the memory may be reused by that
  // stream as soon as it is freed for it; without one, or if it is freed for all, or if it is the stream `but`'s, only
  // when the work that was on the device's enlisted streams at the time of the free is done. Error{out_of_memory} says
  // wanted, held, limit, the largest holders and the device's free memory; it comes only when nothing is left to be
  // waited for. Holders are named by device::Label::current(), whose text has to outlive the memory.
  void* allocate(size_t bytes, device::StreamRef stream);
  void* reserve(size_t bytes);  // exactly, a chunk of its own, for what lives long; free() gives it back
  void free(void* address, bool for_its_stream = true, device::StreamRef but = {}) noexcept;
  // To be asked before an allocation fails.
  void add(std::weak_ptr<Hoard> hoard);
  // Gives chunks back, those without a block in use and whose stream has nothing left to do; waits for no stream.
  void shrink();
  Stats stats() const;
  std::vector<Holder> holders() const;  // the largest first
  // Where its memory comes from, for graphs to use the same.
  const std::shared_ptr<Source>& source() const;

 private:
  struct State;
  template <class Allocate>
  void* unless_exhausted(Allocate allocate);

  std::shared_ptr<State> state_;
};

}  // namespace encore::memory
