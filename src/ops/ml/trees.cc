#include "ops/ml/trees.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <tuple>

namespace encore::ops {
namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

std::vector<int64_t> ints(const NodeInfo& node, const std::string& name) {
  return node.find_ints(name.c_str()).value_or(std::vector<int64_t>{});
}

Branch named_branch(const std::string& name) {
  const std::pair<const char*, Branch> known[] = {
      {"BRANCH_LEQ", Branch::leq}, {"BRANCH_LT", Branch::lt},   {"BRANCH_GTE", Branch::gte}, {"BRANCH_GT", Branch::gt},
      {"BRANCH_EQ", Branch::eq},   {"BRANCH_NEQ", Branch::neq}, {"LEAF", Branch::leaf}};
  for (const auto& [word, branch] : known)
    if (name == word) return branch;
  fail(Code::not_supported, "nodes_modes holds '", name, "'");
}

void same_length(size_t length, size_t wanted, const char* name) {
  require(length == wanted, name, " has ", length, " entries; ", wanted, " are wanted");
}

int32_t feature_of(int64_t feature) {
  require(feature >= 0 && feature < kMost, "a node asks for feature ", feature);
  return int32_t(feature);
}

}  // namespace

std::vector<double> tensor_numbers(const NodeInfo& node, const char* name) {
  const Tensor* const tensor = node.find_tensor(name);
  if (!tensor) return {};
  std::vector<double> numbers;
  for (int64_t i = 0; i < tensor->count(); ++i) {
    switch (tensor->type) {
      case Type::f32: numbers.push_back(double(tensor->as<const float>()[i])); break;
      case Type::f64: numbers.push_back(tensor->as<const double>()[i]); break;
      case Type::u8: numbers.push_back(double(tensor->as<const uint8_t>()[i])); break;
      default: fail(Code::not_supported, name, " is of type ", device::name(tensor->type));
    }
  }
  return numbers;
}

std::vector<double> tree_numbers(const NodeInfo& node, const std::string& name) {
  if (const auto floats = node.find_floats(name.c_str()); floats && !floats->empty())
    return {floats->begin(), floats->end()};
  return tensor_numbers(node, (name + "_as_tensor").c_str());
}

Trees Trees::of_lists(const NodeInfo& node, const char* what, int64_t targets) {
  Trees trees;
  trees.targets = targets;
  require(targets > 0 && targets < kMost, "there are ", targets, " targets");
  const auto ids = ints(node, "nodes_nodeids"), tree_ids = ints(node, "nodes_treeids"),
             yes = ints(node, "nodes_truenodeids"), no = ints(node, "nodes_falsenodeids"),
             features = ints(node, "nodes_featureids"), missing = ints(node, "nodes_missing_value_tracks_true");
  const std::vector<std::string> modes = node.get_strings("nodes_modes", {});
  trees.thresholds = tree_numbers(node, "nodes_values");
  const size_t count = ids.size();
  require(count > 0 && int64_t(count) < kMost, "there are ", count, " nodes");
  same_length(tree_ids.size(), count, "nodes_treeids");
  same_length(yes.size(), count, "nodes_truenodeids");
  same_length(no.size(), count, "nodes_falsenodeids");
  same_length(features.size(), count, "nodes_featureids");
  same_length(modes.size(), count, "nodes_modes");
  same_length(trees.thresholds.size(), count, "nodes_values");
  require(missing.size() <= count, "nodes_missing_value_tracks_true has ", missing.size(), " entries for ", count,
          " nodes");

  std::map<std::pair<int64_t, int64_t>, int32_t> places;  // of tree and node
  for (size_t i = 0; i < count; ++i)
    require(places.emplace(std::pair(tree_ids[i], ids[i]), int32_t(i)).second, "node ", ids[i], " of tree ",
            tree_ids[i], " is there twice");
  const auto place = [&](int64_t tree, int64_t id, const char* of) {
    const auto found = places.find({tree, id});
    require(found != places.end(), of, " names node ", id, " of tree ", tree, ", which is not there");
    return found->second;
  };
  for (size_t i = 0; i < count; ++i) {
    TreeNode& made = trees.nodes.emplace_back();
    made.branch = named_branch(modes[i]);
    made.missing_is_yes = i < missing.size() && missing[i] == 1;
    if (i == 0 || tree_ids[i] != tree_ids[i - 1]) trees.roots.push_back(int32_t(i));
    if (made.branch == Branch::leaf) continue;
    made.feature = feature_of(features[i]);
    made.first = place(tree_ids[i], yes[i], "nodes_truenodeids");
    made.second = place(tree_ids[i], no[i], "nodes_falsenodeids");
  }

  const std::string of = what;
  const auto weight_ids = ints(node, of + "_nodeids"), weight_trees = ints(node, of + "_treeids"),
             weight_targets = ints(node, of + "_ids");
  const std::vector<double> values = tree_numbers(node, of + "_weights");
  same_length(weight_ids.size(), values.size(), "the weights' nodeids");
  same_length(weight_trees.size(), values.size(), "the weights' treeids");
  same_length(weight_targets.size(), values.size(), "the weights' ids");
  require(int64_t(values.size()) < kMost, "there are ", values.size(), " weights");
  std::vector<std::tuple<int32_t, int32_t, size_t>> order;  // leaf, target, and which weight
  for (size_t i = 0; i < values.size(); ++i) {
    require(weight_targets[i] >= 0 && weight_targets[i] < targets, "a weight is of target ", weight_targets[i], "; ",
            targets, " are there");
    const int32_t leaf = place(weight_trees[i], weight_ids[i], "a weight");
    if (trees.nodes[size_t(leaf)].branch == Branch::leaf)  // old converters' weights of others mean nothing
      order.emplace_back(leaf, int32_t(weight_targets[i]), i);
  }
  std::sort(order.begin(), order.end());
  trees.no_negative = std::ranges::all_of(values, [](double value) { return !(value < 0); });
  trees.one_target = !values.empty() &&
                     std::ranges::all_of(weight_targets, [&](int64_t target) { return target == weight_targets[0]; });
  for (const auto& [leaf, target, which] : order) {
    TreeNode& of_leaf = trees.nodes[size_t(leaf)];
    if (of_leaf.second++ == 0) of_leaf.first = int32_t(trees.weights.size());
    trees.weights.push_back({target, values[which]});
  }
  for (const TreeNode& made : trees.nodes)
    require(made.branch != Branch::leaf || made.second > 0, "a leaf has no weight");
  trees.check();
  return trees;
}

Trees Trees::of_ensemble(const NodeInfo& node) {
  Trees trees;
  trees.targets = node.get_int("n_targets", 1);
  require(trees.targets > 0 && trees.targets < kMost, "n_targets is ", trees.targets);
  const auto yes = ints(node, "nodes_truenodeids"), no = ints(node, "nodes_falsenodeids"),
             yes_leaf = ints(node, "nodes_trueleafs"), no_leaf = ints(node, "nodes_falseleafs"),
             features = ints(node, "nodes_featureids"), missing = ints(node, "nodes_missing_value_tracks_true"),
             roots = ints(node, "tree_roots"), leaf_targets = ints(node, "leaf_targetids");
  const std::vector<double> modes = tensor_numbers(node, "nodes_modes"), weights = tensor_numbers(node, "leaf_weights"),
                            members = tensor_numbers(node, "membership_values");
  trees.thresholds = tensor_numbers(node, "nodes_splits");
  const size_t count = features.size();
  const auto whole = int64_t(count), leaves = int64_t(weights.size());
  require(count > 0 && whole + leaves < kMost, "there are ", count, " nodes and ", leaves, " leaves");
  same_length(yes.size(), count, "nodes_truenodeids");
  same_length(no.size(), count, "nodes_falsenodeids");
  same_length(yes_leaf.size(), count, "nodes_trueleafs");
  same_length(no_leaf.size(), count, "nodes_falseleafs");
  same_length(modes.size(), count, "nodes_modes");
  same_length(trees.thresholds.size(), count, "nodes_splits");
  same_length(leaf_targets.size(), weights.size(), "leaf_targetids");
  if (!missing.empty()) same_length(missing.size(), count, "nodes_missing_value_tracks_true");

  // Leaves come behind the nodes.
  const auto child = [&](int64_t id, int64_t is_leaf) {
    require(id >= 0 && id < (is_leaf ? leaves : whole), "a node names ", is_leaf ? "leaf " : "node ", id,
            ", which is not there");
    return int32_t(is_leaf ? whole + id : id);
  };
  size_t member = 0;
  for (size_t i = 0; i < count; ++i) {
    TreeNode& made = trees.nodes.emplace_back();
    require(modes[i] >= 0 && modes[i] <= double(Branch::member), "nodes_modes holds ", modes[i]);
    made.branch = Branch(uint8_t(modes[i]));
    made.feature = feature_of(features[i]);
    made.missing_is_yes = !missing.empty() && missing[i] != 0;
    made.first = child(yes[i], yes_leaf[i]);
    made.second = child(no[i], no_leaf[i]);
    if (made.branch != Branch::member) continue;
    made.member = int32_t(trees.members.size());
    for (; member < members.size() && !std::isnan(members[member]); ++member) trees.members.push_back(members[member]);
    ++member;  // NaN ends a node's
    made.members = int32_t(trees.members.size()) - made.member;
    require(made.members > 0, "node ", i, " asks for members of nothing");
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    require(leaf_targets[i] >= 0 && leaf_targets[i] < trees.targets, "leaf ", i, " is of target ", leaf_targets[i],
            "; ", trees.targets, " are there");
    TreeNode& leaf = trees.nodes.emplace_back();
    leaf.first = int32_t(i);
    leaf.second = 1;
    trees.weights.push_back({int32_t(leaf_targets[i]), weights[i]});
    trees.thresholds.push_back(0);
  }
  for (const int64_t root : roots) {
    require(root >= 0 && root < whole, "a tree's root is node ", root, ", which is not there");
    // By which some mean a tree of a leaf alone, though not all the same leaf.
    require(yes[size_t(root)] != no[size_t(root)] || yes_leaf[size_t(root)] != no_leaf[size_t(root)],
            "the children of root ", root, " are the same");
    trees.roots.push_back(int32_t(root));
  }
  require(!trees.roots.empty(), "there is no tree");
  trees.check();
  return trees;
}

// Every way ends at a leaf: none comes back to a node that it is still below.
void Trees::check() {
  enum : uint8_t { unseen, open, done };
  std::vector<uint8_t> state(nodes.size(), unseen);
  std::vector<int32_t> path;
  for (const int32_t root : roots) {
    path.push_back(root);
    while (!path.empty()) {
      const int32_t at = path.back();
      const TreeNode& node = nodes[size_t(at)];
      if (node.branch == Branch::leaf || state[size_t(at)] != unseen) {
        state[size_t(at)] = done;
        path.pop_back();
        continue;
      }
      state[size_t(at)] = open;
      for (const int32_t child : {node.first, node.second}) {
        require(state[size_t(child)] != open, "the nodes of a tree lead in a circle");
        if (state[size_t(child)] == unseen) path.push_back(child);
      }
    }
  }
  for (const TreeNode& node : nodes)
    if (node.branch != Branch::leaf) features = std::max(features, int64_t(node.feature) + 1);
}

}  // namespace encore::ops
