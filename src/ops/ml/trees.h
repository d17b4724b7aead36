// Ensembles of decision trees as ai.onnx.ml writes them, checked and brought to one form.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/op.h"

namespace encore::ops {

enum class Branch : uint8_t { leq, lt, gte, gt, eq, neq, member, leaf };  // as TreeEnsemble numbers them

// One node. A leaf has `second` weights from `first` on, ordered by their targets; another node has its two children,
// and one that asks for members `members` of them from `member` on.
struct TreeNode {
  int32_t feature = 0;
  int32_t first = 0, second = 0;  // the child if the question is answered with yes, and if not
  int32_t member = 0, members = 0;
  Branch branch = Branch::leaf;
  bool missing_is_yes = false;  // NaN
};

struct TreeWeight {
  int32_t target;
  double value;
};

struct Trees {
  std::vector<TreeNode> nodes;
  std::vector<double> thresholds;  // of the nodes
  std::vector<double> members;
  std::vector<TreeWeight> weights;
  std::vector<int32_t> roots;
  int64_t targets = 0, features = 0;  // features that rows need at least
  // Of all weights that are given.
  bool one_target = false, no_negative = false;

  // From TreeEnsembleRegressor's and TreeEnsembleClassifier's attributes, whose weights are called after `what`:
  // "target" or "class".
  static Trees of_lists(const NodeInfo& node, const char* what, int64_t targets);
  // From TreeEnsemble's.
  static Trees of_ensemble(const NodeInfo& node);

 private:
  void check();
};

// A list of numbers that is an attribute of floats, or a tensor that is called so with "_as_tensor" behind.
std::vector<double> tree_numbers(const NodeInfo& node, const std::string& name);
std::vector<double> tensor_numbers(const NodeInfo& node, const char* name);

}  // namespace encore::ops
