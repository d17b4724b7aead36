// What the regions of a session have in common: memory for graphs to work in, streams to capture on, and how many
// graphs are kept, and of how many bytes.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "automatic/report.h"
#include "device/capture_stream.h"
#include "memory/arena.h"
#include "memory/streams.h"
#include "profile/recorder.h"

namespace encore::automatic {

class RegionGraphs;

// Scratch of the graphs of one stream, which run one after the other. Each keeps what it was captured with. It is a
// chunk of its own, so that all of it goes back where a run needs memory.
class Workspace {
 public:
  static constexpr const char* kHolder = "scratch of automatic graphs";  // in the memory report
  Workspace(std::shared_ptr<memory::Arena> arena, size_t bytes);
  ~Workspace() { arena_->free(at_); }
  Workspace(const Workspace&) = delete;
  char* at() const { return static_cast<char*>(at_); }
  size_t bytes() const { return bytes_; }
  // Held by a run from the launch of a graph that works here until it has what comes of it: several threads may have
  // been given the stream.
  std::mutex& launching() { return launching_; }

 private:
  std::mutex launching_;
  const std::shared_ptr<memory::Arena> arena_;
  void* const at_;
  const size_t bytes_;
};

// How often something is used, of late.
class Heat {
 public:
  double add(uint64_t now) {  // which was used so often before
    const double before = at(now);
    value_ = before + 1, since_ = std::max(since_, now);
    return before;
  }
  double at(uint64_t now) const;

 private:
  double value_ = 0;
  uint64_t since_ = 0;
};

class GraphStore final : public memory::Hoard, public memory::StreamListener {
 public:
  // At most so many graphs are kept, and of so many bytes: those that are used most. With none, runs are planned all
  // the same. Without a number of bytes it is half of what the session may have.
  GraphStore(int device, std::shared_ptr<memory::Arena> arena, size_t most_graphs,
             std::optional<size_t> most_bytes = SIZE_MAX, std::shared_ptr<profile::Recorder> recorder = {});
  GraphStore(const GraphStore&) = delete;

  int device() const { return device_; }
  bool captures() const { return most_graphs_ > 0; }
  uint64_t now() { return runs_.fetch_add(1, std::memory_order_relaxed); }  // counts runs of regions

  // Whether a run may take so much before it needs it. Not where that would be more than there is, though each step of
  // the run finds what it needs, or where memory has run out of late.
  bool has_room(size_t bytes, uint64_t now);
  // Error{out_of_memory} if there is none.
  std::shared_ptr<Workspace> workspace(device::StreamRef stream, size_t bytes);
  // Another graph is to be kept.
  struct Wanted {
    double heat;  // so often it is used
    device::StreamRef stream;
    size_t workspace_bytes;
    size_t nodes = 0;       // none before it is captured
    bool replaces = false;  // one of those that are kept
  };
  // Drops those that are used less, as many as have to go. Why not, if that is not enough.
  std::string make_room(const Wanted& wanted, uint64_t now);
  // Where memory has run out, all graphs are dropped, and for a while nothing is taken ahead, so there are no new ones.
  bool give_back() override;
  void stream_is_gone(device::StreamRef stream) override;  // whoever makes a store has it listen
  // What is captured is captured again.
  void forget_graphs();
  bool is_profiled() const { return recorder_ && recorder_->is_on(); }
  profile::Recorder& recorder() { return *recorder_; }

  std::vector<RegionReport> reports();
  HeldReport held();

  // A stream to capture on, until the end of the scope.
  class LentStream {
   public:
    explicit LentStream(GraphStore& store);
    ~LentStream();
    LentStream(const LentStream&) = delete;
    operator device::StreamRef() const { return stream_; }

   private:
    GraphStore& store_;
    device::CaptureStream stream_;
  };

 private:
  friend class RegionGraphs;
  // A graph, as it is kept.
  struct Kept {
    RegionGraphs* region;
    const void* graph;
    double heat;
    std::shared_ptr<Workspace> workspace;
    size_t nodes;
  };
  class Tally;

  void add(RegionGraphs* region);
  void remove(RegionGraphs* region);
  size_t grown(size_t held, size_t bytes);
  // The device is asked once it matters: a session is made without.
  size_t most_bytes();
  // With the mutex:
  void list_kept(uint64_t now, std::vector<Kept>& kept) const;  // the coldest first; let go of without the mutex
  std::shared_ptr<Workspace> latest(device::StreamRef stream) const;

  const int device_;
  const std::shared_ptr<memory::Arena> arena_;
  const size_t most_graphs_, limit_bytes_;
  std::optional<size_t> most_bytes_;  // most_bytes() fills it in
  std::once_flag most_bytes_known_;
  const std::shared_ptr<profile::Recorder> recorder_;  // null: nobody profiles
  std::atomic<uint64_t> runs_{0};
  std::atomic<uint64_t> next_ahead_{0};                     // not before that run
  std::mutex mutex_;                                        // guards the rest; a region's comes after it
  std::map<void*, std::shared_ptr<Workspace>> workspaces_;  // by stream: the latest
  std::vector<device::CaptureStream> capture_streams_;      // idle ones
  std::vector<RegionGraphs*> regions_;
};

}  // namespace encore::automatic
