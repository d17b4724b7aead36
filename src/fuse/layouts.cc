#include "fuse/layouts.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "fuse/links.h"
#include "fuse/passes.h"
#include "fuse/regions.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

using ops::ViewStep;

ViewStep turn_to(std::span<const int64_t> order) { return {ViewStep::transpose, {order.begin(), order.end()}}; }

// Those that may have their channels last, in sets that are joined by pictures.
class Search {
 public:
  explicit Search(const Match& match) : match_(match), links_(match), set_of_(size_t(match.size())) {
    std::iota(set_of_.begin(), set_of_.end(), 0);
    for (int s = 0; s < match.size(); ++s)
      if (match.is_there(s))
        if (auto made = with_channels_last(match.plan().values, match.step(s).node, match.step(s).inputs))
          turned_.emplace(s, std::move(*made));
    for (const auto& [s, turned] : turned_) {
      for (const int v : match.step(s).outputs) join_readers(v, s);
      for (size_t i = 0; i < turned.inputs.size(); ++i)
        if (turned.inputs[i]) join_readers(match.step(s).inputs[i], s);
    }
  }

  Turned run() {
    std::map<int, std::vector<int>> sets;
    for (const auto& [s, turned] : turned_) sets[set(s)].push_back(s);
    Turned chosen;
    for (const auto& [first, steps] : sets)
      if (pays(steps))
        for (const int s : steps) chosen.emplace(s, std::move(turned_.at(s)));
    return chosen;
  }

 private:
  int set(int s) {
    while (set_of_[size_t(s)] != s) s = set_of_[size_t(s)] = set_of_[size_t(set_of_[size_t(s)])];
    return s;
  }
  void join_readers(int v, int s) {
    if (v < 0) return;
    for (const int reader : match_.readers(v))
      if (reads_turned(reader, v)) set_of_[size_t(set(reader))] = set(s);
  }
  bool reads_turned(int s, int v) const {
    const auto found = turned_.find(s);
    if (found == turned_.end()) return false;
    for (size_t i = 0; i < found->second.inputs.size(); ++i)
      if (found->second.inputs[i] && match_.step(s).inputs[i] == v) return true;
    return false;
  }

  // What turning costs at the ends is to be less than what convolutions of the other layout do inside, twice each.
  bool pays(const std::vector<int>& steps) const {
    int dense = 0, depthwise = 0;
    for (const int s : steps) switch (convolution_kind(match_.node(s))) {
        case Convolution::dense: ++dense; break;
        case Convolution::without_tensor_cores: return false;
        case Convolution::grouped: ++depthwise; break;
        case Convolution::none: break;
      }
    if (dense + depthwise == 0) return false;
    const int copies = copies_at_ends(steps);
    return dense > 0 ? copies <= 2 * dense : copies < 0;
  }

  // Those that are made, less those that go.
  int copies_at_ends(const std::vector<int>& steps) const {
    const auto is_inside = [&](int s) { return std::ranges::binary_search(steps, s); };
    std::map<int, size_t> read;  // and what rank they have
    int copies = 0;
    for (const int s : steps) {
      const auto& turned = turned_.at(s);
      for (size_t i = 0; i < turned.inputs.size(); ++i)
        if (turned.inputs[i] && !is_inside(match_.producer(match_.step(s).inputs[i])))
          read.emplace(match_.step(s).inputs[i], turned.rank);
      for (const int v : match_.step(s).outputs)
        if (v >= 0) copies += copies_of_leaving(v, is_inside);
    }
    for (const auto& [v, rank] : read) {
      const bool is_kept = match_.value(v).is_output ||
                           !std::ranges::all_of(match_.readers(v), [&, v = v](int s) { return reads_turned(s, v); });
      copies -= ViewChain(match_, v, turn_to(to_channels_last(rank)), is_kept).saved();
    }
    return copies;
  }
  int copies_of_leaving(int v, const auto& is_inside) const {
    bool is_read_as_it_was = match_.value(v).is_output;
    int more = 0, fewer = 0;
    for (const int s : match_.readers(v)) {
      if (is_inside(s)) continue;
      const auto change = change_below(v, s);
      if (!change)
        is_read_as_it_was = true;
      else
        (*change < 0 ? fewer : more) += *change;
    }
    if (!is_read_as_it_was) return more + fewer;
    return fewer + (is_single(match_.value(v)) ? 0 : 1);
  }
  // What a reader and those behind it, which only move elements, copy more often if the value is turned before; nothing
  // if it is none of these.
  std::optional<int> change_below(int v, int reader) const {
    int end = -1;
    for (int s = reader, from = v; s >= 0 && match_.is_there(s); s = match_.only_reader(from)) {
      if (match_.step(s).outputs.size() != 1) break;
      const auto link = links_.to(match_.step(s).outputs[0]);
      if (!link || !link->view || match_.step(s).inputs[0] != from) break;
      from = end = match_.step(s).outputs[0];
    }
    const Symbols& symbols = *match_.plan().symbols;
    std::vector<ViewStep> steps;
    int before = 0;
    if (end < 0) return std::nullopt;
    for (const Link& link : links_.above(end)) {
      const auto& dims = match_.value(link.from).dims;
      const auto own = dims ? copies(symbols, *dims, {*link.view}) : std::nullopt;
      if (!own) return std::nullopt;
      before += *own;
      steps.insert(steps.begin(), *link.view);
      if (link.from != v) continue;
      steps.insert(steps.begin(), turn_to(to_channels_first(dims->size())));
      const auto after = copies(symbols, permuted(*dims, to_channels_last(dims->size())), steps);
      return after ? std::optional(*after - before) : std::nullopt;
    }
    return std::nullopt;
  }

  const Match& match_;
  const Links links_;
  Turned turned_;
  std::vector<int> set_of_;
};

bool has(const Match& match, auto is) {
  return std::ranges::any_of(match.plan().steps, [&](const Step& step) { return step.node && is(*step.node); });
}
bool is_turned_already(const Match& match) {
  return has(match, [](const NodeInfo& node) { return node.domain() == ops::kChannelsLast; });
}

}  // namespace

void turn_pictures(Match& match) {
  if (has(match, is_convolution) && !is_turned_already(match)) turn(match, Search(match).run());
}

void turn_all_pictures(Match& match) {
  if (is_turned_already(match)) return;
  Turned turned;
  for (int s = 0; s < match.size(); ++s) {
    auto made = with_channels_last(match.plan().values, match.step(s).node, match.step(s).inputs);
    if (!made) fail(Code::internal, ops::label_of(match.node(s)), " cannot be turned");
    turned.emplace(s, std::move(*made));
  }
  turn(match, std::move(turned));
}

}  // namespace encore::fuse
