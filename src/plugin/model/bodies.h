// Graphs inside of a node that is to be a part of another, so that Encore runs them. onnxruntime has asked for them
// before, and has made one of each region in them.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
  std::string why_not_by_data = {};  // data on the device can't decide what bodies do; empty: it can
  bool fetches = false;              // what is as long as data says, when a graph has run
  std::map<const OrtNode*, std::string> refused =
      {};  // with bodies in which the option pad may change results, and why
};

struct NamedBody {
  std::string name;  // of the attribute: "then_branch"
  const OrtGraph* graph;
};
std::vector<NamedBody> bodies_of(const OrtNode* node);
// The values from outside that they read, without constants.
std::vector<const OrtValueInfo*> read_inside(const OrtNode* node);
// And those with which a Loop begins that its body need not carry, as it hands them on unchanged.
std::vector<const OrtValueInfo*> read_by_bodies(const OrtNode* node);

// Nodes of a loop's body, each as often as it runs, that a graph has one by one.
inline constexpr int64_t kMostUnrolled = 4096;

struct PlacementNode;
// In so many iterations there are as many.
int64_t most_unrolled(const OrtNode* loop, const Compiled& compiled);
// Whether a graph has a Scan's body once, for more iterations than that.
bool is_once_beyond(const OrtNode* node, const Compiled& compiled);

// What the host lacks, so that data on the device decides.
struct ByData {
  std::set<std::string> not_on_host = {};  // values from outside
  bool decides = false;                    // which branch, or how often the body runs
  bool has_count = false;                  // that is only to be there once, and the host knows how often it runs
  bool host_carries = false;               // the host may hand on values that it has, by which the body runs
};

// What can be told of bodies without the graph around, by names of values.
struct BodyClaim {
  std::string why_not;                 // Encore can't run them as a part; empty: it can
  std::set<std::string> host_reads;    // values from outside that are read on the host
  std::set<std::string> made_on_host;  // inside; of one body
  std::vector<size_t> host_carried;    // of a Loop's values those that the host hands on
};
BodyClaim examine_body(const OrtNode* node, const NamedBody& body, const Compiled& compiled,
                       const ops::Settings& settings, const ByData& by_data);
BodyClaim examine_bodies(const OrtNode* node, const Compiled& compiled, const ops::Settings& settings,
                         const ByData& by_data = {});
// Whether data surely decides about a Loop if the host lacks what does, for all that its body tells.
bool may_go_by_data(const OrtNode* loop, const Compiled& compiled);
// How a node runs whose bodies are a part, if the host has of outer values those of which it says so.
ByData by_data(const OrtNode* node, const Compiled& compiled, const ops::Settings& settings,
               const std::function<bool(const std::string&)>& is_on_host);
// Of a Loop whose count shapes tell, which may be any: the body that a graph has once, for more iterations than it has
// one by one. None if it has to be one by one, `claim` being what is told of a body then.
struct Beyond {
  ByData by_data;
  BodyClaim claim;
};
std::optional<Beyond> beyond_unrolled(const OrtNode* node, const Compiled& compiled, const ops::Settings& settings,
                                      const ByData& known, const BodyClaim& claim);

// Has the node read on the device, where the host lacks it, what is a bound alone.
void go_without_bounds(PlacementNode& place, const ops::NodeInfo& info);
// Says of a node with bodies that it may join a part, or returns why not. `numbers` are those of the values, by name.
// All of these are to live as long as the placement is decided about.
std::string place_bodies(PlacementNode& place, const OrtNode* node, const Compiled& compiled,
                         const ops::Settings& settings, const std::function<int(const std::string&)>& number,
                         const std::function<std::string(int)>& name_of);

}  // namespace encore::plugin
