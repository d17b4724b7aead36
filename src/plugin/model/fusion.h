// onnxruntime's graphs as fusion sees them.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "fuse/groups.h"
#include "fuse/growing.h"
#include "fuse/padded_run.h"
#include "plugin/model/bodies.h"
#include "plugin/model/node_info.h"
#include "plugin/model/scan_axes.h"

namespace encore::plugin {

// Nodes that are to be one.
struct Group {
  std::vector<const OrtNode*> nodes;
  const char* what;  // they are
};

// `claimed` are the nodes that Encore takes, which goes by `ep_name`; shape arithmetic may come along. With
// `are_channels_last` onnxruntime changes the layout, or has done so. `known` is for FusedGraph::plan().
std::vector<Group> find_groups(const OrtGraph* graph, const std::vector<const OrtNode*>& claimed,
                               const std::string& ep_name, const ops::Settings& settings, bool are_channels_last,
                               fuse::KnownDims& known);

// The graph behind one fused node.
class FusedGraph {
 public:
  // With `compiled` nodes with bodies are to run these themselves, having those values on the host.
  FusedGraph(const OrtGraph* graph, const ops::Settings& settings, const Compiled* compiled = nullptr,
             std::set<std::string> on_host = {}, std::map<std::string, const OrtValueInfo*> outer_values = {});
  // What the node is to do, which is one group's; the plan refers to this.
  fuse::Plan plan(const GraphNodeInfo& fused, const fuse::KnownDims& known, const fuse::Watch& watch);
  // The same of a region, or of the whole model, which makes the values that are named on the host.
  fuse::Plan plan_of_part(const GraphNodeInfo& fused, const std::set<std::string>& on_host,
                          const std::vector<fuse::Padding>& paddings, const fuse::Compute& compute,
                          const fuse::Watch& watch);
  // Of the same part: its inputs and outputs that become longer when the dimension is padded.
  fuse::PaddedAxes padded_axes(const GraphNodeInfo& fused, const std::string& dim, int64_t longest);
  // Of nodes with bodies, in a graph of which not all need be a part: why they can't be one if the dimension is padded.
  std::map<const OrtNode*, std::string> refused_bodies(const std::string& dim, int64_t longest);
  // And those that may become longer by themselves.
  std::vector<ops::GrowingDim> growing_dims(const GraphNodeInfo& fused);

 private:
  struct Ends {
    std::vector<int> inputs, outputs;
  };
  Ends ends_of(const GraphNodeInfo& fused);
  friend std::vector<Group> find_groups(const OrtGraph*, const std::vector<const OrtNode*>&, const std::string&,
                                        const ops::Settings&, bool, fuse::KnownDims&);
  void add(const OrtNode* node);
  void add_bodies(const OrtNode* node, fuse::Node& made);
  // What a Loop carries: the values in the order in which its step has them, those first that the host hands on.
  struct Order {
    std::vector<size_t> carried;
    size_t on_host = 0;
  };
  void arrange(fuse::Node& loop, const Order& order, size_t carried);
  void turn(fuse::Node& scan, const ScanAxes& axes);
  int turned(int value, const std::vector<int64_t>& order);
  void add_beside(const fuse::Node& node, fuse::Operator op, int input, int output);
  fuse::Plan plan_of_body(const OrtGraph* body, bool is_loop, bool by_data, const Order& order,
                          const std::vector<const OrtValueInfo*>& reads, const std::set<std::string>& host_reads,
                          const std::set<std::string>& made_on_host);
  std::string outer_name(const std::string& name) const;
  bool is_on_host(const std::string& name) const;
  int see(const OrtValueInfo* value, ops::Type type, const std::optional<std::vector<int64_t>>& dims);
  int see(const OrtValueInfo* value);
  int number(const OrtValueInfo* value);
  int64_t symbol(const std::string& name);
  void sort();
  void read_constants();
  void read_constant(int at, const OrtValueInfo* value);
  void read_constants_of(const fuse::Node& node);

  const ops::Settings settings_;
  const Compiled* const compiled_;
  std::set<std::string> on_host_;                            // values by name
  std::map<std::string, const OrtValueInfo*> outer_values_;  // what inputs of this body are
  fuse::Graph graph_;
  std::deque<GraphNodeInfo> infos_;  // of the nodes
  std::vector<fuse::Node> beside_;   // what nodes with bodies leave to others
  std::vector<std::unique_ptr<FusedGraph>> bodies_;
  std::deque<ops::Tensor> not_inside_;  // constants that no node inside knows
  std::unordered_map<std::string, int> numbers_;
  std::unordered_map<std::string, int64_t> symbols_;  // by the dimension's name
};

}  // namespace encore::plugin
