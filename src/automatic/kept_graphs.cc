// What others ask of a region's graphs: the report, with why runs were eager, and the store that keeps them.
#include <algorithm>
#include <iterator>
#include <utility>

#include "automatic/region_graphs.h"

namespace encore::automatic {

void RegionGraphs::note_padded() {
  const std::lock_guard lock(mutex_);
  ++counts_.padded;
}

void RegionGraphs::note(const Reason& why) {
  const std::lock_guard lock(mutex_);
  ++(counts_.*why.kind);
  if (!why.words.empty()) counts_.refusal = why.words;
}

RegionGraphs::Reason RegionGraphs::refused(const Run& run) {
  const std::lock_guard lock(mutex_);
  return {&RegionReport::refused, refusal(find(run.key, run.now))};
}

RegionGraphs::Reason RegionGraphs::crowded(size_t bytes) {
  return {&RegionReport::crowded, text("there is no room (gpu_mem_limit), or was none of late, for ", bytes,
                                       " bytes that it would take ahead")};
}

RegionGraphs::Reason RegionGraphs::moved(const Places& places, const Known& known) const {
  const auto i = places.stranger();
  if (!i) return {&RegionReport::moved, "a stream has its first run with these shapes"};
  const size_t inputs = known.bytes.size() - known.record.outputs.size();
  const std::string name = *i >= inputs          ? outputs_[*i - inputs]
                           : *i < inputs_.size() ? inputs_[*i]
                                                 : "a padding's mask";
  return {&RegionReport::moved, text("'", name, "', of ", known.bytes[*i], " bytes, is at a place that no graph has")};
}

bool RegionGraphs::is_used() const {
  const std::lock_guard lock(mutex_);
  return !is_part_ || !shapes_.empty();
}

RegionReport RegionGraphs::report() const {
  const std::lock_guard lock(mutex_);
  RegionReport report = counts_;
  report.keys = shapes_.size();
  for (const auto& [key, shapes] : shapes_) report.graphs += shapes.replays.size();
  for (const Growth& growth : growths_)
    if (!growth.lengths().empty()) report.lengths[growth.name()] = growth.lengths();
  report.changing = changing();
  report.shapes = reports_of_shapes();
  for (const ShapesReport& shapes : report.shapes)
    report.scratch_bytes = std::max(report.scratch_bytes, shapes.scratch_bytes);
  if (!refusal_.empty()) report.refusal = refusal_;
  return report;
}

std::vector<ShapesReport> RegionGraphs::reports_of_shapes() const {
  std::vector<ShapesReport> reports;
  for (const auto& [key, shapes] : shapes_) {
    if (!shapes.known) continue;
    ShapesReport& report = reports.emplace_back();
    auto word = key.begin();
    for (const std::string& input : inputs_) {
      const int64_t rank = *word++;
      if (rank < 0) continue;
      report.inputs.emplace_back(input, std::vector<int64_t>(word, word + rank));
      word += rank;
    }
    report.scratch_bytes = shapes.known->plan().bytes();
    report.graphs = shapes.replays.size();
    for (const auto& replay : shapes.replays) {
      report.workspace_bytes = std::max(report.workspace_bytes, replay->layout.bytes);
      report.graph_nodes += replay->nodes;
    }
  }
  std::ranges::sort(reports, {}, &ShapesReport::inputs);
  return reports;
}

std::set<std::string> RegionGraphs::changing() const {
  std::set<std::string> found;
  for (const auto& [key, shapes] : shapes_) {
    auto one = shapes_.begin()->first.begin(), other = key.begin();
    for (const std::string& input : inputs_) {
      const int64_t rank = *one++, other_rank = *other++;
      if (rank != other_rank) found.insert(input);
      for (int64_t axis = 0; rank == other_rank && axis < rank; ++axis)
        if (one[axis] != other[axis]) found.insert(text(input, "[", axis, "]"));
      one += std::max<int64_t>(rank, 0), other += std::max<int64_t>(other_rank, 0);
    }
  }
  return found;
}

// ---- for the store

void RegionGraphs::list_kept(uint64_t now, std::vector<GraphStore::Kept>& kept) {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, shapes] : shapes_)
    for (const auto& replay : shapes.replays)
      kept.push_back({this, replay.get(), shapes.heat.at(now), replay->workspace, replay->nodes});
}

std::shared_ptr<void> RegionGraphs::drop(const void* graph) {
  const std::lock_guard lock(mutex_);
  for (auto& [key, shapes] : shapes_) {
    const auto found = std::ranges::find(shapes.replays, graph, [](const auto& replay) { return replay.get(); });
    if (found == shapes.replays.end()) continue;
    const auto gone = std::move(*found);
    shapes.replays.erase(found);
    return gone;
  }
  return nullptr;
}

void RegionGraphs::drop(device::StreamRef stream, std::vector<std::shared_ptr<void>>& gone) {
  const std::lock_guard lock(mutex_);
  const auto goes = [&](const auto& replay) { return !stream || replay->stream == stream; };
  for (auto& [key, shapes] : shapes_) {
    std::ranges::copy_if(shapes.replays, std::back_inserter(gone), goes);
    std::erase_if(shapes.replays, goes);
    if (stream) shapes.places.erase(stream.native());
  }
}

}  // namespace encore::automatic
