// One session's execution provider: what onnxruntime calls, and what kernels, allocators, streams and copies of the
// session share.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "device/blas.h"
#include "device/dnn.h"
#include "device/fault.h"
#include "graph/session_graphs.h"
#include "memory/arena.h"
#include "memory/staging.h"
#include "ops/op.h"
#include "plugin/api_version.h"
#include "plugin/log.h"
#include "plugin/options.h"
#include "plugin/signature.h"

namespace encore::plugin {

class Factory;
class SyncStream;

class Ep : public OrtEp {
 public:
  Ep(std::shared_ptr<Factory> factory, Options options, Log log);
  ~Ep();
  Ep(const Ep&) = delete;
  static Ep& from(const OrtEp* ep) { return *static_cast<Ep*>(const_cast<OrtEp*>(ep)); }
  // The session of a kernel that is being made. Throws if its model cannot be run, as found while claiming nodes:
  // onnxruntime ends a session's creation for no earlier error.
  static Ep& of(const OrtKernelInfo* kernel);

  Factory& factory() const { return *factory_; }
  int device() const { return options_.device_id; }
  const Options& options() const { return options_; }
  const Log& log() const { return log_; }
  ops::Settings settings() const;  // as the options say
  const Signature& signature() const { return signature_; }

  memory::Arena& arena() { return *arena_; }
  const std::shared_ptr<memory::Arena>& shared_arena() const { return arena_; }
  memory::Staging& staging() { return staging_; }
  device::Blas& blas();  // opened on first use, as is dnn()
  device::Dnn& dnn();

  // Null if the session captures nothing.
  graph::SessionGraphs* graphs() const { return graphs_.get(); }
  bool capturing() const { return graphs_ && graphs_->capturing(); }
  // Where the calling thread's work goes, given the handle that a kernel gets from onnxruntime.
  device::StreamRef compute_stream(void* handle);
  // A node failed in the calling thread's run: what it has captured so far is worth nothing.
  void run_failed(const std::string& why, Code code);

  // Bad values that kernels report: `who` gets a number for its FaultRef, and is named in the error.
  device::FaultCell* fault_cell() const { return fault_cell_; }
  int fault_node(std::string who);
  // To be called after the host has waited for the device. Throws, and clears, what was reported.
  void check_faults();

  // Waits for the work of the calling thread (with graphs) or of all of the session's streams.
  void synchronize();

  // The session's live streams, for synchronize().
  void enlist(SyncStream* stream);
  void delist(SyncStream* stream);

 private:
  void fill_callbacks();
  void find_nodes(const OrtGraph* graph, OrtEpGraphSupportInfo* support);
  void start_run(const OrtRunOptions* options);
  void end_run(const OrtRunOptions* options, bool synchronous);
  void set_dynamic_option(const std::string& key, const std::string& value);
  bool captures() const { return graphs_ && graphs_->enabled() && !cannot_capture_; }

  // Destroyed from the bottom up: graphs refer to everything above.
  std::shared_ptr<Factory> factory_;
  Options options_;
  Log log_;
  Signature signature_;
  std::shared_ptr<memory::Arena> arena_;
  memory::Staging staging_;
  std::mutex opening_;
  std::unique_ptr<device::Blas> blas_;
  std::unique_ptr<device::Dnn> dnn_;
  std::atomic<device::Blas*> open_blas_{nullptr};
  std::atomic<device::Dnn*> open_dnn_{nullptr};
  device::FaultCell* fault_cell_ = nullptr;
  std::mutex fault_nodes_mutex_;
  std::vector<std::string> fault_nodes_;
  std::mutex streams_mutex_;
  std::set<SyncStream*> streams_;
  bool cannot_capture_ = false;
  std::string impossible_;  // why the model cannot be run, if so
  std::unique_ptr<graph::SessionGraphs> graphs_;
};

}  // namespace encore::plugin
