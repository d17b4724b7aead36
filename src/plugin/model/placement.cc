#include "plugin/model/placement.h"

#include <algorithm>
#include <functional>
#include <span>

#include "fuse/convex.h"

namespace encore::plugin {
namespace {

struct Use {
  int node;
  bool on_host;  // in a slot that reads host memory, if the node is claimed
};
struct Links {
  std::vector<int> producer;  // by value; -1: a constant or an input
  std::vector<std::vector<Use>> uses;
  std::vector<std::vector<int>> inside;  // nodes with graphs that read it
};

Links link(const PlacementGraph& graph) {
  Links links{std::vector<int>(graph.from_outside.size(), -1), std::vector<std::vector<Use>>(graph.from_outside.size()),
              std::vector<std::vector<int>>(graph.from_outside.size())};
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const PlacementNode& node = graph.nodes[n];
    for (int value : node.outputs)
      if (value >= 0) links.producer[size_t(value)] = int(n);
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.inputs[i] >= 0) links.uses[size_t(node.inputs[i])].push_back({int(n), bool(node.host_inputs[i])});
    for (int value : node.read_inside) links.inside[size_t(value)].push_back(int(n));
  }
  return links;
}

fuse::Makers makers_of(const PlacementGraph& graph, const Links& links) {
  fuse::Makers makers(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (const auto* values : {&graph.nodes[n].inputs, &graph.nodes[n].read_inside})
      for (int value : *values)
        if (value >= 0 && links.producer[size_t(value)] >= 0) makers[n].push_back(links.producer[size_t(value)]);
  return makers;
}

// What is fetched from a part is there once that is over.
fuse::Cuts cuts_of(const PlacementGraph& graph, const Links& links) {
  fuse::Cuts cuts;
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (int value : graph.nodes[n].fetched) {
      for (const Use& use : links.uses[size_t(value)]) cuts.emplace(int(n), use.node);
      for (int reader : links.inside[size_t(value)]) cuts.emplace(int(n), reader);
    }
  return cuts;
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

// Whether the node reads on the host what is not there when it is a region of its own.
bool lacks_on_host(const PlacementGraph& graph, const Links& links, const PlacementNode& node) {
  if (!node.host_reads.empty()) return true;
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (node.inputs[i] >= 0 && node.host_inputs[i] &&
        (links.producer[size_t(node.inputs[i])] >= 0 || graph.from_outside[size_t(node.inputs[i])]))
      return true;
  return false;
}

// Whether the node can be a region of its own.
bool can_be_alone(const PlacementGraph& graph, const Links& links, const PlacementNode& node) {
  return node.claimable && !lacks_on_host(graph, links, node) && !std::ranges::count(node.host_outputs, true);
}

// Whether it reads large constants that others have, or may have.
bool shares_constants(const PlacementGraph& graph, const Links& links, int n, const std::vector<int>& region_of) {
  const PlacementNode& node = graph.nodes[size_t(n)];
  const auto is_shared = [&](size_t value) {
    return graph.large_constants[value] && (!graph.is_alone || std::ranges::any_of(links.uses[value], [&](Use use) {
             return region_of[size_t(use.node)] >= 0;
           }));
  };
  return std::ranges::any_of(node.inputs, [&](int value) { return value >= 0 && is_shared(size_t(value)); });
}

// What the graph computes on the host with numbers from graphs around, if these have them there, and what this needs.
std::vector<bool> host_part_from_around(const PlacementGraph& graph, const Links& links,
                                        const std::vector<int>& order) {
  PlacementGraph open = graph;
  const auto may_be_there = [&](size_t value) { return graph.from_around[value] || graph.on_host[value]; };
  for (size_t value = 0; value < open.from_outside.size(); ++value)
    if (may_be_there(value)) open.from_outside[value] = false;
  std::vector<int> whole;
  for (PlacementNode& node : open.nodes) {
    node.is_small = false;
    whole.push_back(node.may_join ? 0 : -1);
  }
  const HostPart part = host_part(open, whole);
  std::vector<bool> found(graph.nodes.size());
  const auto comes_from_there = [&](int value) {
    const int made = value < 0 ? -1 : links.producer[size_t(value)];
    return value >= 0 && (made < 0 ? may_be_there(size_t(value)) : bool(found[size_t(made)]));
  };
  for (int n : order)
    found[size_t(n)] = part.nodes[size_t(n)] && std::ranges::any_of(graph.nodes[size_t(n)].inputs, comes_from_there);
  for (auto n = order.rbegin(); n != order.rend(); ++n)
    for (int value : found[size_t(*n)] ? graph.nodes[size_t(*n)].inputs : std::vector<int>())
      if (const int made = value < 0 ? -1 : links.producer[size_t(value)]; made >= 0) found[size_t(made)] = true;
  return found;
}

}  // namespace

std::vector<bool> flags(size_t count, const std::vector<int>& listed) {
  std::vector<bool> flags(count);
  for (int i : listed)
    if (size_t(i) < count) flags[size_t(i)] = true;
  return flags;
}

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

HostPart host_part(const PlacementGraph& graph, const std::vector<int>& part_of) {
  const Links links = link(graph);
  const std::vector<int> order = fuse::running_order(makers_of(graph, links));
  HostPart part{std::vector<bool>(graph.nodes.size()), {}};
  // Whether the reader has the value on the host if the nodes before that are `able` compute there.
  const auto has = [&](int reader, int value, const std::vector<bool>& able) {
    if (value < 0) return true;
    const int made = links.producer[size_t(value)];
    if (made < 0) return !graph.from_outside[size_t(value)];
    if (part_of[size_t(made)] != part_of[size_t(reader)]) return false;
    return able[size_t(made)] || leaves_on_host(graph.nodes[size_t(made)], value);
  };
  const auto has_all = [&](int n, const std::vector<bool>& able) {
    return std::ranges::all_of(graph.nodes[size_t(n)].inputs, [&](int value) { return has(n, value, able); });
  };
  std::vector<bool> able(graph.nodes.size());
  for (int n : order) {
    const PlacementNode& node = graph.nodes[size_t(n)];
    if (part_of[size_t(n)] < 0) continue;
    able[size_t(n)] = node.is_host_op && has_all(n, able);
    std::vector<int> lacking;
    for (size_t i = 0; node.claimable && i < node.inputs.size(); ++i)
      if (node.host_inputs[i] && !has(n, node.inputs[i], able)) lacking.push_back(node.inputs[i]);
    for (int value : node.host_reads)
      if (!has(n, value, able)) lacking.push_back(value);
    if (!lacking.empty() || (!node.claimable && !able[size_t(n)])) part.lacking.push_back({n, std::move(lacking)});
  }
  if (!part.lacking.empty()) return part;
  const auto want = [&](int value) {
    const int made = value < 0 ? -1 : links.producer[size_t(value)];
    if (made >= 0 && !leaves_on_host(graph.nodes[size_t(made)], value)) part.nodes[size_t(made)] = true;
  };
  for (auto n = order.rbegin(); n != order.rend(); ++n) {
    if (part_of[size_t(*n)] < 0) continue;
    const PlacementNode& node = graph.nodes[size_t(*n)];
    if (!node.claimable) part.nodes[size_t(*n)] = true;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (part.nodes[size_t(*n)] || node.host_inputs[i]) want(node.inputs[i]);
    std::ranges::for_each(node.host_reads, want);
  }
  // What constants alone make is computed once, before the first run.
  const auto is_made = [&](int value) { return value >= 0 && links.producer[size_t(value)] >= 0; };
  for (int n : order) {
    const PlacementNode& node = graph.nodes[size_t(n)];
    if (part_of[size_t(n)] >= 0 && node.is_host_op && node.is_small && std::ranges::any_of(node.inputs, is_made) &&
        has_all(n, part.nodes))
      part.nodes[size_t(n)] = true;
  }
  return part;
}

HostCarried carried_on_host(const PlacementGraph& graph, const std::vector<Carried>& carried) {
  const Links links = link(graph);
  const std::vector<int> order = fuse::running_order(makers_of(graph, links));
  HostCarried found{std::vector<bool>(carried.size(), true), std::vector<bool>(graph.nodes.size())};
  std::vector<bool> able(graph.nodes.size());
  for (bool changed = true; changed;) {
    std::vector<bool> is_there(graph.from_outside.size());  // by value
    for (size_t value = 0; value < is_there.size(); ++value)
      is_there[value] = links.producer[value] < 0 && !graph.from_outside[value];
    for (size_t c = 0; c < carried.size(); ++c) is_there[size_t(carried[c].value)] = found.values[c];
    for (int n : order) {
      const PlacementNode& node = graph.nodes[size_t(n)];
      able[size_t(n)] = node.is_host_op && std::ranges::all_of(node.inputs, [&](int value) {
                          return value < 0 || is_there[size_t(value)];
                        });
      for (int value : node.outputs)
        if (value >= 0) is_there[size_t(value)] = able[size_t(n)] || leaves_on_host(node, value);
    }
    changed = false;
    for (size_t c = 0; c < carried.size(); ++c)
      if (found.values[c] && !is_there[size_t(carried[c].next)]) found.values[c] = false, changed = true;
  }
  std::vector<bool> wanted(graph.from_outside.size());
  const auto want = [&](int value) {
    if (value >= 0) wanted[size_t(value)] = true;
  };
  for (const PlacementNode& node : graph.nodes) {
    for (size_t i = 0; node.claimable && i < node.inputs.size(); ++i)
      if (node.host_inputs[i]) want(node.inputs[i]);
    std::ranges::for_each(node.host_reads, want);
  }
  for (bool changed = true; changed;) {
    for (auto n = order.rbegin(); n != order.rend(); ++n) {
      const PlacementNode& node = graph.nodes[size_t(*n)];
      const auto is_wanted = [&](int value) {
        return value >= 0 && wanted[size_t(value)] && !leaves_on_host(node, value);
      };
      if (!able[size_t(*n)] || std::ranges::none_of(node.outputs, is_wanted)) continue;
      found.nodes[size_t(*n)] = true;
      std::ranges::for_each(node.inputs, want);
    }
    changed = false;
    for (size_t c = 0; c < carried.size(); ++c) {
      if (!found.values[c] || !wanted[size_t(carried[c].value)] || wanted[size_t(carried[c].next)]) continue;
      want(carried[c].next);
      changed = true;
    }
  }
  for (size_t c = 0; c < carried.size(); ++c) found.values[c] = found.values[c] && wanted[size_t(carried[c].value)];
  return found;
}

void let_data_decide(PlacementGraph& graph, const std::vector<bool>& on_cpu) {
  if (std::ranges::none_of(graph.nodes, [](const PlacementNode& node) { return bool(node.do_without); })) return;
  const Links links = link(graph);
  const std::vector<bool> from_outside = graph.from_outside;
  for (size_t value = 0; value < from_outside.size(); ++value)
    if (graph.from_around[value] || graph.on_host[value]) graph.from_outside[value] = false;
  const auto is_data = [&](int value) {
    const int made = links.producer[size_t(value)];
    return made < 0 || (graph.nodes[size_t(made)].claimable && !on_cpu[size_t(made)]);
  };
  std::vector<int> whole;
  for (const PlacementNode& node : graph.nodes) whole.push_back(node.may_join ? 0 : -1);
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [n, values] : host_part(graph, whole).lacking) {
      PlacementNode& node = graph.nodes[size_t(n)];
      if (!node.do_without || values.empty() || !std::ranges::all_of(values, is_data)) continue;
      auto before = node.outside ? node.outside : std::make_shared<const PlacementNode>(node);
      if (!node.do_without(node, values)) continue;
      node.outside = std::move(before);
      changed = true;
    }
  }
  graph.from_outside = from_outside;
}

std::vector<int> regions(const PlacementGraph& given, const std::vector<bool>& on_cpu, std::map<size_t, int>* lost) {
  PlacementGraph graph = given;
  Links links = link(graph);
  const fuse::Makers makers = makers_of(graph, links);
  const std::vector<int> order = fuse::running_order(makers);
  std::vector<int> region_of;
  const auto is_read_outside = [&](int n, int value) {
    const auto is_elsewhere = [&](int reader) { return region_of[size_t(reader)] != region_of[size_t(n)]; };
    return graph.wanted_on_host[size_t(value)] || std::ranges::any_of(links.inside[size_t(value)], is_elsewhere) ||
           std::ranges::any_of(links.uses[size_t(value)], [&](const Use& use) {
             const int reader = region_of[size_t(use.node)];
             if (reader == region_of[size_t(n)]) return false;
             return use.on_host || !graph.nodes[size_t(use.node)].claimable || (reader < 0 && on_cpu[size_t(use.node)]);
           });
  };
  const auto stays_on_host = [&](int n) {
    const PlacementNode& node = graph.nodes[size_t(n)];
    for (size_t i = 0; i < node.outputs.size(); ++i)
      if (node.outputs[i] >= 0 && (on_cpu[size_t(n)] || node.host_outputs[i]) && is_read_outside(n, node.outputs[i]))
        return true;
    return false;
  };
  std::vector<bool> fits;
  for (const PlacementNode& node : graph.nodes) fits.push_back(node.may_join);
  if (std::ranges::count(graph.from_around, true)) {
    const std::vector<bool> from_around = host_part_from_around(graph, links, order);
    for (size_t n = 0; n < fits.size(); ++n)
      if (from_around[n]) fits[n] = false;
  }
  // What is computed on the host with what is only there stays, since a fused node reads all of it on the device.
  std::vector<bool> only_on_host = graph.on_host;  // by value
  for (int n : order) {
    const PlacementNode& node = graph.nodes[size_t(n)];
    const auto stays = [&](int value) { return value >= 0 && only_on_host[size_t(value)]; };
    if (!on_cpu[size_t(n)] || std::ranges::none_of(node.inputs, stays)) continue;
    fits[size_t(n)] = false;
    for (int value : node.outputs)
      if (value >= 0) only_on_host[size_t(value)] = true;
  }
  std::vector<int> in_small_regions;
  int count = 0;
  for (bool changed = true; changed;) {
    region_of.assign(graph.nodes.size(), -1);
    count = 0;
    auto sets = fuse::convex_sets(makers, fits, fuse::When::late, cuts_of(graph, links));
    for (const std::vector<int>& set : sets) {
      for (int n : set) region_of[size_t(n)] = count;
      ++count;
    }
    changed = false;
    const auto leave = [&](int n) {
      region_of[size_t(n)] = -1;
      fits[size_t(n)] = false;
      changed = true;
      if (const auto outside = graph.nodes[size_t(n)].outside) {
        graph.nodes[size_t(n)] = *outside;
        links = link(graph);
      }
    };
    for (const HostPart::Lacking& lacking : host_part(graph, region_of).lacking) leave(lacking.node);
    for (int n : order) {
      const int value = region_of[size_t(n)] < 0 ? -1 : lost_inside(graph, size_t(n), region_of);
      if (value < 0) continue;
      if (lost) lost->emplace(n, value);
      leave(n);
    }
    for (auto n = order.rbegin(); n != order.rend(); ++n)
      if (region_of[size_t(*n)] >= 0 && stays_on_host(*n)) leave(*n);
    if (changed || sets.size() <= kMostRegions) continue;
    std::ranges::stable_sort(sets, std::ranges::greater(), &std::vector<int>::size);
    for (const std::vector<int>& set : std::span(sets).subspan(kMostRegions)) {
      std::ranges::for_each(set, leave);
      in_small_regions.insert(in_small_regions.end(), set.begin(), set.end());
    }
  }
  for (int n : in_small_regions) region_of[size_t(n)] = kInSmallRegion;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const PlacementNode& node = graph.nodes[n];
    const bool is_by_data = node.has_bodies && node.outside && !lacks_on_host(graph, links, node);
    if (region_of[n] >= 0 || !node.may_join || on_cpu[n]) continue;
    const bool is_alone =
        can_be_alone(graph, links, node) && (graph.has_lone_parts || shares_constants(graph, links, int(n), region_of));
    if (!is_by_data && !is_alone) continue;
    region_of[n] = count;
    if (lost_inside(graph, n, region_of) < 0)
      ++count;
    else
      region_of[n] = -1;
  }
  return region_of;
}

int lost_inside(const PlacementGraph& graph, size_t node, const std::vector<int>& part_of) {
  if (graph.hands_on_read_inside) return -1;
  for (int value : graph.nodes[node].read_inside) {
    const auto has = [&](const std::vector<int>& values) { return std::ranges::count(values, value) > 0; };
    bool is_constant = !graph.from_outside[size_t(value)], is_there = false;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const bool is_made = has(graph.nodes[n].outputs);
      is_constant &= !is_made;
      is_there |= part_of[n] == part_of[node] && (is_made || has(graph.nodes[n].inputs));
    }
    if (!is_constant && !is_there) return value;
  }
  return -1;
}

PlacementGraph with_parts(PlacementGraph graph, const std::vector<int>& part_of) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    PlacementNode& node = graph.nodes[n];
    if (part_of[n] < 0) {
      if (const auto outside = node.outside) node = *outside;
      continue;
    }
    node.claimable = true;
    node.shape_like = false;
    node.host_inputs.assign(node.inputs.size(), false);
    node.host_outputs.assign(node.outputs.size(), false);
    node.host_reads.clear();
  }
  return graph;
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
