#include "plugin/options/run_options.h"

#include <charconv>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "device/error.h"
#include "graph/session_graphs.h"

namespace encore::plugin {
namespace {

constexpr const char* kGraphId = "gpu_graph_id";
constexpr const char* kCompletion = "ep.cuda.completion";

const char* entry_of(const OrtRunOptions* options, const char* key) {
  return ort().api->GetRunConfigEntry(options, key);
}

std::vector<std::string> misspellings() {
  const std::string right = kGraphId;
  std::vector<std::string> made = {"graph_id",     "gpu_graph",    "cuda_graph_id", "gpu_graph_annotation_id",
                                   "gpugraphid",   "gpuGraphId",   "gpu_graphId",   "cuda_graph_annotation_id",
                                   "GPU_GRAPH_ID", "gpu_graph_ID", "gpu_graph_Id",  "gpu-graph-id",
                                   "gpu.graph.id", "gpu graph id", "gpu_graph_ids", "ep.cuda.gpu_graph_id"};
  made.push_back(right + " ");
  made.push_back(" " + right);
  for (size_t i = 0; i < right.size(); ++i) {
    std::string without = right, twice = right, swapped = right;
    made.push_back(without.erase(i, 1));
    made.push_back(twice.insert(i, 1, right[i]));
    if (i > 0 && swapped[i] != swapped[i - 1]) {
      std::swap(swapped[i], swapped[i - 1]);
      made.push_back(std::move(swapped));
    }
  }
  return made;
}

}  // namespace

int graph_id_of(const OrtRunOptions* options) {
  if (!options) return 0;
  const char* const entry = entry_of(options, kGraphId);
  if (!entry) {
    // onnxruntime doesn't list a run's options: each can only be asked for.
    static const auto& wrong = *new std::vector(misspellings());  // never destroyed: threads may run until the very end
    for (const std::string& key : wrong)
      require(!entry_of(options, key.c_str()), "unknown run option '", key, "'; did you mean '", kGraphId, "'?");
    return 0;
  }
  int id = 0;
  const char* const end = entry + std::strlen(entry);
  const auto [stopped, error] = std::from_chars(entry, end, id);
  require(error == std::errc() && stopped == end && id >= graph::kEagerId, "run option '", kGraphId, "' is '", entry,
          "'; it must be a number from 0, or -1 to run eagerly");
  return id;
}

Completion* completion_of(const OrtRunOptions* options) {
  const char* const entry = options ? entry_of(options, kCompletion) : nullptr;
  if (!entry) return nullptr;
  uintptr_t address = 0;
  const char* const end = entry + std::strlen(entry);
  const auto [stopped, error] = std::from_chars(entry, end, address);
  require(error == std::errc() && stopped == end, "run option '", kCompletion, "' is '", entry,
          "'; it must be what encore_completion_new() gave, as a decimal number");
  return reinterpret_cast<Completion*>(address);
}

}  // namespace encore::plugin
