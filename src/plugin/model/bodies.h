// Graphs inside of a node that is to be a part of another, so that Encore runs them. onnxruntime has asked for them
// before, and has made one of each region in them.
#pragma once
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ops/op.h"
#include "plugin/host/api_version.h"

namespace encore::plugin {

// What Encore, by the name of `ep`, has compiled before, by the names of nodes.
struct Compiled {
  std::string ep;
  std::function<std::shared_ptr<const ops::Op>(const std::string& node)> find;  // null if there is none
  std::function<size_t(const std::string& node)> size;                          // of so many nodes
};

struct NamedBody {
  std::string name;  // of the attribute: "then_branch"
  const OrtGraph* graph;
};
std::vector<NamedBody> bodies_of(const OrtNode* node);
// The values from outside that they read, without constants.
std::vector<const OrtValueInfo*> read_inside(const OrtNode* node);

// Of a loop whose count is constant: nodes of its body, each as often as it runs. More are left to onnxruntime.
inline constexpr int64_t kMostUnrolled = 4096;

// What can be told of bodies without the graph around, by names of values.
struct BodyClaim {
  std::string why_not;                 // Encore can't run them as a part; empty: it can
  std::set<std::string> host_reads;    // values from outside that are read on the host
  std::set<std::string> made_on_host;  // inside; of one body
};
BodyClaim examine_body(const OrtNode* node, const NamedBody& body, const Compiled& compiled,
                       const ops::Settings& settings);
BodyClaim examine_bodies(const OrtNode* node, const Compiled& compiled, const ops::Settings& settings);

}  // namespace encore::plugin
