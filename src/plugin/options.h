// Provider options: one table, which also makes docs/options.md.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/session_graphs.h"

namespace encore::plugin {

struct Options {
  int device_id = 0;
  bool enable_cuda_graph = false;
  int min_num_runs_before_cuda_graph_capture = 2;
  graph::OnError graph_on_error = graph::OnError::fail;
  bool use_tf32 = true;
  bool enable_cudnn = true;
  bool measure_convolutions = true;
  size_t gpu_mem_limit = SIZE_MAX;
  bool grow_by_doubling = true;
  bool log_placement = false;
};

struct OptionRow {
  const char* key;
  bool bare;              // also read without a prefix, as in OrtCUDAProviderOptionsV2
  const char* otherwise;  // the default, as a user would write it
  const char* allowed;    // "0 or 1": completes "it must be ..."
  const char* doc;
  bool (*parse)(std::string_view value, Options& options);  // false: not allowed
};
std::span<const OptionRow> option_rows();

// "ep.<lower-case name>." and "ep.cuda."; onnxruntime uses either, by version.
std::vector<std::string> option_prefixes(std::string_view ep_name);

// Reads a session's config entries. An unknown key under one of the prefixes, a bad value, or one option given twice
// with different values is an Error{invalid_input}. Other keys without a prefix are not Encore's to judge.
Options parse_options(std::string_view ep_name, const std::map<std::string, std::string>& config);

// The candidate with the fewest edits between, for "did you mean".
std::string nearest(std::string_view key, std::span<const std::string> candidates);

}  // namespace encore::plugin
