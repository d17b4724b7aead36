// Work on behalf of a node.
#pragma once
#include <string>

#include "device/device.h"
#include "device/label.h"
#include "ops/op.h"
#include "plugin/host/fence.h"
#include "plugin/model/node_info.h"
#include "plugin/session/ep.h"

namespace encore::plugin {

struct NamedNode {
  Ep& ep;
  const char* name;   // "conv1"
  const char* op;     // "Conv"
  std::string label;  // "Conv node 'conv1'"

  NamedNode(Ep& ep, const ops::NodeInfo& info)
      : ep(ep), name(device::kept(info.name())), op(device::kept(info.op_type())), label(ops::label_of(info)) {}
};

// Runs `body` as the node: its name is on every launch and in every error, and an error also ends a capture with the
// reason at hand.
template <class Body>
OrtStatus* run_as(const NamedNode& node, Body body) noexcept {
  return guarded(node.label.c_str(), [&] {
    device::Current current(node.ep.device());
    device::Label label(node.name);
    try {
      body();
    } catch (const Error& error) {
      node.ep.run_failed(text(node.label, ": ", error.what()), error.code());
      if (!is_unnamed(node.name)) throw;  // onnxruntime says it
      throw Error(error.code(), text(node.label, ": ", error.what()));
    } catch (const std::exception& error) {
      node.ep.run_failed(text(node.label, ": ", error.what()), Code::internal);
      throw;
    }
  });
}

// Makes a kernel; an error names its node.
template <class Body>
void create_as(const ops::NodeInfo& node, Body body) {
  try {
    body();
  } catch (const Error& error) {
    throw Error(error.code(), text(ops::label_of(node), ": ", error.what()));
  }
}

}  // namespace encore::plugin
