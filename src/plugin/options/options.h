// Provider options: one table, which also makes docs/options.md, and options.py of the package.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/compiler.h"
#include "graph/session_graphs.h"
#include "memory/source.h"

namespace encore::plugin {

enum class ConvSearch { exhaustive, heuristic, standard };

struct Options {
  int device_id = 0;

  bool enable_cuda_graph = false;
  int min_num_runs_before_cuda_graph_capture = 2;
  graph::OnError graph_on_error = graph::OnError::fail;

  std::optional<bool> auto_graph;  // none: where captures survive a wait for the whole device
  int auto_graph_limit = 128;
  std::optional<size_t> auto_graph_mem_limit;  // none: half of what the session may have
  bool conditional_nodes = true;
  std::map<std::string, std::vector<int64_t>> pad;  // by dimension the lengths, in their order
  bool lengthens = true;                            // what grows, by itself

  bool has_user_compute_stream = false;
  void* user_compute_stream = nullptr;
  bool do_copy_in_default_stream = true;
  bool use_ep_level_unified_stream = false;
  graph::DefaultStreamOrder::Settings default_stream;

  size_t gpu_mem_limit = SIZE_MAX;
  bool use_arena = true;
  bool grow_by_doubling = true;
  size_t initial_chunk_bytes = size_t(1) << 20;
  size_t initial_growth_bytes = 0;  // none: as large as the initial chunk
  size_t largest_growth_bytes = size_t(1) << 30;
  size_t dead_bytes_per_chunk = 0;
  bool use_mempool = false;
  size_t mempool_release_threshold = 0;
  size_t mempool_keep_on_shrink = 0;
  memory::External external;

  bool use_tf32 = true;
  bool deterministic = false;
  bool enable_cudnn = true;
  ConvSearch conv_search = ConvSearch::exhaustive;
  bool conv_max_workspace = true;
  bool conv1d_pad_to_nc1d = false;
  bool fuse_conv_bias = false;
  bool prefer_nhwc = false;
  bool fuse_nodes = true;
  bool fuse_elementwise = true;
  device::CompilerSettings::When compile_elementwise = device::CompilerSettings::When::in_background;
  bool regions = true, lone_regions = false;
  bool has_regions() const { return fuse_nodes && (regions || auto_graph.value_or(false)); }
  int sdpa_kernel = 0;
  bool strict_skip_layer_norm = false;
  bool tunable_op = false, tunable_op_tuning = false;
  int tunable_op_max_ms = 0;  // for one problem; zero: no limit
  std::string tuning_cache;   // a file; empty: none

  bool log_placement = false;
  std::string dump_regions;  // a folder; empty: none

  bool operator==(const Options&) const = default;
};

struct OptionRow {
  const char* key;
  bool bare;              // also read without a prefix, as in OrtCUDAProviderOptionsV2
  const char* otherwise;  // the default, as a user would write it
  const char* allowed;    // "0 or 1": completes "it must be ..."
  const char* doc;
  bool (*parse)(std::string_view value, Options& options);  // false: not allowed
  const char* same_as = nullptr;                            // another spelling of that option
};
std::span<const OptionRow> option_rows();

// "ep.<lower-case name>." and "ep.cuda."; onnxruntime uses either, by version.
std::vector<std::string> option_prefixes(std::string_view ep_name);

// Reads a session's config entries. An unknown key under one of the prefixes, a bad value, one option given twice with
// different values, or options that exclude each other are an Error{invalid_input}. So is an option without
// its prefix that is not read so. Other keys are not Encore's to judge.
Options parse_options(std::string_view ep_name, const std::map<std::string, std::string>& config);

// The candidate with the fewest edits between, for "did you mean".
std::string nearest(std::string_view key, std::span<const std::string> candidates);

}  // namespace encore::plugin
