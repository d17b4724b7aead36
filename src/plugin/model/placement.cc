#include "plugin/model/placement.h"

#include <algorithm>

namespace encore::plugin {
namespace {

struct Use {
  int node;
  bool on_host;  // in a slot that reads host memory, if the node is claimed
};
struct Links {
  std::vector<int> producer;  // by value; -1: a constant or an input
  std::vector<std::vector<Use>> uses;
};

Links link(const PlacementGraph& graph) {
  Links links{std::vector<int>(graph.host_friendly.size(), -1),
              std::vector<std::vector<Use>>(graph.host_friendly.size())};
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const PlacementNode& node = graph.nodes[n];
    for (int value : node.outputs)
      if (value >= 0) links.producer[size_t(value)] = int(n);
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.inputs[i] >= 0) links.uses[size_t(node.inputs[i])].push_back({int(n), bool(node.host_inputs[i])});
  }
  return links;
}

bool leaves_on_host(const PlacementNode& maker, int value) {
  for (size_t i = 0; i < maker.outputs.size(); ++i)
    if (maker.outputs[i] == value && maker.host_outputs[i]) return true;
  return false;
}

// Nodes that could run on the host, and the values that are there, if the nodes in `device_only` stay on the device.
struct Reach {
  std::vector<bool> nodes, values;
};
Reach reach(const PlacementGraph& graph, const std::vector<bool>& device_only) {
  Reach reach{std::vector<bool>(graph.nodes.size()), graph.on_host};
  for (const PlacementNode& node : graph.nodes)
    for (size_t i = 0; node.claimable && i < node.outputs.size(); ++i)
      if (node.host_outputs[i] && node.outputs[i] >= 0) reach.values[size_t(node.outputs[i])] = true;
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const PlacementNode& node = graph.nodes[n];
      if (reach.nodes[n] || device_only[n] || !node.shape_like) continue;
      bool reads_host = false, host_only = true;
      for (int value : node.inputs) {
        if (value < 0) continue;
        if (reach.values[size_t(value)])
          reads_host = true;
        else if (!graph.host_friendly[size_t(value)])
          host_only = false;
      }
      if (!reads_host || !host_only) continue;
      reach.nodes[n] = changed = true;
      for (int value : node.outputs)
        if (value >= 0) reach.values[size_t(value)] = true;
    }
  }
  return reach;
}

}  // namespace

std::vector<bool> shape_arithmetic(const PlacementGraph& graph) {
  const Links links = link(graph);
  std::vector<bool> device_only(graph.nodes.size());
  for (;;) {
    const Reach host = reach(graph, device_only);
    // Whether the node can run on the device without a copy of its inputs; collects it and the producers that go with
    // it.
    const auto can_move = [&](int first, std::vector<int>& moving) {
      std::vector<bool> seen(graph.nodes.size());
      const auto go_along = [&](int n) {
        if (!seen[size_t(n)]) moving.push_back(n);
        seen[size_t(n)] = true;
      };
      go_along(first);
      for (size_t next = 0; next < moving.size(); ++next) {
        const PlacementNode& node = graph.nodes[size_t(moving[next])];
        if (!node.claimable) return false;
        for (size_t i = 0; i < node.inputs.size(); ++i) {
          const int value = node.inputs[i];
          if (value < 0 || node.host_inputs[i] || !host.values[size_t(value)]) continue;
          const int producer = links.producer[size_t(value)];
          if (producer < 0 || !host.nodes[size_t(producer)]) return false;
          go_along(producer);
        }
      }
      return true;
    };
    bool moved = false;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      if (!host.nodes[n]) continue;
      bool wanted_on_device = false;
      for (int value : graph.nodes[n].outputs)
        if (value >= 0)
          for (const Use& use : links.uses[size_t(value)])
            wanted_on_device |=
                !host.nodes[size_t(use.node)] && graph.nodes[size_t(use.node)].claimable && !use.on_host;
      std::vector<int> moving;
      if (!wanted_on_device || !can_move(int(n), moving)) continue;
      for (int m : moving) device_only[size_t(m)] = moved = true;
    }
    if (!moved) return host.nodes;
  }
}

std::optional<std::vector<bool>> host_part(const PlacementGraph& graph) {
  const Links links = link(graph);
  std::vector<bool> on_host(graph.nodes.size()), wanted(links.producer.size());
  std::vector<int> pending;  // values wanted on the host
  const auto want = [&](int value) {
    if (value < 0 || wanted[size_t(value)]) return;
    wanted[size_t(value)] = true;
    pending.push_back(value);
  };
  const auto put_on_host = [&](int n) {
    on_host[size_t(n)] = true;
    for (int value : graph.nodes[size_t(n)].inputs) want(value);
    return graph.nodes[size_t(n)].is_host_op;
  };
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const PlacementNode& node = graph.nodes[n];
    if (!node.claimable && !put_on_host(int(n))) return std::nullopt;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.claimable && node.host_inputs[i]) want(node.inputs[i]);
  }
  while (!pending.empty()) {
    const int value = pending.back(), made = links.producer[size_t(value)];
    pending.pop_back();
    if (graph.from_outside[size_t(value)]) return std::nullopt;  // the device has it
    if (made < 0 || on_host[size_t(made)]) continue;
    const PlacementNode& node = graph.nodes[size_t(made)];
    if (!leaves_on_host(node, value) && !put_on_host(made)) return std::nullopt;
  }
  const auto is_there = [&](int value) {
    if (value < 0) return true;
    const int made = links.producer[size_t(value)];
    if (made < 0) return !graph.from_outside[size_t(value)];
    return on_host[size_t(made)] || leaves_on_host(graph.nodes[size_t(made)], value);
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const PlacementNode& node = graph.nodes[n];
      if (on_host[n] || !node.is_host_op || !node.is_small || !std::ranges::all_of(node.inputs, is_there)) continue;
      on_host[n] = changed = true;
    }
  }
  return on_host;
}

std::vector<std::string> crossings(const PlacementGraph& graph, const std::vector<bool>& on_cpu) {
  const Links links = link(graph);
  const auto runs_on_host = [&](int n) { return on_cpu[size_t(n)] || !graph.nodes[size_t(n)].claimable; };
  std::vector<std::string> found;
  for (size_t value = 0; value < links.producer.size(); ++value) {
    const int producer = links.producer[value];
    bool made_on_host = false, known = false;
    if (producer >= 0) {
      const PlacementNode& node = graph.nodes[size_t(producer)];
      known = true;
      made_on_host = runs_on_host(producer) || leaves_on_host(node, int(value));
    }
    for (const Use& use : links.uses[value]) {
      const bool read_on_host = use.on_host || runs_on_host(use.node);
      if (!known) {
        if (!graph.from_outside[value]) break;  // constants are put wherever they are read
        made_on_host = read_on_host;            // an input is put where its first reader is
        known = true;
      }
      if (read_on_host == made_on_host) continue;
      found.push_back((producer >= 0 ? graph.nodes[size_t(producer)].name : "an input of the model") + " -> " +
                      graph.nodes[size_t(use.node)].name);
      break;
    }
  }
  return found;
}

}  // namespace encore::plugin
