// Capture of a stream into a graph, and its replay.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/stream.h"

namespace encore::device {

enum class CaptureMode { global, thread_local_, relaxed };  // as CUDA means them

enum class NodeKind { kernel, copy, fill, allocate, free, host, event, graph, empty };
struct GraphNode {
  NodeKind kind;
  std::string name;   // the kernel's, demangled; empty for other kinds
  std::string label;  // of the Label in force when it was captured: the ONNX node's name
};

// A kernel that a capture recorded. Launches of an executable may give it another functor: set_block_kernel() of
// launch.h.
struct KernelNode {
  std::intptr_t id = 0;  // of the back end
};

class GraphExec;

// What a capture recorded.
class Graph {
 public:
  Graph();
  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  explicit operator bool() const { return state_ != nullptr; }
  size_t size() const;
  std::vector<GraphNode> nodes() const;
  GraphExec instantiate() const;
  struct State;  // of the back end
  explicit Graph(std::shared_ptr<State> state);
  const State& state() const { return *state_; }

 private:
  std::shared_ptr<State> state_;  // which an executable may need
};

// A graph ready to launch. Launches of one GraphExec never overlap: each waits for the one before, on the device.
class GraphExec {
 public:
  GraphExec();
  ~GraphExec();
  GraphExec(GraphExec&& other) noexcept;
  GraphExec& operator=(GraphExec&& other) noexcept;
  explicit operator bool() const { return state_ != nullptr; }
  void launch(StreamRef stream) const;  // forbidden into a capturing stream
  void upload(StreamRef stream) const;  // so that the first launch costs no more than later ones
  struct State;
  explicit GraphExec(std::unique_ptr<State> state);
  State& state() const { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

void begin_capture(StreamRef stream, CaptureMode mode);
// What the stream's capture recorded last, which is a kernel. It is good for executables as long as their Graph lives.
KernelNode latest_kernel(StreamRef stream);
// Throws Error{capture_failed} if something invalidated the capture; the stream is then free of it.
Graph end_capture(StreamRef stream);
// Ends a capture and drops it, whatever its state.
void abandon_capture(StreamRef stream) noexcept;

// Lets this thread make driver calls such as allocate() while one of its streams captures. Never fails: where it can't,
// because the process is ending, nothing captures.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept;
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;

 private:
  int previous_;
};

}  // namespace encore::device
