#include "device/conditional.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "device/capture_stream.h"
#include "device/cuda/capture.h"
#include "device/cuda/check.h"
#include "device/cuda/edges.h"
#include "device/cuda/graph_edit.h"
#include "device/cuda/green_context.h"

namespace encore::device {

using cuda::check;
using cuda::End;

namespace {

cudaStream_t of(StreamRef stream) { return static_cast<cudaStream_t>(stream.native()); }

__global__ void set_condition(cudaGraphConditionalHandle handle, const unsigned char* condition) {
  cudaGraphSetConditional(handle, *condition != 0);
}

// A body is put together from parts: what it captures up to a body of its own, that, what comes then. Each is captured
// as any graph is, for all of a body's kernels are to be of one context, which a capture of a green one leaves at its
// end. Graphs with conditional nodes can't be parts.
struct OpenBody {
  StreamRef stream;
  End end;
};
thread_local OpenBody* open_body = nullptr;  // the innermost

void begin_part(const OpenBody& body) { begin_capture(body.stream, CaptureMode::relaxed); }

void end_part(OpenBody& body) {
  const Graph part = end_capture(body.stream);
  const cudaGraph_t graph = part.state().graph;
  for (cudaGraphNode_t node : cuda::nodes_of(graph)) check_in_body(cuda::kind_of(node));
  if (part.size() == 0) return;
  End& end = body.end;
  cudaGraphNode_t added = nullptr;
  check(cudaGraphAddChildGraphNode(&added, end.graph, end.last.data(), end.last.size(), graph),
        "cudaGraphAddChildGraphNode");
  end.last = {added};
}

End end_of(StreamRef stream) {
  End end = cuda::end_of(stream);
  if (!end.graph) fail(Code::internal, "a condition decides what a graph does, and the stream captures none");
  return end;
}

void set_from(End& end, cudaGraphConditionalHandle handle, const bool* condition) {
  const RelaxedCapture relaxed;  // the kernel may have to be loaded first
  void* arguments[] = {&handle, &condition};
  cudaKernelNodeParams params = {};
  params.func = reinterpret_cast<void*>(&set_condition);
  params.gridDim = params.blockDim = dim3(1);
  params.kernelParams = arguments;
  cudaGraphNode_t added = nullptr;
  check(cudaGraphAddKernelNode(&added, end.graph, end.last.data(), end.last.size(), &params), "cudaGraphAddKernelNode");
  end.last = {added};
}

// A stream for bodies beside the one that captures. Idle ones are kept, since libraries remember what stream they have
// worked on; and never destroyed, for that may be when the library's statics have gone.
template <class Kind>
class Lent {
 public:
  explicit Lent(int device) {
    std::lock_guard lock(idle().mutex);
    auto& streams = idle().streams;
    const auto found =
        std::ranges::find_if(streams, [&](const Kind& one) { return StreamRef(one).device() == device; });
    if (found == streams.end()) {
      const RelaxedCapture relaxed;
      stream_ = Kind(device);
    } else {
      stream_ = std::move(*found);
      streams.erase(found);
    }
  }
  ~Lent() {
    abandon_capture(stream_);
    std::lock_guard lock(idle().mutex);
    idle().streams.push_back(std::move(stream_));
  }
  Lent(const Lent&) = delete;
  operator StreamRef() const { return stream_; }

 private:
  struct Idle {
    std::mutex mutex;
    std::vector<Kind> streams;
  };
  static Idle& idle() {
    static auto& idle = *new Idle;
    return idle;
  }
  Kind stream_;
};

class Opened {
 public:
  explicit Opened(OpenBody& body) : around_(open_body) {
    open_body = &body;
    ++cuda::bodies_open;
  }
  ~Opened() {
    open_body = around_;
    --cuda::bodies_open;
  }
  Opened(const Opened&) = delete;

 private:
  OpenBody* const around_;
};

void capture_into(cudaGraph_t graph, StreamRef stream, const Body& body, End& end) {
  OpenBody open{stream, {graph, {}}};
  const Opened opened(open);
  begin_part(open);
  body(stream);
  end_part(open);
  end = std::move(open.end);
}

// Adds the node to `end`; its bodies are captured on `stream`.
void add(End& end, StreamRef stream, const bool* condition, cudaGraphConditionalNodeType type,
         const std::vector<const Body*>& bodies) {
  cudaGraphConditionalHandle handle;
  check(cudaGraphConditionalHandleCreate(&handle, end.graph, 0, 0), "cudaGraphConditionalHandleCreate");
  set_from(end, handle, condition);
  cudaGraphNodeParams params = {};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = handle;
  params.conditional.type = type;
  params.conditional.size = unsigned(bodies.size());
  cudaGraphNode_t added = nullptr;
  check(cuda::add_node(&added, end.graph, end.last.data(), nullptr, end.last.size(), &params), "cudaGraphAddNode");
  for (size_t b = 0; b < bodies.size(); ++b) {
    End inside;
    capture_into(params.conditional.phGraph_out[b], stream, *bodies[b], inside);
    if (type == cudaGraphCondTypeWhile) set_from(inside, handle, condition);
  }
  end.last = {added};
}

void add_to_body(OpenBody& around, const bool* condition, cudaGraphConditionalNodeType type,
                 const std::vector<const Body*>& bodies) {
  try {
    end_part(around);
    add(around.end, around.stream, condition, type, bodies);
    begin_part(around);
  } catch (...) {  // nothing that still comes may run
    abandon_capture(around.stream);
    begin_part(around);
    cuda::invalidate(around.stream);
    throw;
  }
}

void add_to_capture(StreamRef stream, StreamRef inside, const bool* condition, cudaGraphConditionalNodeType type,
                    const std::vector<const Body*>& bodies) {
  End end = end_of(stream);
  const std::vector<cudaGraphNode_t> before = end.last;
  try {
    add(end, inside, condition, type, bodies);
    if (end_of(stream).last != before)
      fail(Code::capture_forbidden, "capturing on a stream while a part behind its work is captured is forbidden");
    cuda::go_on_after(stream, end.last);
  } catch (...) {
    cuda::invalidate(stream);
    throw;
  }
  cuda::note_capture(stream);
}

void add(StreamRef stream, const bool* condition, cudaGraphConditionalNodeType type,
         const std::vector<const Body*>& bodies) {
  if (open_body && open_body->stream == stream)
    add_to_body(*open_body, condition, type, bodies);
  else if (cuda::is_green(of(stream)))
    add_to_capture(stream, Lent<CaptureStream>(stream.device()), condition, type, bodies);
  else
    add_to_capture(stream, Lent<Stream>(stream.device()), condition, type, bodies);
}

}  // namespace

std::string why_no_conditionals(int) {
  constexpr int kSince = 12080;  // what runs if a condition does not hold
  int version = 0;
  check(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
  if (version >= kSince) return {};
  return text("the driver is CUDA ", version / 1000, ".", version % 1000 / 10,
              "'s, and graphs have conditional nodes with both branches from 12.8 on");
}

void capture_if(StreamRef stream, const bool* condition, const Body& then, const Body& otherwise) {
  std::vector<const Body*> bodies{&then};
  if (otherwise) bodies.push_back(&otherwise);
  add(stream, condition, cudaGraphCondTypeIf, bodies);
}
void capture_while(StreamRef stream, const bool* condition, const Body& body) {
  add(stream, condition, cudaGraphCondTypeWhile, {&body});
}

}  // namespace encore::device
