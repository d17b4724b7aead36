#include "fuse/branched_run.h"

#include <algorithm>
#include <utility>

namespace encore::fuse {

void BranchedRun::begin(size_t action) {
  if (!inside_ && next_ != end_ && next_->first == action) open();
  if (!inside_) return;
  current_ = action - inside_->first;
  if (!is_captured_ || inside_->actions[current_].is_on_host) return;
  std::vector<int> after;
  for (const int before : inside_->actions[current_].after)
    for (const int captured : ended_[size_t(before)].after) after.push_back(captured);
  go_on_after({latest(std::move(after)), {}});
}

void BranchedRun::finish() {
  if (!inside_) return;
  if (is_captured_ && inside_->actions[current_].is_on_host) {
    ended_.emplace_back();
  } else if (is_captured_) {
    device::CaptureEnd end = device::capture_end(outer_.stream());
    const bool captured = end.nodes != wanted_.end.nodes;
    ended_.push_back({captured ? std::vector{int(current_)} : std::move(wanted_.after), std::move(end)});
  }
  if (current_ + 1 == inside_->actions.size()) close();
}

void BranchedRun::open() {
  inside_ = next_++;
  is_captured_ = device::may_branch(outer_.stream());
  if (is_captured_) entry_ = device::capture_end(outer_.stream());
}

void BranchedRun::close() {
  if (is_captured_) {
    std::vector<int> all;
    for (const Ended& ended : ended_) all.insert(all.end(), ended.after.begin(), ended.after.end());
    go_on_after({latest(std::move(all)), {}});
  }
  for (const Block& block : blocks_)
    if (block.is_free) outer_.give_back(block.at);
  for (void* const block : held_) outer_.give_back(block);
  blocks_.clear(), held_.clear(), ended_.clear();
  inside_ = nullptr;
}

std::vector<int> BranchedRun::latest(std::vector<int> actions) const {
  std::ranges::sort(actions);
  actions.erase(std::ranges::unique(actions).begin(), actions.end());
  Branches::Actions earlier;
  for (const int action : actions) earlier |= inside_->actions[size_t(action)].before;
  std::erase_if(actions, [&](int action) { return earlier.test(size_t(action)); });
  return actions;
}

void BranchedRun::go_on_after(Ended wanted) {
  for (const int action : wanted.after) wanted.end.add(ended_[size_t(action)].end);
  if (wanted.after.empty()) wanted.end = entry_;
  wanted_ = std::move(wanted);
  const device::CaptureEnd now = device::capture_end(outer_.stream());
  if (!std::ranges::is_permutation(now.nodes, wanted_.end.nodes)) device::go_on_after(outer_.stream(), wanted_.end);
  wanted_.end = device::capture_end(outer_.stream());
}

void* BranchedRun::scratch(size_t bytes) {
  if (!inside_ || bytes == 0) return outer_.scratch(bytes);
  Branches::Actions done = inside_->actions[current_].before;
  done.set(current_);
  Block* best = nullptr;
  for (Block& block : blocks_)
    if (block.is_free && block.bytes >= bytes && block.bytes / 2 <= bytes && (!best || block.bytes < best->bytes) &&
        (block.users & ~done).none())
      best = &block;
  if (!best) best = &blocks_.emplace_back(outer_.scratch(bytes), bytes);
  best->users.reset().set(current_);
  best->is_free = false;
  return best->at;
}

void BranchedRun::give_back(void* block) {
  if (!inside_) return outer_.give_back(block);
  if (Block* const known = find(block))
    known->is_free = true;
  else
    held_.push_back(block);
}

void BranchedRun::use(const void* block) {
  if (!inside_) return;
  if (Block* const known = find(block)) known->users.set(current_);
}

BranchedRun::Block* BranchedRun::find(const void* block) {
  const auto found = std::ranges::find(blocks_, block, &Block::at);
  return found == blocks_.end() ? nullptr : &*found;
}

}  // namespace encore::fuse
