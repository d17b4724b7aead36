// The graphs of one region: nobody asks for them. What has run once with the same shapes is captured when it comes
// again, and replayed from then on.
#pragma once
#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "automatic/graph_store.h"
#include "automatic/longer.h"
#include "automatic/memory_plan.h"
#include "automatic/places.h"
#include "automatic/report.h"
#include "automatic/runs.h"
#include "device/copy_many.h"
#include "device/graph.h"
#include "ops/op.h"

namespace encore::automatic {

// What `program` runs, which is to live longer.
struct Region {
  std::string name;
  size_t nodes;
  std::vector<std::string> inputs, outputs;
  std::vector<ops::GrowingDim> growing;
};

class RegionGraphs {
 public:
  // The store is to live longer, too.
  RegionGraphs(Region region, const ops::Op& program, GraphStore& store);
  ~RegionGraphs();
  RegionGraphs(const RegionGraphs&) = delete;

  // One run. Whatever may go wrong with graphs, it runs.
  void run(ops::Context& outer);
  void note_padded();  // a run is with a dimension made longer
  // The region is a part of another one, which runs its program; as a rule this is not asked to.
  void become_a_part() { is_part_ = true; }
  bool is_used() const;  // by itself, or it is no part
  RegionReport report() const;

 private:
  friend class GraphStore;
  // What is known of a set of shapes once it has run.
  struct Known {
    Record record;
    std::vector<size_t> bytes;  // by tensor of the border; zero of what is collected, which is given out afterwards
    bool is_made_ahead(size_t output) const {
      return record.outputs[output] && std::ranges::none_of(record.collected, [&](const Collected& collected) {
               return collected.output == output;
             });
    }
    // Made when the shapes come again: many never do, and a plan takes longer than to record.
    const MemoryPlan& plan() const {
      std::call_once(planned_, [&] { plan_ = MemoryPlan(record.scratch, record.apart); });
      return plan_;
    }

   private:
    mutable std::once_flag planned_;
    mutable MemoryPlan plan_;
  };
  // Of a graph's workspace, behind its scratch: where it has what it copies and collects, and the counts of the latter.
  struct Layout {
    std::vector<size_t> offsets = {};  // by tensor of the border
    size_t counts = 0, bytes = 0;
  };
  struct Replay {
    device::StreamRef stream;
    const device::FaultCell* faults;
    Addresses at;              // what it was captured with
    std::vector<bool> staged;  // whether that is memory of its own, to be copied to or from
    std::shared_ptr<const Known> known = {};
    Layout layout = {};
    std::shared_ptr<Workspace> workspace = {};
    int64_t* counts = nullptr;                         // of what is collected
    std::shared_ptr<profile::Timeline> timeline = {};  // null if it was captured while nobody profiled
    device::Graph graph = {};
    device::GraphExec exec = {};
    bool is_bare = false;  // it is launched, and nothing else is to be done
    size_t nodes = 0;
    std::vector<size_t> copied = {};           // what is staged, and not empty
    int64_t copies = 0;                        // of what is staged
    int64_t spare = 0;                         // of these, without those that are longer than they were
    device::CapturedCopies in = {}, out = {};  // guarded by workspace->launching()
  };
  struct Shapes {
    std::shared_ptr<const Known> known;  // null: it has not run yet, or is too long to be known
    bool is_too_long = false;
    Heat heat;
    std::map<void*, Places> places;  // by stream, as long as there is the stream
    std::vector<std::shared_ptr<Replay>> replays;
    size_t nodes = 0;     // of the latest graph, kept or not
    std::string refusal;  // why the last attempt came to nothing
    uint64_t next_attempt = 0, patience = 0;

    Places& places_on(device::StreamRef stream) { return places[stream.native()]; }
  };
  using Key = std::vector<int64_t>;
  struct Hash {
    size_t operator()(const Key& key) const;
  };
  // What a run is found by. Its memory is the calling thread's next run's.
  struct Border {
    Outlines inputs;
    Key key;
    Addresses at;
  };
  // A run, as it is known and captured.
  struct Run : Border {
    ops::Context& outer;
    uint64_t now;
    std::vector<Longer> longer = {};
    double heat = 0;

    void read_inputs();
    void make_key();
    const Longer* find_longer(size_t input) const;
  };
  // Why it is not replayed.
  struct Reason {
    int64_t RegionReport::*kind;
    std::string words;
  };

  // With the mutex:
  Shapes& find(const Key& key, uint64_t now);
  static bool stays(Places& places, const Run& run);
  std::set<std::string> changing() const;
  std::vector<ShapesReport> reports_of_shapes() const;
  static std::shared_ptr<Replay> find_replay(Shapes& shapes, const Known& known, const Run& run);
  void note_too_long(Shapes& shapes);
  const std::string& refusal(const Shapes& shapes) const { return refusal_.empty() ? shapes.refusal : refusal_; }
  Reason moved(const Places& places, const Known& known) const;

  Reason refused(const Run& run);
  static Reason crowded(size_t bytes);
  size_t most_large() const { return most_large_bytes(counts_.nodes); }
  static bool is_replaced(const Replay& replay, const Replay& by, const Known& known);
  void lengthen(Run& run);
  void note_nodes(const Run& run, size_t nodes);
  void keep(const std::shared_ptr<Replay>& replay, const Run& run, const Known& known);
  void run_with(const Run& run, const std::shared_ptr<const Known>& shared);
  void record(const Run& run);
  void record_again(const Run& run);
  void run_as_planned(const Run& run, const Known& known, const Reason& why);
  void run_step_by_step(const Run& run, const Reason& why);
  size_t most_events() const;
  std::shared_ptr<const Known> rehearsed(const Run& run, const Known& one_way);
  Record rehearse(const Run& run, const Record& one_way);
  void capture(const Run& run, const Known& known, Replay& replay);
  static Layout layout(const Replay& replay, const Known& known);
  template <class Captured>
  device::Graph captured_on(device::StreamRef stream, const Captured& run, const std::function<void()>& work);
  bool refuse(const Run& run, const std::exception& error);
  bool drop_failed(const std::shared_ptr<Replay>& replay, bool is_replay, const Run& run, const std::exception& error);
  void note(const Reason& why);
  // What is copied in (and out) for a run.
  static std::vector<device::Copy> copies(const Replay& replay, const Run& run, const Known& known, bool in);
  static void launch(Replay& replay, const Run& run, const Known& known);

  // For the store, which lets go of what is dropped when it holds no lock.
  void list_kept(uint64_t now, std::vector<GraphStore::Kept>& kept);
  std::shared_ptr<void> drop(const void* graph);
  void drop(device::StreamRef stream, std::vector<std::shared_ptr<void>>& gone);  // of all, if it is none

  const ops::Op& program_;
  GraphStore& store_;
  const std::vector<std::string> inputs_, outputs_;
  std::atomic<bool> is_part_{false};
  mutable std::mutex mutex_;  // guards the rest
  std::vector<Growth> growths_;
  std::unordered_map<Key, Shapes, Hash> shapes_;
  std::pair<const Key, Shapes>* latest_ = nullptr;  // of them
  std::string refusal_;                             // for good, and why
  RegionReport counts_;
};

}  // namespace encore::automatic
