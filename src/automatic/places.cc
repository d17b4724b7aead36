#include "automatic/places.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "automatic/longer.h"

namespace encore::automatic {

namespace {

constexpr size_t kMostSightings = 8;
// To copy that much takes half of the time that the host saves for a node, and the memory is there for each stream.
constexpr size_t kLargeBytesOfNode = size_t(4) << 20, kMostLargeBytes = size_t(64) << 20;

}  // namespace

bool is_large(size_t bytes) { return bytes > kMostStagedBytes; }
size_t most_large_bytes(size_t nodes) { return std::min(nodes * kLargeBytesOfNode, kMostLargeBytes); }

bool Places::was_seen(const Addresses& at, const std::vector<size_t>& bytes, size_t most_large) {
  moves_.resize(at.size());
  const auto strangers = [&](const Addresses& before) {
    std::vector<size_t> found;
    for (size_t i = 0; i < at.size(); ++i)
      if (is_large(bytes[i]) && !moves_[i] && before[i] != at[i]) found.push_back(i);
    return found;
  };
  for (size_t i = 0; i < at.size() && !sightings_.empty(); ++i)
    if (bytes[i] && !is_large(bytes[i]) && sightings_.back()[i] != at[i]) moves_[i] = true;
  auto found = std::find_if(sightings_.rbegin(), sightings_.rend(),
                            [&](const Addresses& before) { return strangers(before).empty(); });
  stranger_.reset();
  if (found == sightings_.rend() && !sightings_.empty()) {
    const std::vector<size_t> others = strangers(sightings_.back());
    stranger_ = others.front();
    if (sightings_.size() == kMostSightings && let_move(others, bytes, most_large)) found = sightings_.rbegin();
  }
  const bool is_familiar = found != sightings_.rend();
  if (is_familiar)
    sightings_.erase(std::next(found).base());
  else if (sightings_.size() == kMostSightings)
    sightings_.erase(sightings_.begin());
  sightings_.push_back(at);
  return is_familiar;
}

// Of all places the latest is left, which is the run's but for what moves now.
bool Places::let_move(const std::vector<size_t>& others, const std::vector<size_t>& bytes, size_t most_large) {
  std::vector<bool> moves = moves_;
  for (const size_t i : others) moves[i] = true;
  size_t copied = 0;
  for (size_t i = 0; i < moves.size(); ++i)
    if (moves[i] && is_large(bytes[i])) copied += bytes[i];
  if (copied > most_large) return false;
  moves_ = std::move(moves);
  sightings_.erase(sightings_.begin(), sightings_.end() - 1);
  return true;
}

// One that has to be captured again and again gets all small ones in memory of its own.
void Places::note_misfit(const std::vector<size_t>& bytes) {
  if (++misfits_ == 1) return;
  for (size_t i = 0; i < bytes.size(); ++i)
    if (!is_large(bytes[i])) moves_[i] = true;
}

bool Places::stay(Addresses at) {
  if (latest_ != at) {
    latest_ = std::move(at);
    stayed_ = 0;
  }
  if (++stayed_ <= stay_wanted_) return false;
  stayed_ = 0;
  stay_wanted_ *= 2;
  return true;
}

}  // namespace encore::automatic
