#include <algorithm>

#include "fuse/layouts.h"
#include "fuse/links.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

class Turning {
 public:
  Turning(Match& match, Turned turned) : match_(match), turned_(std::move(turned)) {}

  void run() {
    for (const auto& [s, turned] : turned_) find_borders(s, turned);
    for (auto& [s, turned] : turned_) replace(s, turned);
    for (const auto& [v, rank] : read_) enter(v, rank);
    for (const auto& [v, rank] : left_) leave(v, rank);
  }

 private:
  void find_borders(int s, const ChannelsLast& turned) {
    const Step& step = match_.step(s);
    for (size_t i = 0; i < step.inputs.size(); ++i)
      if (turned.inputs[i] && !turned_.contains(match_.producer(step.inputs[i])))
        read_.emplace(step.inputs[i], turned.rank);
    for (const int v : step.outputs)
      if (v >= 0 && (match_.value(v).is_output || is_read_by_others(v))) left_.emplace(v, turned.rank);
  }
  bool is_read_by_others(int v) const {
    return std::ranges::any_of(match_.readers(v), [&](int s) { return !turned_.contains(s); });
  }

  // The same value with its channels last.
  int inner(int v, size_t rank) {
    const auto [known, is_new] = inner_.try_emplace(v, -1);
    if (is_new) {
      Value made = match_.value(v);
      made.is_output = false;
      if (made.dims && made.dims->size() == rank) made.dims = permuted(*made.dims, to_channels_last(rank));
      known->second = match_.add(std::move(made));
    }
    return known->second;
  }

  void replace(int s, ChannelsLast& made) {
    const Step& step = match_.step(s);
    const std::vector<int> inputs = step.inputs;
    Step turned{std::move(made.node), {}, {}};
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (const auto& constant = made.constants[i]) {
        turned.inputs.push_back(match_.add_constant(match_.value(inputs[i]).name, constant));
      } else {
        turned.inputs.push_back(made.inputs[i] ? inner(inputs[i], made.rank) : inputs[i]);
      }
    }
    const std::vector<int> outputs = match_.step(s).outputs;
    for (const int v : outputs) turned.outputs.push_back(v < 0 ? -1 : inner(v, made.rank));
    match_.replace({s}, std::move(turned));
  }

  // At the plan's ends what both layouts have in the same place is not even copied.
  void enter(int v, size_t rank) {
    const bool is_input = std::ranges::find(match_.plan().inputs, v) != match_.plan().inputs.end();
    if (is_input && is_single(match_.value(v)))
      match_.see_as(inner(v, rank), v);
    else
      transpose(v, inner(v, rank), to_channels_last(rank));
  }
  void leave(int v, size_t rank) {
    if (match_.value(v).is_output && is_single(match_.value(v)) && !is_read_by_others(v))
      match_.see_as(inner(v, rank), v);
    else
      transpose(inner(v, rank), v, to_channels_first(rank));
  }

  void transpose(int from, int to, std::span<const int64_t> order) {
    match_.insert(transposition(match_, {order.begin(), order.end()}, match_.value(from).name + "'s layout", from, to));
  }

  Match& match_;
  Turned turned_;
  std::map<int, size_t> read_, left_;  // values of others that these read, and of these that others read: their ranks
  std::map<int, int> inner_;
};

}  // namespace

void turn(Match& match, Turned steps) { Turning(match, std::move(steps)).run(); }

}  // namespace encore::fuse
