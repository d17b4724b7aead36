#include "device/conditional.h"

#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "device/capture_stream.h"
#include "device/error.h"
#include "device/virtual/capture.h"
#include "device/virtual/control.h"
#include "device/virtual/stream_state.h"

namespace encore::device {

using namespace virtual_gpu;

namespace {

std::shared_ptr<const Program> captured(int device, const Body& body) {
  const CaptureStream stream(device);
  StreamState& state = state_of(stream);
  const auto capture = std::make_shared<Capture>(&state, CaptureMode::relaxed, true);
  Capture::started(capture);
  {
    std::lock_guard lock(state.mutex);
    state.capture = capture;
  }
  try {
    body(stream);
  } catch (...) {
    capture->abandon();
    throw;
  }
  auto program = capture->end();
  for (const Program::Node& node : program->nodes) check_in_body(node.kind);
  return program;
}

void add(StreamRef stream, const bool* condition, bool repeats, std::initializer_list<const Body*> bodies) {
  StreamState& state = state_of(stream);
  std::shared_ptr<Capture> around;
  int lane = 0;
  {
    std::lock_guard lock(state.mutex);
    if (!state.capturing()) fail(Code::internal, "a condition decides what a graph does, and the stream captures none");
    around = state.capture;
    lane = state.lane;
  }
  if (around->is_body) around->check_joined();
  const std::vector<int> before = around->tail(lane);
  auto decided = std::make_shared<Conditional>(Conditional{condition, repeats, {}});
  try {
    for (const Body* body : bodies)
      if (*body) decided->bodies.push_back(captured(stream.device(), *body));
    if (around->tail(lane) != before)
      fail(Code::capture_forbidden, "capturing on a stream while a part behind its work is captured is forbidden");
  } catch (const std::exception& error) {
    around->invalidate(text("a part of its graph that failed: ", error.what()));
    throw;
  }
  around->add(lane, std::move(decided));
}

}  // namespace

std::string why_no_conditionals(int) {
  return has_conditionals() ? "" : "the virtual GPU was told to have no conditional nodes";
}

void capture_if(StreamRef stream, const bool* condition, const Body& then, const Body& otherwise) {
  add(stream, condition, false, {&then, &otherwise});
}
void capture_while(StreamRef stream, const bool* condition, const Body& body) { add(stream, condition, true, {&body}); }

}  // namespace encore::device
