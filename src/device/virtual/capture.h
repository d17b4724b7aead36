// A capture in progress, with CUDA's rules of what is legal meanwhile.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device/exchange.h"
#include "device/graph.h"
#include "device/virtual/early.h"

namespace encore::device::virtual_gpu {

struct StreamState;

struct Conditional;

// What a graph runs. Shared by graphs, executables and launches under way; never changed once captured.
struct Program {
  struct Node {
    NodeKind kind;
    std::string_view name;
    std::string label;
    Work work;
    std::vector<int> after;                           // earlier nodes, ascending
    int lane;                                         // which stream of the capture it came from, and which branch
    std::shared_ptr<const Conditional> decided = {};  // what it runs instead
  };
  std::vector<Node> nodes;
  int lanes = 1;
  std::vector<std::shared_ptr<void>> memory;  // allocated by the graph, alive as long as it is
  std::vector<Exchange> exchanges;
};

struct Conditional {
  const bool* condition;
  bool repeats;
  std::vector<std::shared_ptr<const Program>> bodies;  // the second one runs if the condition does not hold
};

class Capture {
 public:
  Capture(const StreamState* origin, CaptureMode mode, bool is_body = false)
      : origin(origin), mode(mode), is_body(is_body), owner(std::this_thread::get_id()), tails_(1) {}

  const StreamState* const origin;
  const CaptureMode mode;
  const bool is_body;  // of a conditional node
  const std::thread::id owner;

  CaptureStatus status() const { return status_.load(); }
  void invalidate(std::string_view why);
  // Invalidates and throws Error{capture_forbidden}.
  [[noreturn]] void forbid(std::string_view what);
  // Throws Error{capture_failed} unless the capture is still valid.
  void check();

  // All of these check first.
  void add(int lane, NodeKind kind, std::string_view name, Work work);
  void add(int lane, std::shared_ptr<const Conditional> decided);
  void check_joined();  // Error{capture_failed} if there is work that the first stream has not waited for
  std::vector<int> tail(int lane);
  std::optional<int> latest_kernel(int lane);  // if nothing has come after it
  int fork(const std::vector<int>& after);     // returns the new lane
  void join(int lane, const std::vector<int>& after);
  // The lane for what comes after these nodes, and after nothing else that the given one has come to.
  int go_on(int lane, std::vector<int> after);
  void keep(std::shared_ptr<void> memory);
  void exchange(Exchange exchange);
  bool keeps(const void* memory);

  // From now on the capture forbids unsafe calls, as its mode says, until it ends.
  static void started(const std::shared_ptr<Capture>& capture);
  // Ends the capture. Throws Error{capture_failed} if it is invalid, or a fork was not joined.
  std::shared_ptr<const Program> end();
  void abandon();

 private:
  void check_held() const;
  void check_joined_held() const;
  void add_held(int lane, Program::Node node);

  std::atomic<CaptureStatus> status_{CaptureStatus::active};  // none: it has ended
  std::mutex mutex_;
  std::string why_;  // it is invalid
  Program program_;
  std::vector<std::vector<int>> tails_;  // of each lane, the nodes that its next one comes after
  std::vector<int> left_;                // what was such a tail, until its lane went back: that nobody need wait for
};

// Throws Error{capture_forbidden}, and invalidates, if a capture under way forbids this thread the calls that CUDA
// holds for potentially unsafe: those which may wait for a device, or allocate.
void check_unsafe_call(std::string_view what);
// The same for a call that waits for the whole device: any capture there forbids it.
void check_device_wait(int device, std::string_view what);

}  // namespace encore::device::virtual_gpu
