#include "graph/capture_gate.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "device/error.h"

namespace encore::graph::capture_gate {
namespace {

constexpr std::chrono::seconds kLongestWait(60);

struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  int captures = 0;                      // under way
  std::vector<std::thread::id> holders;  // a thread as often as it holds
};
Gate& gate() {
  static auto& gate = *new Gate;  // threads that end late still use it
  return gate;
}

}  // namespace

Pass::Pass() {
  std::unique_lock lock(gate().mutex);
  auto& holders = gate().holders;
  require(std::ranges::find(holders, std::this_thread::get_id()) == holders.end(),
          "the same thread holds captures back (ep.cuda.captures=hold); let go of them first");
  require(gate().changed.wait_for(lock, kLongestWait, [&] { return holders.empty(); }),
          "another thread has held captures back (ep.cuda.captures=hold) for ", kLongestWait.count(), " seconds");
  ++gate().captures;
}

Pass::Pass(std::try_to_lock_t) {
  const std::lock_guard lock(gate().mutex);
  if ((is_through_ = gate().holders.empty())) ++gate().captures;
}

Pass::~Pass() {
  if (!is_through_) return;
  const std::lock_guard lock(gate().mutex);
  if (--gate().captures == 0) gate().changed.notify_all();
}

void hold(std::chrono::milliseconds longest) {
  std::unique_lock lock(gate().mutex);
  auto& holders = gate().holders;
  holders.push_back(std::this_thread::get_id());  // from now on none begins
  if (gate().changed.wait_for(lock, longest, [] { return gate().captures == 0; })) return;
  holders.erase(std::ranges::find(holders, std::this_thread::get_id()));
  gate().changed.notify_all();
  fail(Code::capture_forbidden, "captures can't be held back: one has been under way for ", longest.count(), " ms");
}

// Also in another thread than hold(), as when a coroutine has moved.
void let_go() {
  const std::lock_guard lock(gate().mutex);
  auto& holders = gate().holders;
  require(!holders.empty(), "captures are not held back");
  auto mine = std::ranges::find(holders, std::this_thread::get_id());
  holders.erase(mine == holders.end() ? holders.begin() : mine);
  if (holders.empty()) gate().changed.notify_all();
}

}  // namespace encore::graph::capture_gate
