#include "device/cuda/capture.h"

#include <cuda.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "device/clear_ahead.h"
#include "device/cuda/check.h"
#include "device/cuda/driver.h"
#include "device/cuda/edges.h"
#include "device/cuda/graph_edit.h"
#include "device/cuda/graph_fills.h"
#include "device/cuda/green_context.h"
#include "device/label.h"
#include "device/memory.h"

namespace encore::device {

using cuda::check;
using cuda::report;

namespace {

cudaStream_t of(StreamRef stream) { return static_cast<cudaStream_t>(stream.native()); }

struct Capture {
  void* stream;  // where it began
  unsigned long long id;
  cuda::Notes notes = {};
  std::vector<Exchange> exchanges = {};
};
// Captures begun here and not yet ended: few, so a list will do.
struct UnderWay {
  std::mutex mutex;
  std::vector<Capture> captures;
};
UnderWay& under_way() {
  static auto& under_way = *new UnderWay;  // destructors of other statics may still use it
  return under_way;
}

Capture take_notes(StreamRef stream) {
  std::lock_guard lock(under_way().mutex);
  auto& captures = under_way().captures;
  const auto found = std::ranges::find(captures, stream.native(), &Capture::stream);
  if (found == captures.end()) return {};
  Capture taken = std::move(*found);
  captures.erase(found);
  --cuda::captures_under_way;
  return taken;
}

bool is_capturing(StreamRef stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(of(stream), &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

struct Progress {  // of a capture
  bool is_active;
  unsigned long long id;
  std::vector<cudaGraphNode_t> last;  // nodes that what comes next will depend on
};
Progress progress_of(StreamRef stream) {
  cudaStreamCaptureStatus status;
  unsigned long long id = 0;
  const cudaGraphNode_t* last = nullptr;
  const cudaGraphEdgeData* edges;  // asked for because the call fails where there are some and nobody asks
  size_t count = 0;
  check(cuda::get_capture_info(of(stream), &status, &id, nullptr, &last, &edges, &count), "cudaStreamGetCaptureInfo");
  return {status == cudaStreamCaptureStatusActive, id, {last, last + count}};
}

}  // namespace

namespace cuda {

namespace {

// What the stream captured since it was called last, the newest first; f(notes, nodes) is called if there is any.
template <class F>
void with_new_nodes(StreamRef stream, F f) {
  auto [is_active, id, pending] = progress_of(stream);
  if (!is_active) return;

  std::lock_guard lock(under_way().mutex);
  auto& captures = under_way().captures;
  const auto capture = std::ranges::find(captures, id, &Capture::id);
  if (capture == captures.end()) return;  // begun by somebody else
  // Walk back from the stream's end to nodes noted before.
  Notes& notes = capture->notes;
  std::vector<cudaGraphNode_t> fresh;
  while (!pending.empty()) {
    const cudaGraphNode_t node = pending.back();
    pending.pop_back();
    if (!notes.try_emplace(node, Note{Label::current(), {}, 0}).second) continue;
    fresh.push_back(node);
    const std::vector<cudaGraphNode_t> before = dependencies_of(node);
    pending.insert(pending.end(), before.begin(), before.end());
  }
  if (fresh.empty()) return;
  int order = int(notes.size());
  for (cudaGraphNode_t node : fresh) notes[node].order = --order;  // the newest came first
  f(notes, fresh);
}

bool clears(cudaGraphNode_t node, const void* at, size_t bytes) {
  cudaMemsetParams params;
  if (type_of(node) != cudaGraphNodeTypeMemset || cudaGraphMemsetNodeGetParams(node, &params) != cudaSuccess)
    return false;
  const auto *const first = static_cast<const char*>(at), *const to = static_cast<const char*>(params.dst);
  return params.value == 0 && params.height <= 1 && to >= first &&
         to + params.width * params.elementSize <= first + bytes;
}

}  // namespace

void note_new_nodes(StreamRef stream, std::string_view kernel) {
  with_new_nodes(stream, [&](Notes& notes, const std::vector<cudaGraphNode_t>& fresh) {
    if (!kernel.empty()) notes[fresh.front()].kernel = kernel;
  });
}

// Of two fills of the same the second one may be for what came between.
void note_cleared(StreamRef stream, const void* at, size_t bytes) {
  if (captures_under_way.load(std::memory_order_relaxed) == 0) return;
  with_new_nodes(stream, [&](Notes& notes, std::vector<cudaGraphNode_t>& fresh) {
    std::erase_if(fresh, [&](cudaGraphNode_t node) { return !clears(node, at, bytes); });
    if (fresh.size() == 1) notes[fresh.front()].needless = true;
  });
}

void invalidate(StreamRef stream) noexcept {
  if (!is_capturing(stream)) return;
  cudaStreamQuery(of(stream));  // illegal
  cudaGetLastError();
}

void forbid(StreamRef stream, const char* what, const char* call) {
  const bool was_valid = stream.capture_status() == CaptureStatus::active;
  invalidate(stream);
  const std::string node = *Label::current() ? text(" (node ", Label::current(), ")") : "";
  if (!was_valid)
    throw Error(Code::capture_failed, text("the stream's capture is invalid; end it before ", what, node), call);
  throw Error(Code::capture_forbidden,
              text(what, node, " is forbidden while the stream captures; the capture is now invalid"), call);
}

End end_of(StreamRef stream) {
  cudaStreamCaptureStatus status;
  End end;
  const cudaGraphNode_t* last = nullptr;
  const cudaGraphEdgeData* edges;
  size_t count = 0;
  check(get_capture_info(of(stream), &status, nullptr, &end.graph, &last, &edges, &count), "cudaStreamGetCaptureInfo");
  if (status == cudaStreamCaptureStatusNone) return {};
  if (status == cudaStreamCaptureStatusInvalidated)
    throw Error(Code::capture_failed, "the stream's capture is invalid; end it first", "cudaStreamGetCaptureInfo");
  end.last.assign(last, last + count);
  return end;
}

void go_on_after(StreamRef stream, const std::vector<cudaGraphNode_t>& last) {
  std::vector<cudaGraphNode_t> nodes = last;  // which CUDA 12 takes as if it changed them
  check(update_capture_dependencies(of(stream), nodes.data(), nullptr, nodes.size(), cudaStreamSetCaptureDependencies),
        "cudaStreamUpdateCaptureDependencies");
}

void note_exchange(StreamRef stream, Exchange exchange) {
  const unsigned long long id = progress_of(stream).id;
  std::lock_guard lock(under_way().mutex);
  auto& captures = under_way().captures;
  const auto capture = std::ranges::find(captures, id, &Capture::id);
  if (capture != captures.end()) capture->exchanges.push_back(std::move(exchange));  // else begun by somebody else
}

void forget_capture(StreamRef stream) noexcept {
  if (captures_under_way != 0) take_notes(stream);
}

}  // namespace cuda

void begin_capture(StreamRef stream, CaptureMode mode) {
  if (is_capturing(stream))
    cuda::forbid(stream, "beginning a capture on a stream that captures", "cudaStreamBeginCapture");
  const cudaStreamCaptureMode native = mode == CaptureMode::global          ? cudaStreamCaptureModeGlobal
                                       : mode == CaptureMode::thread_local_ ? cudaStreamCaptureModeThreadLocal
                                                                            : cudaStreamCaptureModeRelaxed;
  check(cudaStreamBeginCapture(of(stream), native), "cudaStreamBeginCapture");
  take_notes(stream);  // of a capture that somebody else ended
  const unsigned long long id = progress_of(stream).id;
  std::lock_guard lock(under_way().mutex);
  under_way().captures.push_back({stream.native(), id});
  ++cuda::captures_under_way;
}

// By a node that is added to the graph rather than by a record in the capture: streams to capture on may be of another
// context than the event is, and graphs are of none.
void EventRef::record_at_launch(StreamRef stream) const {
  cuda::note_capture(stream);  // what came before is no part of this
  const cuda::End end = cuda::end_of(stream);
  require(end.graph, "an event is to be recorded at launches of a graph, and the stream captures none");
  cudaGraphNode_t added = nullptr;
  check(cudaGraphAddEventRecordNode(&added, end.graph, end.last.data(), end.last.size(),
                                    static_cast<cudaEvent_t>(native_)),
        "cudaGraphAddEventRecordNode");
  cuda::go_on_after(stream, {added});
  cuda::note_capture(stream);
}

KernelNode latest_kernel(StreamRef stream) {
  const Progress progress = progress_of(stream);
  if (!progress.is_active || cuda::bodies_open || progress.last.size() != 1 ||
      cuda::type_of(progress.last[0]) != cudaGraphNodeTypeKernel)
    fail(Code::internal, "the stream has not captured a kernel last");
  return {reinterpret_cast<std::intptr_t>(progress.last[0])};
}

ClearNode clear_ahead(StreamRef stream, void* at, size_t bytes) {
  if (cuda::bodies_open || !is_capturing(stream)) return {};
  fill(stream, at, 0, bytes);
  const Progress progress = progress_of(stream);
  if (!progress.is_active || progress.last.size() != 1) return {};
  return {reinterpret_cast<std::intptr_t>(progress.last[0])};
}

void leave_out(StreamRef stream, ClearNode node) {
  if (!node) return;
  const unsigned long long id = progress_of(stream).id;
  std::lock_guard lock(under_way().mutex);
  auto& captures = under_way().captures;
  const auto capture = std::ranges::find(captures, id, &Capture::id);
  if (capture == captures.end()) return;
  const auto note = capture->notes.find(reinterpret_cast<cudaGraphNode_t>(node.id));
  if (note != capture->notes.end()) note->second.needless = true;
}

Graph end_capture(StreamRef stream) {
  if (!is_capturing(stream)) throw Error(Code::capture_failed, "the stream does not capture", "cudaStreamEndCapture");
  cudaGraph_t graph = nullptr;
  const cudaError_t result = cudaStreamEndCapture(of(stream), &graph);
  if (result == cudaSuccess && graph) {
    auto state = std::make_shared<Graph::State>(graph);
    Capture taken = take_notes(stream);
    state->notes = std::move(taken.notes);
    state->exchanges = std::move(taken.exchanges);
    cuda::fill_by_kernels(*state);
    if (cuda::is_green(of(stream))) cuda::leave_green_context(*state);
    return Graph(std::move(state));
  }
  cudaGetLastError();
  if (graph) report(cudaGraphDestroy(graph), "cudaGraphDestroy");
  if (is_capturing(stream) && result != cudaErrorStreamCaptureWrongThread) {  // it must not stay so
    graph = nullptr;
    cudaStreamEndCapture(of(stream), &graph);
    if (graph) report(cudaGraphDestroy(graph), "cudaGraphDestroy");
    cudaGetLastError();
  }
  if (!is_capturing(stream)) take_notes(stream);
  if (result == cudaSuccess || result == cudaErrorStreamCaptureInvalidated)
    throw Error(Code::capture_failed, "the capture was invalidated by a call that is illegal while a stream captures",
                "cudaStreamEndCapture");
  throw Error(Code::capture_failed, text(cudaGetErrorName(result), ": ", cudaGetErrorString(result)),
              "cudaStreamEndCapture");
}

void abandon_capture(StreamRef stream) noexcept {
  if (!stream || !is_capturing(stream)) return;
  cudaGraph_t graph = nullptr;
  const cudaError_t result = cudaStreamEndCapture(of(stream), &graph);
  if (graph) report(cudaGraphDestroy(graph), "cudaGraphDestroy");
  cudaGetLastError();
  if (is_capturing(stream))
    report(result, "abandon_capture");
  else
    take_notes(stream);
}

// The driver's, since the runtime's would start device 0 for a thread that has no device yet.
namespace {
CUresult exchange_mode(CUstreamCaptureMode* mode) {
  static const auto exchange =
      cuda::driver_function<decltype(&cuThreadExchangeStreamCaptureMode)>("cuThreadExchangeStreamCaptureMode", 12000);
  return exchange ? exchange(mode) : CUDA_ERROR_NOT_FOUND;
}
}  // namespace

RelaxedCapture::RelaxedCapture() noexcept {
  auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  const CUresult result = exchange_mode(&mode);
  report(cudaError_t(result), "cuThreadExchangeStreamCaptureMode");
  previous_ = result == CUDA_SUCCESS ? int(mode) : -1;
}
RelaxedCapture::~RelaxedCapture() {
  if (previous_ < 0) return;
  auto mode = CUstreamCaptureMode(previous_);
  report(cudaError_t(exchange_mode(&mode)), "cuThreadExchangeStreamCaptureMode");
}

}  // namespace encore::device
