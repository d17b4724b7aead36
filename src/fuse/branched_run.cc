#include "fuse/branched_run.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace encore::fuse {

BranchedRun::BranchedRun(const std::vector<Branches>& all, ops::Context& outer)
    : outer_(outer), next_(all.data()), end_(all.data() + all.size()) {
  if (all.empty()) return;
  record_ = outer.apart_blocks();
  is_captured_ = device::may_branch(outer.stream());
  keeps_ = is_captured_ && !outer.is_planned();
}

void BranchedRun::begin(size_t action) {
  if (!inside_ && next_ != end_ && next_->first == action) open();
  if (!inside_) return;
  current_ = action - inside_->first;
  if (!is_captured_ || inside_->actions[current_].is_on_host) return;
  std::vector<int> after;
  for (const int before : inside_->actions[current_].after)
    for (const int captured : ended_[size_t(before)].after) after.push_back(captured);
  go_on_after(std::move(after));
}

void BranchedRun::finish() {
  if (!inside_) return;
  if (is_captured_) {
    Ended& ended = ended_.emplace_back();
    if (!inside_->actions[current_].is_on_host) {
      ended = {std::move(wanted_.after), device::capture_end(outer_.stream())};
      if (ended.end.nodes != wanted_.end.nodes) ended.after = {int(current_)};
    }
  }
  if (current_ + 1 == inside_->actions.size()) close();
}

void BranchedRun::open() {
  inside_ = next_++;
  if (is_captured_) entry_ = device::capture_end(outer_.stream());
}

void BranchedRun::close() {
  if (is_captured_) {
    std::vector<int> all;
    for (const Ended& ended : ended_) all.insert(all.end(), ended.after.begin(), ended.after.end());
    go_on_after(std::move(all));
  }
  for (Block& block : blocks_) {
    if (block.is_free && keeps_) outer_.give_back(block.at);
    block.users.reset();
  }
  std::erase_if(blocks_, [](const Block& block) { return block.is_free; });
  ended_.clear();
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

void BranchedRun::go_on_after(std::vector<int> actions) {
  wanted_ = {latest(std::move(actions)), {}};
  for (const int action : wanted_.after) wanted_.end.add(ended_[size_t(action)].end);
  if (wanted_.after.empty()) wanted_.end = entry_;
  const device::CaptureEnd now = device::capture_end(outer_.stream());
  if (!std::ranges::is_permutation(now.nodes, wanted_.end.nodes)) device::go_on_after(outer_.stream(), wanted_.end);
  wanted_.end = device::capture_end(outer_.stream());
}

void* BranchedRun::scratch(size_t bytes) {
  if (bytes == 0 || !(record_ || keeps_)) return outer_.scratch(bytes);
  Block* block = keeps_ && inside_ ? find_spare(bytes) : nullptr;
  if (!block) {
    const int number = record_ ? record_->taken() : 0;
    block = &blocks_.emplace_back(outer_.scratch(bytes), bytes, number);
    for (const Block& other : blocks_)
      if (record_ && inside_ && other.is_free && !is_through(other)) record_->keep_apart(number, other.number);
  }
  block->is_free = false;
  block->users.reset();
  if (inside_) block->users.set(current_);
  return block->at;
}

void BranchedRun::give_back(void* at) {
  Block* const block = find(at);
  if (!block || !inside_ || record_) outer_.give_back(at);
  if (!block) return;
  if (inside_)
    block->is_free = true;
  else
    blocks_.erase(blocks_.begin() + (block - blocks_.data()));
}

void BranchedRun::use(const void* at) {
  if (!inside_) return;
  if (Block* const block = find(at)) block->users.set(current_);
}

BranchedRun::Block* BranchedRun::find(const void* at) {
  const auto is_it = [at](const Block& block) { return block.at == at && !block.is_free; };
  const auto found = std::ranges::find_if(blocks_, is_it);
  return found == blocks_.end() ? nullptr : &*found;
}

bool BranchedRun::is_through(const Block& block) const {
  Branches::Actions done = inside_->actions[current_].before;
  done.set(current_);
  return (block.users & ~done).none();
}

BranchedRun::Block* BranchedRun::find_spare(size_t bytes) {
  Block* best = nullptr;
  for (Block& block : blocks_)
    if (block.is_free && block.bytes >= bytes && block.bytes / 2 <= bytes && (!best || block.bytes < best->bytes) &&
        is_through(block))
      best = &block;
  return best;
}

}  // namespace encore::fuse
