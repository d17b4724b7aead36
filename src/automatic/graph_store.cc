#include "automatic/graph_store.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "automatic/region_graphs.h"
#include "device/label.h"

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
                       std::shared_ptr<profile::Recorder> recorder)
    : device_(device),
      arena_(std::move(arena)),
      most_graphs_(most_graphs),
      limit_bytes_(arena_->stats().limit_bytes),
      recorder_(std::move(recorder)) {}

bool GraphStore::has_room(size_t bytes, uint64_t now) {
  if (now < next_ahead_) return false;
  if (limit_bytes_ == SIZE_MAX) return true;  // what the device has is not asked each time
  size_t used = arena_->stats().in_use_bytes;
  const std::lock_guard lock(mutex_);
  for (const auto& [native, workspace] : workspaces_) used -= std::min(used, workspace->bytes());
  return bytes <= limit_bytes_ - std::min(used, limit_bytes_);
}

// It grows by half at least, so that those which earlier graphs keep are no more than twice the last. Memory is taken
// and given back without the lock, for it may be the application's, which has locks of its own.
std::shared_ptr<Workspace> GraphStore::workspace(device::StreamRef stream, size_t bytes) {
  size_t wanted = bytes;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = workspaces_.find(stream.native()); found != workspaces_.end()) {
      const size_t held = found->second->bytes();
      if (held >= bytes) return found->second;
      wanted = std::max(bytes, held + held / 2);
    }
  }
  const auto larger = std::make_shared<Workspace>(arena_, wanted);
  auto latest = larger;
  const std::lock_guard lock(mutex_);
  workspaces_[stream.native()].swap(latest);
  return larger;
}

bool GraphStore::make_room(double heat, uint64_t now) {
  std::shared_ptr<void> gone;
  const std::lock_guard lock(mutex_);
  if (now < next_ahead_) return false;
  size_t kept = 0;
  RegionGraphs* coldest = nullptr;
  double least = 0;
  for (RegionGraphs* region : regions_) {
    kept += region->kept();
    const auto found = region->coldest(now);
    if (found && (!coldest || *found < least)) coldest = region, least = *found;
  }
  if (kept < most_graphs_) return true;
  if (!coldest || least >= heat) return false;
  gone = coldest->drop_coldest(now);
  return true;
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
