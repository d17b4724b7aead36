// Parts of a graph that run only if, or as long as, a bool on the device says so when their turn comes.
#pragma once
#include <functional>
#include <string>

#include "device/graph.h"

namespace encore::device {

// Why graphs of the device have no such parts; empty if they may.
std::string why_no_conditionals(int device);

// Captures a part on the stream that it is given.
using Body = std::function<void(StreamRef)>;

// Add to what `stream` captures, whose next work comes behind. Nothing else is captured there meanwhile.
//
// A body launches kernels, copies between device and pinned memory, fills, and may have bodies of its own. What it
// forks it joins before these, and before its end. It allocates and frees nothing in its stream, and waits for no event
// from outside. Its kernels can't be given other functors. Where it fails the capture is invalid.
void capture_if(StreamRef stream, const bool* condition, const Body& then, const Body& otherwise = {});
// The condition is read before each turn of the body, which sets it.
void capture_while(StreamRef stream, const bool* condition, const Body& body);

// For back ends: throws Error{capture_forbidden} if a body must not have such a node.
void check_in_body(NodeKind kind);

}  // namespace encore::device
