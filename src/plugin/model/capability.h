// Which nodes of a graph Encore takes, and why it leaves the others.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "ops/op.h"
#include "plugin/host/api_version.h"

namespace encore::plugin {

struct Compiled;

struct Claim {
  struct Declined {
    std::string node;  // "Loop node 'decode'"
    std::string why;
    const OrtNode* at = nullptr;
    bool only_shapes = false;       // it computes with what is on the host anyway
    bool seldom_elsewhere = false;  // perhaps no other provider has the operator, and onnxruntime does not say why
  };
  std::vector<const OrtNode*> nodes;       // to be claimed
  size_t node_count = 0;                   // of the graph
  std::vector<Declined> declined;          // no kernel, or not for this node
  std::vector<Declined> shape_arithmetic;  // could be claimed, but belongs on the CPU
  std::vector<Declined> control_flow;      // nodes whose bodies onnxruntime runs, wherever they are
  std::vector<std::string> sized_by_data;  // nodes to be claimed that wait, since an output's size depends on data
  std::vector<std::string> ill_formed;     // nodes that onnxruntime runs wrongly without a word, and what to change
  std::vector<std::string> crossings;      // copies between host and device that onnxruntime has to insert
  std::vector<std::vector<const OrtNode*>> parts;  // nodes to be claimed as one each
  std::set<const OrtNode*> in_small_regions;       // nodes that would be parts if there were fewer
  std::set<std::string> on_host;                   // values that these make there, by name
  // Operators of which a node in nodes couldn't be claimed any more if its layout were changed.
  std::set<std::string> fixed_layout;
};

// What is claimed as one node.
enum class Parts {
  none,
  whole,        // the graph, if onnxruntime would have to copy between host and device, and it can be one
  regions,      // the largest ones that can be
  all_regions,  // and nodes that have nothing beside them
};

// With `compiled` nodes with bodies may belong to parts.
Claim examine(const OrtGraph* graph, OrtEpGraphSupportInfo* support, const std::string& ep_name,
              const ops::Settings& settings, Parts parts, const Compiled* compiled);

}  // namespace encore::plugin
