#include "automatic/graph_store.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "automatic/region_graphs.h"
#include "device/label.h"
#include "device/memory.h"

namespace encore::automatic {

namespace {
constexpr double kHalfLife = 1024;    // runs
constexpr uint64_t kAfterNeed = 256;  // likewise
}  // namespace

// Another thread may have used it since `now` was.
double Heat::at(uint64_t now) const {
  return now <= since_ ? value_ : value_ * std::exp2(-double(now - since_) / kHalfLife);
}

Workspace::Workspace(std::shared_ptr<memory::Arena> arena, size_t bytes)
    : arena_(std::move(arena)),
      at_([&] {
        const device::Label label(kHolder);
        return arena_->reserve(bytes);
      }()),
      bytes_(bytes) {}

GraphStore::GraphStore(int device, std::shared_ptr<memory::Arena> arena, size_t most_graphs,
                       std::optional<size_t> most_bytes, std::shared_ptr<profile::Recorder> recorder)
    : device_(device),
      arena_(std::move(arena)),
      most_graphs_(most_graphs),
      limit_bytes_(arena_->stats().limit_bytes),
      most_bytes_(most_bytes),
      recorder_(std::move(recorder)) {}

bool GraphStore::has_room(size_t bytes, uint64_t now) {
  if (now < next_ahead_) return false;
  if (limit_bytes_ == SIZE_MAX) return true;  // what the device has is not asked each time
  size_t used = arena_->stats().in_use_bytes;
  const std::lock_guard lock(mutex_);
  for (const auto& [native, workspace] : workspaces_) used -= std::min(used, workspace->bytes());
  return bytes <= limit_bytes_ - std::min(used, limit_bytes_);
}

// By half at least, so that those which earlier graphs keep are no more than twice the last.
size_t GraphStore::grown(size_t held, size_t bytes) {
  return std::max(bytes, std::min(held + held / 2, most_bytes() / 2));
}

size_t GraphStore::most_bytes() {
  std::call_once(most_bytes_known_, [this] {
    if (!most_bytes_) most_bytes_ = std::min(limit_bytes_, device::memory_info(device_).total_bytes) / 2;
  });
  return *most_bytes_;
}

std::shared_ptr<Workspace> GraphStore::latest(device::StreamRef stream) const {
  const auto found = workspaces_.find(stream.native());
  return found == workspaces_.end() ? nullptr : found->second;
}

// Memory is taken and given back without the lock, for it may be the application's, which has locks of its own.
std::shared_ptr<Workspace> GraphStore::workspace(device::StreamRef stream, size_t bytes) {
  size_t wanted = bytes;
  {
    const std::lock_guard lock(mutex_);
    if (auto there = latest(stream)) {
      if (there->bytes() >= bytes) return there;
      wanted = grown(there->bytes(), bytes);
    }
  }
  const auto larger = std::make_shared<Workspace>(arena_, wanted);
  auto before = larger;
  const std::lock_guard lock(mutex_);
  workspaces_[stream.native()].swap(before);
  return larger;
}

// How many graphs there are, and of how many bytes; a workspace counts as long as somebody needs it.
class GraphStore::Tally {
 public:
  void add(const Kept& kept) {
    need(kept.workspace.get());
    ++graphs_, bytes_ += kept.nodes * kBytesOfNode;
  }
  void remove(const Kept& kept) {
    if (--users_[kept.workspace.get()] == 0) bytes_ -= kept.workspace->bytes();
    --graphs_, bytes_ -= kept.nodes * kBytesOfNode;
  }
  void need(const Workspace* workspace) {
    if (users_[workspace]++ == 0) bytes_ += workspace->bytes();
  }
  bool is_needed(const Workspace* workspace) const {
    const auto found = users_.find(workspace);
    return found != users_.end() && found->second > 0;
  }
  size_t graphs() const { return graphs_; }
  size_t bytes() const { return bytes_; }

 private:
  std::map<const Workspace*, size_t> users_;
  size_t graphs_ = 0, bytes_ = 0;
};

void GraphStore::list_kept(uint64_t now, std::vector<Kept>& kept) const {
  for (RegionGraphs* region : regions_) region->list_kept(now, kept);
  std::ranges::stable_sort(kept, {}, &Kept::heat);
}

std::string GraphStore::make_room(const Wanted& wanted, uint64_t now) {
  std::vector<std::shared_ptr<void>> gone;
  std::vector<Kept> kept;
  std::shared_ptr<Workspace> there;
  const std::lock_guard lock(mutex_);
  list_kept(now, kept);
  Tally tally;
  for (const Kept& one : kept) tally.add(one);
  there = latest(wanted.stream);
  size_t more = wanted.nodes * kBytesOfNode;
  if (there && there->bytes() >= wanted.workspace_bytes)
    tally.need(there.get());
  else
    more += grown(there ? there->bytes() : 0, wanted.workspace_bytes);
  size_t colder = 0;
  while (tally.graphs() + !wanted.replaces > most_graphs_ || tally.bytes() + more > most_bytes()) {
    if (colder == kept.size() || kept[colder].heat >= wanted.heat)
      return tally.graphs() + !wanted.replaces > most_graphs_
                 ? "all graphs that are kept (auto_graph_limit) are used more"
                 : text("it wants ", more, " bytes for a graph, of ", most_bytes(),
                        " (auto_graph_mem_limit), and those that are kept are used more");
    tally.remove(kept[colder++]);
  }
  for (size_t i = 0; i < colder; ++i) gone.push_back(kept[i].region->drop(kept[i].graph));
  for (auto& [native, workspace] : workspaces_)
    if (colder > 0 && !tally.is_needed(workspace.get())) gone.push_back(std::move(workspace));
  std::erase_if(workspaces_, [](const auto& one) { return !one.second; });
  return {};
}

HeldReport GraphStore::held() {
  std::vector<Kept> all;
  const std::lock_guard lock(mutex_);
  list_kept(runs_, all);
  HeldReport report{.limit_bytes = most_bytes()};
  std::set<const Workspace*> workspaces;
  for (const auto& [native, workspace] : workspaces_) workspaces.insert(workspace.get());
  for (const Kept& kept : all) {
    ++report.graphs, report.node_bytes += kept.nodes * kBytesOfNode;
    workspaces.insert(kept.workspace.get());
  }
  for (const Workspace* workspace : workspaces) report.workspace_bytes += workspace->bytes();
  return report;
}

bool GraphStore::give_back() {
  std::vector<std::shared_ptr<void>> gone;
  const std::lock_guard lock(mutex_);
  next_ahead_ = runs_ + kAfterNeed;
  for (RegionGraphs* region : regions_) region->drop({}, gone);
  for (auto& [native, workspace] : workspaces_) gone.push_back(std::move(workspace));
  workspaces_.clear();
  return !gone.empty();
}

void GraphStore::stream_is_gone(device::StreamRef stream) {
  std::vector<std::shared_ptr<void>> gone;
  const std::lock_guard lock(mutex_);
  for (RegionGraphs* region : regions_) region->drop(stream, gone);
  for (auto& [native, workspace] : workspaces_)
    if (native == stream.native()) gone.push_back(std::move(workspace));
  workspaces_.erase(stream.native());
}

void GraphStore::forget_graphs() {
  std::vector<std::shared_ptr<void>> gone;
  const std::lock_guard lock(mutex_);
  for (RegionGraphs* region : regions_) region->drop({}, gone);
}

std::vector<RegionReport> GraphStore::reports() {
  const std::lock_guard lock(mutex_);
  std::vector<RegionReport> reports;
  for (const RegionGraphs* region : regions_)
    if (region->is_used()) reports.push_back(region->report());
  return reports;
}

void GraphStore::add(RegionGraphs* region) {
  const std::lock_guard lock(mutex_);
  regions_.push_back(region);
}
void GraphStore::remove(RegionGraphs* region) {
  const std::lock_guard lock(mutex_);
  std::erase(regions_, region);
}

GraphStore::LentStream::LentStream(GraphStore& store) : store_(store) {
  {
    const std::lock_guard lock(store_.mutex_);
    if (!store_.capture_streams_.empty()) {
      stream_ = std::move(store_.capture_streams_.back());
      store_.capture_streams_.pop_back();
    }
  }
  if (!stream_) stream_ = device::CaptureStream(store_.device_);
}

GraphStore::LentStream::~LentStream() {
  const std::lock_guard lock(store_.mutex_);
  store_.capture_streams_.push_back(std::move(stream_));
}

}  // namespace encore::automatic
