// onnxruntime's graphs as fusion sees them.
#pragma once
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "fuse/attention.h"
#include "fuse/plan.h"
#include "plugin/model/node_info.h"

namespace encore::plugin {

// Nodes that are to be one.
struct Group {
  std::vector<const OrtNode*> nodes;
  const char* what;  // they are
  std::optional<fuse::Attention> attention = {};
};
// By the value that each makes.
using Attentions = std::map<std::string, fuse::Attention>;

// `claimed` are the nodes that Encore takes, which goes by `ep_name`; shape arithmetic may come along. With
// `are_channels_last` onnxruntime changes the layout, or has done so.
std::vector<Group> find_groups(const OrtGraph* graph, const std::vector<const OrtNode*>& claimed,
                               const std::string& ep_name, const ops::Settings& settings, bool are_channels_last);

// The graph behind one fused node.
class FusedGraph {
 public:
  FusedGraph(const OrtGraph* graph, const ops::Settings& settings);
  // What the node is to do; the plan refers to this.
  fuse::Plan plan(const GraphNodeInfo& fused, const Attentions& attentions);
  // The same of a region, or of the whole model, which makes the values that are named on the host.
  fuse::Plan plan_of_part(const GraphNodeInfo& fused, const std::set<std::string>& on_host, bool are_channels_last);

 private:
  struct Ends {
    std::vector<int> inputs, outputs;
  };
  Ends ends_of(const GraphNodeInfo& fused);
  friend std::vector<Group> find_groups(const OrtGraph*, const std::vector<const OrtNode*>&, const std::string&,
                                        const ops::Settings&, bool);
  void add(const OrtNode* node, const ops::Settings& settings);
  int number(const OrtValueInfo* value);
  void sort();

  fuse::Graph graph_;
  std::deque<GraphNodeInfo> infos_;  // of the nodes
  std::unordered_map<std::string, int> numbers_;
  std::unordered_map<std::string, int64_t> dimensions_;  // by name: the number that stands for it
};

}  // namespace encore::plugin
