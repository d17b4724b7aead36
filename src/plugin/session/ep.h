// One session's execution provider: what onnxruntime calls, and what kernels, allocators, streams and copies of the
// session share.
#pragma once
#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "automatic/graph_store.h"
#include "device/blas.h"
#include "device/dnn.h"
#include "fuse/groups.h"
#include "graph/default_stream_order.h"
#include "graph/session_graphs.h"
#include "graph/shared_stream.h"
#include "memory/arena.h"
#include "ops/op.h"
#include "plugin/host/api_version.h"
#include "plugin/host/log.h"
#include "plugin/model/signature.h"
#include "plugin/options/options.h"
#include "plugin/session/constants.h"
#include "plugin/session/fault_cells.h"
#include "plugin/session/host_copies.h"
#include "plugin/session/report.h"
#include "profile/recorder.h"

namespace encore::plugin {

class Region;
class Registration;
struct Claim;
struct Group;
enum class Parts;
class SyncStream;

class Ep : public OrtEp {
 public:
  // `arena` is the one to share with other sessions; null for one of its own.
  Ep(std::shared_ptr<Registration> registration, Options options, Log log, std::shared_ptr<memory::Arena> arena);
  ~Ep();
  Ep(const Ep&) = delete;
  static Ep& from(const OrtEp* ep) { return *static_cast<Ep*>(const_cast<OrtEp*>(ep)); }
  // The session of a kernel that is being made; throws as check_model() does.
  static Ep& of(const OrtKernelInfo* kernel);
  // Throws if the model cannot be run as the session should, as found while claiming nodes: onnxruntime ends a
  // session's creation for no earlier error.
  void check_model();
  // Before the session is made: a process crashes if it ends while a thread opens a library.
  void wait_for_libraries();

  int device() const { return options_.device_id; }
  const Options& options() const { return options_; }
  const Log& log() const { return log_; }
  ops::Settings settings() const;  // as the options say
  const Signature& signature() const { return signature_; }
  // The values that fused nodes make on the host, if these are regions or the whole model; else they are groups.
  const std::optional<std::set<std::string>>& on_host() const { return on_host_; }
  std::string why_not_by_data() const;                               // as Compiled has it
  const fuse::KnownDims& known_dims() const { return known_dims_; }  // of groups
  struct CompiledRegion {
    std::weak_ptr<Region> region;
    std::weak_ptr<const ops::Op> op;  // the same
    size_t nodes = 0;
  };
  void add_region(const std::string& node, CompiledRegion region) { regions_[node] = std::move(region); }
  CompiledRegion region_of(const std::string& node) const {
    const auto found = regions_.find(node);
    return found == regions_.end() ? CompiledRegion() : found->second;
  }

  memory::Arena& arena() { return *arena_; }
  profile::Recorder& recorder() { return *recorder_; }
  HostCopies& copies() { return copies_; }
  Constants& constants() { return constants_; }
  device::Blas& blas();  // opened on first use, as is dnn()
  device::Dnn& dnn();

  // Null if the session captures nothing.
  graph::SessionGraphs* graphs() const { return graphs_.get(); }
  // Of graphs that nobody asks for; null if there are none, and until nodes are claimed.
  automatic::GraphStore* store() const { return store_.get(); }
  bool capturing() const { return graphs_ && graphs_->capturing(); }
  // The one stream of all the session's runs; null if there are several.
  const graph::SharedStream* shared() const { return shared_.get(); }
  // To be had while the calling thread uses the session's stream outside of its runs; empty if there are several.
  graph::SharedStream::Turn turn() const;
  // Where the calling thread's work goes, given what a kernel gets from onnxruntime; the context may be null.
  device::StreamRef compute_stream(void* handle, const OrtKernelContext* context = nullptr);
  // The calling thread's run, if it is in one, copies on the stream: an upload is waited for by its other streams.
  void note_copy(device::StreamRef stream, bool is_upload);
  // Whether the calling thread is in a run of a session whose memory is in the arena.
  static bool thread_runs_in(const memory::Arena& arena);
  // Where the calling thread's run works, if it is of a session whose memory is in the arena and its stream is known;
  // but a run that was given a stream tells of it with its first node. Then `stream_foreseen_wrongly()` is what was
  // said before: that stream's memory is in use on another one.
  static device::StreamRef foresee_stream_of_run(const memory::Arena& arena);
  static device::StreamRef stream_foreseen_wrongly(const memory::Arena& arena);
  // Makes `later` wait for what the run that the calling thread is in, if any, has enqueued.
  static void order_after_run(device::StreamRef later);
  // A node failed in the calling thread's run: what it has captured so far is worth nothing.
  void run_failed(const std::string& why, Code code);
  // A copy failed, which ends the run that the calling thread is in, if any. onnxruntime does not always tell its end.
  static void end_run_here(const std::string& why, Code code);
  // Whether a kernel of the run that the calling thread is in has begun.
  bool nodes_have_run() const;
  // The session that the calling thread captures in; null if there is none.
  static Ep* capturing_here();

  FaultCells& faults() { return faults_; }

  // Waits for the work of the calling thread (with graphs) or of all of the session's streams; throws what kernels have
  // reported.
  void synchronize();
  void wait_for(device::StreamRef stream);  // one that the session uses
  // As onnxruntime asks for it: after a replay; or for an application, which means its own work, too.
  void synchronize_as_asked();

  // The session's live streams, for synchronize().
  void enlist(SyncStream* stream);
  void delist(SyncStream* stream);
  // A stream for a SyncStream. onnxruntime keeps one for each thread, from 1.26 on, and lets go of it when the thread
  // has ended; the next thread gets it with the graphs that were captured on it.
  std::shared_ptr<device::Stream> lend_stream();
  void take_back(std::shared_ptr<device::Stream> stream) noexcept;
  // One of those that nobody has, or a new one, for whoever takes it to keep.
  device::Stream give_stream();

 private:
  void fill_callbacks();
  void find_nodes(const OrtGraph* graph, OrtEpGraphSupportInfo* support);
  void open_beside(std::function<void()> open);
  void open_store();
  void open_compiler();
  std::shared_ptr<device::TuningCache> tuning_cache();  // null: none is wanted
  Parts parts() const;
  void claim_nodes(const OrtGraph* graph, OrtEpGraphSupportInfo* support, Claim& claim, bool is_body);
  void place_bodies(const OrtNode* node, const PlacedNode& with);
  void claim_together(OrtEpGraphSupportInfo* support, const std::vector<const OrtNode*>& nodes, const char* what);
  void note_placement(const OrtGraph* graph, const Claim& claim, const std::vector<Group>& groups);
  void tell_placement(const Claim& claim, bool is_subgraph);
  void decide_on_graphs(const Claim& claim);
  bool is_new(const std::string& line);  // nothing like it has been said of the model
  std::vector<graph::Report> graph_reports() const;
  void start_run(const OrtRunOptions* options);
  void end_run(const OrtRunOptions* options, bool synchronous);
  void leave_run_here();
  void forget_runs();
  void forget_open_runs() const;
  bool asks_for_captures() const;
  bool is_captured(int id) const;
  void replay(int id);
  void set_dynamic_option(const std::string& key, const std::string& value);
  void profile(const std::string& value);
  device::StreamRef own_stream();
  device::StreamRef find_stream(void* handle, const OrtKernelContext* context);
  device::StreamRef begin_work(void* handle, const OrtKernelContext* context);
  // In a thread that has not begun the run, and knows none of its other streams.
  void wait_for_uploads(device::StreamRef stream);
  bool captures() const { return graphs_ && graphs_->enabled() && !cannot_capture_; }

  const std::shared_ptr<void> life_ = std::make_shared<char>();  // by which threads know whether the session lives

  // Destroyed from the bottom up: graphs refer to everything above.
  std::shared_ptr<Registration> registration_;
  Options options_;
  Log log_;
  Signature signature_;
  std::shared_ptr<memory::Arena> arena_;
  std::shared_ptr<profile::Recorder> recorder_;
  std::mutex profile_mutex_;
  std::unique_ptr<profile::Recorder::Profile> profile_;  // asked for by ep.cuda.profile
  HostCopies copies_;
  Constants constants_;
  graph::DefaultStreamOrder order_;
  std::shared_ptr<device::Compiler> compiler_;  // null if nothing is captured
  std::mutex opening_;
  bool has_told_complaint_ = false;  // of the tuning cache
  std::unique_ptr<device::Blas> blas_;
  std::unique_ptr<device::Dnn> dnn_;
  std::atomic<device::Blas*> open_blas_{nullptr};
  std::atomic<device::Dnn*> open_dnn_{nullptr};
  std::vector<std::future<void>> libraries_;  // that are opened beside the session's creation
  mutable FaultCells faults_;
  std::mutex streams_mutex_;
  struct Uploads {
    uint64_t latest = 0, waited_for = 0;  // of the stream, and up to which it has waited for those of others
  };
  std::map<SyncStream*, Uploads> streams_;
  uint64_t uploads_ = 0;
  std::vector<std::shared_ptr<device::Stream>> idle_streams_;
  std::map<std::string, std::vector<PlacedNode>> placement_;  // by place_of() graphs
  std::set<std::string> said_;                                // of claiming nodes
  std::set<std::string> fixed_layout_;                        // operators of the graph that was looked at last
  std::optional<std::set<std::string>> on_host_;
  fuse::KnownDims known_dims_;
  std::map<std::string, CompiledRegion> regions_;  // by the names of fused nodes
  bool cannot_capture_ = false;
  std::string why_eager_;                    // if every run is, though graphs were asked for
  std::string ill_formed_, uncapturable_;    // why the model cannot be run, or not with graphs
  std::atomic<bool> ran_elsewhere_{false};   // a run was on a stream of the application's
  std::atomic<bool> has_stray_work_{false};  // nodes ran in threads that had not begun a run
  std::unique_ptr<graph::SharedStream> shared_;
  std::unique_ptr<graph::SessionGraphs> graphs_;
  std::shared_ptr<automatic::GraphStore> store_;
  std::future<bool> captures_;  // whether there are graphs that nobody asks for, which the device is opened for
};

}  // namespace encore::plugin
