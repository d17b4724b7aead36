#include "device/graph.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <thread>

#include "device/error.h"
#include "device/label.h"
#include "device/virtual/address_space.h"
#include "device/virtual/capture.h"
#include "device/virtual/control.h"
#include "device/virtual/queue.h"
#include "device/virtual/stream_state.h"

namespace encore::device {

using namespace virtual_gpu;

struct Graph::State {
  std::shared_ptr<const Program> program;
};

namespace {
using Changed = std::map<int, Work>;  // what nodes do instead
}

struct GraphExec::State {
  std::shared_ptr<const Program> program;
  std::shared_ptr<const Changed> changed;  // of launches to come; null while there is nothing
  std::shared_ptr<Marker> last;            // launch
  std::mutex mutex;
  Exchanges exchanges;

  void launch(StreamRef ref);
};

namespace {

struct Launched;
void run_launched(const Launched& launched);

// A launch.
struct Launched {
  const void* stream;
  const Program& program;
  const Changed* changed;

  const Work& work(int n) const {
    const auto found = changed ? changed->find(n) : Changed::const_iterator();
    return changed && found != changed->end() ? found->second : program.nodes[size_t(n)].work;
  }
  void run(int n) const { run(n, work(n).run); }
  void run(int n, const std::function<void()>& what) const {
    const Program::Node& node = program.nodes[size_t(n)];
    if (node.decided)
      run_traced(stream, node.kind, node.name, node.label, [&] { decide(*node.decided); });
    else
      run_traced(stream, node.kind, node.name, node.label, what);
  }

 private:
  void decide(const Conditional& decided) const {
    const auto holds = [at = static_cast<const bool*>(followed(decided.condition))] { return *at; };
    const auto turn = [&](size_t body) {
      if (body < decided.bodies.size()) run_launched({stream, *decided.bodies[body], nullptr});
    };
    if (!decided.repeats) return turn(holds() ? 0 : 1);
    while (holds()) turn(0);
  }
};

// Nodes in turn, of which those that can begin early do, while the kernels ahead of them have not run.
class InTurn {
 public:
  explicit InTurn(const Launched& launched) : launched_(launched) {}
  void run(int n) {
    begin_behind(n);
    const auto rest = begun_.extract(n);
    rest ? launched_.run(n, rest.mapped()) : launched_.run(n);
  }

 private:
  // As far as each kernel comes after the one before alone.
  void begin_behind(int n) {
    const auto& nodes = launched_.program.nodes;
    for (int k = n + 1; k <= n + kBeginsAhead && k < int(nodes.size()); ++k) {
      const Program::Node &before = nodes[size_t(k) - 1], &node = nodes[size_t(k)];
      if (before.kind != NodeKind::kernel || node.kind != NodeKind::kernel || node.after != std::vector{k - 1}) return;
      if (const Work& work = launched_.work(k); work.begin && !begun_.contains(k)) begun_.emplace(k, work.begin());
    }
  }

  const Launched& launched_;
  std::map<int, std::function<void()>> begun_;  // what does the rest
};

// As captured, or as late as the dependencies allow.
void run_in_turn(const Launched& launched, bool reversed) {
  const auto& nodes = launched.program.nodes;
  InTurn in_turn(launched);
  if (!reversed) {
    for (int n = 0; n < int(nodes.size()); ++n) in_turn.run(n);
    return;
  }
  std::vector<int> missing(nodes.size());
  std::vector<std::vector<int>> next(nodes.size());
  std::priority_queue<int> ready;
  for (int n = 0; n < int(nodes.size()); ++n) {
    missing[size_t(n)] = int(nodes[size_t(n)].after.size());
    for (int before : nodes[size_t(n)].after) next[size_t(before)].push_back(n);
    if (!missing[size_t(n)]) ready.push(n);
  }
  while (!ready.empty()) {
    const int n = ready.top();
    ready.pop();
    in_turn.run(n);
    for (int later : next[size_t(n)])
      if (--missing[size_t(later)] == 0) ready.push(later);
  }
}

// Every captured stream's nodes on a thread of their own, so that TSan sees what the edges do not order.
void run_in_lanes(const Launched& launched) {
  const auto& nodes = launched.program.nodes;
  const size_t lane_count = size_t(launched.program.lanes);
  std::vector<Marker> done(nodes.size());
  std::vector<std::exception_ptr> failures(lane_count);
  const auto run_lane = [&](int lane) {
    for (size_t n = 0; n < nodes.size(); ++n) {
      if (nodes[n].lane != lane) continue;
      for (int before : nodes[n].after) done[size_t(before)].wait();
      try {
        if (!failures[size_t(lane)]) launched.run(int(n));
      } catch (...) {
        failures[size_t(lane)] = std::current_exception();
      }
      done[n].set();
    }
  };
  {
    std::vector<std::jthread> lanes;
    for (int lane = 1; lane < int(lane_count); ++lane) lanes.emplace_back(run_lane, lane);
    run_lane(0);
  }
  for (auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

void run_launched(const Launched& launched) {
  if (order() == Order::split && launched.program.lanes > 1) return run_in_lanes(launched);
  run_in_turn(launched, order() == Order::reversed);
}

}  // namespace

Graph::Graph(std::shared_ptr<State> state) : state_(std::move(state)) {}
Graph::Graph() = default;
Graph::~Graph() = default;
Graph::Graph(Graph&& other) noexcept = default;
Graph& Graph::operator=(Graph&& other) noexcept = default;

size_t Graph::size() const { return state_ ? state_->program->nodes.size() : 0; }

std::vector<GraphNode> Graph::nodes() const {
  std::vector<GraphNode> nodes;
  if (state_)
    for (auto& node : state_->program->nodes) nodes.push_back({node.kind, std::string(node.name), node.label});
  return nodes;
}

GraphExec Graph::instantiate() const {
  if (!state_) fail(Code::capture_failed, "there is no graph to instantiate");
  check_unsafe_call("instantiating a graph");
  auto state = std::make_unique<GraphExec::State>();
  state->program = state_->program;
  if (!state->program->exchanges.empty()) state->exchanges.await(state->program->exchanges, state->program);
  return GraphExec(std::move(state));
}

GraphExec::GraphExec(std::unique_ptr<State> state) : state_(std::move(state)) {}
GraphExec::GraphExec() = default;
GraphExec::~GraphExec() = default;
GraphExec::GraphExec(GraphExec&& other) noexcept = default;
GraphExec& GraphExec::operator=(GraphExec&& other) noexcept = default;

void GraphExec::State::launch(StreamRef ref) {
  StreamState& stream = state_of(ref);
  std::lock_guard turn(mutex);  // launches are enqueued in the order in which they wait for each other
  std::unique_lock lock(stream.mutex);
  if (Capture* capture = stream.capturing()) capture->forbid("launching a graph into a stream that captures");
  auto done = std::make_shared<Marker>();
  auto run = [&stream, program = program, changed = changed, before = last, done] {
    struct Ending {
      Marker& marker;
      ~Ending() { marker.set(); }
    } ending{*done};
    if (before) before->wait();
    if (!stream.failed) run_launched({&stream, *program, changed.get()});
  };
  stream.push(lock, {NodeKind::graph, "a graph", Label::current(), std::move(run)});
  last = std::move(done);
}

void GraphExec::launch(StreamRef stream) const {
  if (!state_) fail(Code::internal, "there is no graph to launch");
  check_launches();
  if (state_->exchanges.are_awaited()) return state_->exchanges.launch(*this, [&] { state_->launch(stream); });
  state_->launch(stream);
}

void GraphExec::upload(StreamRef ref) const {
  if (!state_) fail(Code::internal, "there is no graph to upload");
  StreamState& stream = state_of(ref);
  std::lock_guard lock(stream.mutex);
  if (Capture* capture = stream.capturing()) capture->forbid("uploading a graph to a stream that captures");
}

void virtual_gpu::set_node(const GraphExec& exec, KernelNode node, Work work) {
  GraphExec::State& state = exec.state();
  const auto& nodes = state.program->nodes;
  if (node.id < 0 || size_t(node.id) >= nodes.size() || nodes[size_t(node.id)].kind != NodeKind::kernel)
    fail(Code::internal, "the graph has no such kernel");
  check_launches();
  std::lock_guard lock(state.mutex);
  auto changed = state.changed ? std::make_shared<Changed>(*state.changed) : std::make_shared<Changed>();
  (*changed)[int(node.id)] = std::move(work);
  state.changed = std::move(changed);
}

KernelNode latest_kernel(StreamRef ref) {
  StreamState& stream = state_of(ref);
  std::lock_guard lock(stream.mutex);
  Capture* capture = stream.capturing();
  const std::optional<int> node = capture ? capture->latest_kernel(stream.lane) : std::nullopt;
  if (!node) fail(Code::internal, "the stream has not captured a kernel last");
  return {*node};
}

void begin_capture(StreamRef ref, CaptureMode mode) {
  StreamState& stream = state_of(ref);
  std::lock_guard lock(stream.mutex);
  if (Capture* capture = stream.capturing()) {
    capture->check();
    capture->forbid("beginning a capture on a stream that captures");
  }
  auto capture = std::make_shared<Capture>(&stream, mode);
  Capture::started(capture);
  stream.capture = std::move(capture);
  stream.lane = 0;
}

namespace {
// Takes the capture off the stream, if this thread may end it there.
std::shared_ptr<Capture> ending(StreamState& stream) {
  std::lock_guard lock(stream.mutex);
  Capture* capture = stream.capturing();
  if (!capture) fail(Code::capture_failed, "the stream does not capture");
  if (capture->origin != &stream) {
    capture->invalidate("ending it on a forked stream");
    fail(Code::capture_failed, "a capture ends on the stream where it began, and this stream was forked from that one");
  }
  if (capture->mode != CaptureMode::relaxed && capture->owner != std::this_thread::get_id())
    capture->invalidate("ending it in another thread than it began in, which only a relaxed capture may");
  return std::move(stream.capture);
}
}  // namespace

Graph end_capture(StreamRef stream) {
  auto state = std::make_shared<Graph::State>();
  state->program = ending(state_of(stream))->end();
  return Graph(std::move(state));
}

void abandon_capture(StreamRef stream) noexcept {
  if (!stream) return;
  try {
    ending(state_of(stream))->abandon();
  } catch (const Error&) {  // not capturing: nothing to drop
  }
}

}  // namespace encore::device
