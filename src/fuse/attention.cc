#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>

#include "fuse/bounds.h"
#include "fuse/links.h"
#include "fuse/mask_windows.h"
#include "fuse/padded_heads.h"
#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/attention/operators/viewed_attention.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

using ops::ViewStep;

constexpr int64_t kFloat = 1;  // as Cast says it
constexpr int64_t kLargestHead = 256;

struct Attention {
  std::vector<int> steps, inputs;  // the latter are values, as is y
  int y = -1;
  ops::ViewedAttention how;
  int windows = -1;                   // a mask that the one among the inputs is added to
  std::optional<ViewStep> to_y = {};  // what is made is moved so
};

// The last two dimensions change places.
std::vector<int64_t> swap_of(size_t rank) {
  std::vector<int64_t> order(rank);
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[rank - 1], order[rank - 2]);
  return order;
}

class Search {
 public:
  explicit Search(const Match& match) : match_(match), symbols_(match), links_(match) {}

  std::optional<Attention> around(int softmax) {
    if (!is_softmax_of_rows(match_, softmax)) return std::nullopt;
    const Step& at = match_.step(softmax);
    const auto axes = match_.rank(at.inputs[0]);
    if (*axes < 3 || *axes > 5) return std::nullopt;
    Type type = Type::undefined;
    auto core = before(softmax, type);
    if (!core || !complete(at.outputs[0], type, *core)) return std::nullopt;
    const bool is_float = type == Type::f32;
    if (is_float ? match_.plan().is_group : !ops::kHalves.has(type)) return leave("it is not in halves");
    if (is_float && core->zeros && !core->is_masked()) return std::nullopt;
    const int q = match_.step(core->product).inputs[0], k = match_.step(core->product).inputs[1];
    for (int v : {q, k, core->v, core->product_y})
      if (match_.rank(v) != *axes || match_.value(v).type != type) return std::nullopt;
    if (core->mask >= 0 &&
        (match_.value(core->mask).type != type || match_.rank(core->mask).value_or(*axes + 1) > *axes))
      return leave("its mask has another type, or its dimensions are not known");
    if (*axes == 5 &&
        (core->is_turned || !are_windows(q, k, core->v, core->product_y) || !suits_windows(core->mask, q)))
      return leave("its five dimensions are not of windows of known sizes, with masks for images or windows");
    auto made = joined(
        *core, {q, k, core->v},
        {links_.above(q, Links::Factors::taken), links_.above(k, Links::Factors::taken), links_.above(core->v)}, *axes);
    if ((has_good_size(q) && has_good_size(core->v, core->is_turned)) || (made && becomes_good(*made))) return made;
    return leave("there are no fast kernels for heads of this size");
  }

  const char* why() const { return why_; }  // it is left, where that is worth a word

 private:
  // ---- what is around a softmax

  struct Core {
    std::vector<int> steps;
    int product = -1;  // of queries and keys
    double scale = 1;
    int mask = -1, windows = -1, v = -1;  // masks: of all, and of windows
    double least = 0;                     // that these add
    bool sees = false;                    // each row of them leaves a key
    bool zeros = false;                   // in the place of NaN
    int product_y = -1;                   // with values
    bool is_turned = false;               // these, and what they make, have their rows last
    Link same;  // a Reshape of that to the shape it has, and what it computes it with; or none
    bool is_masked() const { return mask >= 0 || windows >= 0; }
  };

  // The product of which a value is a multiple; steps go to the core.
  bool product_behind(int v, Core& core) const {
    for (int made = match_.maker(v); made >= 0 && match_.only_reader(v) >= 0; made = match_.maker(v)) {
      core.steps.push_back(made);
      if (is_onnx(match_.node(made), "MatMul")) {
        core.product = made;
        return true;
      }
      const auto by = match_.scaled(made);
      if (!by) return false;
      core.scale *= by->factor;
      v = by->from;
    }
    return false;
  }

  std::optional<Core> before(int softmax, Type& type) const {
    Core core;
    core.steps.push_back(softmax);
    int scores = match_.step(softmax).inputs[0];
    if (const int cast = match_.maker(scores, "Cast"); cast >= 0 && match_.only_reader(scores) == softmax) {
      if (match_.node(cast).get_int("to", 0) != kFloat) return std::nullopt;
      core.steps.push_back(cast);
      scores = match_.step(cast).inputs[0];
    }
    scores = before_windows(scores, core);
    type = match_.value(scores).type;
    Core plain = core;
    if (product_behind(scores, plain)) return plain;
    const int sum = match_.maker(scores, "Add");
    if (sum < 0 || match_.only_reader(scores) < 0) return std::nullopt;
    core.steps.push_back(sum);
    for (size_t i = 0; i < 2; ++i) {
      Core masked = core;
      masked.mask = match_.step(sum).inputs[1 - i];
      if (!product_behind(match_.step(sum).inputs[i], masked)) continue;
      masked.least += least_of(sum, 1 - i);
      const Tensor* const constant = match_.plan().constant(match_.step(sum), 1 - i);
      masked.sees = core.windows < 0 && constant && each_row_sees(*constant);
      return masked;
    }
    return std::nullopt;
  }

  // Swin sees its batch as images and windows while it adds the windows' mask. What that is added to, or the scores.
  int before_windows(int scores, Core& core) const {
    const int back = match_.maker(scores, "Reshape"),
              sum = back < 0 ? -1 : match_.maker(match_.step(back).inputs[0], "Add");
    if (sum < 0 || match_.only_reader(scores) < 0 || match_.only_reader(match_.step(back).inputs[0]) != back)
      return scores;
    for (size_t i = 0; i < 2; ++i) {
      const int seen = match_.step(sum).inputs[i], mask = match_.step(sum).inputs[1 - i];
      const int apart = match_.maker(seen, "Reshape");
      if (apart < 0 || match_.only_reader(seen) != sum || !(has_shape(apart) && has_shape(back))) continue;
      const int before = match_.step(apart).inputs[0];
      if (match_.value(mask).type != match_.value(scores).type ||
          !is_of_windows(symbols_.dims(before), symbols_.dims(seen), symbols_.dims(mask), symbols_.dims(scores)))
        continue;
      core.windows = mask;
      core.least += least_of(sum, 1 - i);
      core.steps.insert(core.steps.end(), {back, sum, apart});
      return before;
    }
    return scores;
  }

  // What a mask adds at least, as far as it is known.
  double least_of(int sum, size_t input) const {
    const auto bounds = bounds_of(match_, match_.step(sum), input);
    return bounds ? bounds->least : ops::kAnyNumber;
  }

  // Of [batch, head, row, key] as [image, window, head, row, key], and back. As many elements as before have the same
  // batch.
  static bool is_of_windows(const std::optional<Dims>& before, const std::optional<Dims>& seen,
                            const std::optional<Dims>& mask, const std::optional<Dims>& after) {
    if (!before || !seen || !mask || !after || before->size() != 4 || seen->size() != 5 || mask->size() != 5 ||
        after->size() != 4)
      return false;
    for (size_t i = 1; i < 4; ++i) {
      const int64_t dim = (*before)[i], of_mask = (*mask)[i + 1];
      if (dim < 1 || (*seen)[i + 1] != dim || (*after)[i] != dim || (of_mask != dim && of_mask != 1)) return false;
    }
    return (*mask)[0] == 1 && (*mask)[1] > 0 && (*mask)[1] == (*seen)[1];
  }

  // Whether a mask of these is one of their batch: for all, for each window alike in all images, or for each.
  bool suits_windows(int mask, int q) const {
    if (mask < 0) return true;
    const auto &dims = symbols_.dims(mask), &like = symbols_.dims(q);
    if (!dims) return false;
    if (dims->size() < 4 || dims->front() == 1) return true;
    return dims->size() == 5 && (*dims)[0] == (*like)[0] && (*dims)[1] == (*like)[1];
  }

  // What a group lacks of shapes it would have to wait for.
  bool has_shape(int reshape) const { return !match_.plan().is_group || symbols_.constants(match_.step(reshape), 1); }

  // From the probabilities to the product with values and its transposition.
  bool complete(int probabilities, Type type, Core& core) const {
    int p = probabilities;
    if (const int filled = zeros_for_nan(p, core); filled >= 0) p = filled;
    if (match_.value(p).type != type) {
      const int cast = match_.only_reader(p, "Cast");
      if (cast < 0) return false;
      core.steps.push_back(cast);
      p = match_.step(cast).outputs[0];
      if (match_.value(p).type != type) return false;
    }
    if (const int filled = zeros_for_nan(p, core); filled >= 0) p = filled;
    if (const int turn = turn_behind(p); turn >= 0 && !match_.plan().is_group) {
      core.is_turned = true;
      core.steps.push_back(turn);
      p = match_.step(turn).outputs[0];
    }
    const int product = match_.only_reader(p, "MatMul");
    if (product < 0 || match_.step(product).inputs[core.is_turned] != p) return false;
    core.steps.push_back(product);
    core.v = match_.step(product).inputs[!core.is_turned];
    core.product_y = match_.step(product).outputs[0];
    find_same(core);
    return true;
  }
  // The transposition of the last two dimensions that alone reads the value, or -1.
  int turn_behind(int v) const {
    const int turn = match_.only_reader(v, "Transpose");
    const auto rank = match_.rank(v);
    return turn >= 0 && rank && match_.node(turn).find_ints("perm") == swap_of(*rank) ? turn : -1;
  }
  void find_same(Core& core) const {
    for (int reader : match_.readers(core.product_y)) {
      if (match_.value(core.product_y).is_output || !match_.is(reader, "Reshape")) continue;
      Link link{{reader}, {}, core.product_y, {}, 1};
      const auto numbers =
          Links::kept(symbols_.target(match_.step(reader), link.shapes), symbols_.dims(core.product_y));
      const auto axes = match_.rank(core.product_y);
      if (!numbers || numbers->size() != axes) continue;
      bool is_same = true;
      for (size_t i = 0; i < numbers->size(); ++i)
        is_same &= (*numbers)[i] <= 0 || (*numbers)[i] == (*symbols_.dims(core.product_y))[i];
      if (is_same) core.same = std::move(link);
    }
  }
  // Where(IsNaN(p), 0, p), or -1.
  int zeros_for_nan(int p, Core& core) const {
    const std::vector<int>& readers = match_.readers(p);
    if (match_.value(p).is_output || readers.size() != 2) return -1;
    for (size_t i = 0; i < 2; ++i) {
      const int asks = readers[i], fills = readers[1 - i];
      const Step &test = match_.step(asks), &where = match_.step(fills);
      if (!match_.is(asks, "IsNaN") || !match_.is(fills, "Where") || match_.only_reader(test.outputs[0]) != fills ||
          where.inputs[0] != test.outputs[0] || where.inputs[2] != p)
        continue;
      if (match_.number(where, 1, 1) != 0) return -1;
      core.zeros = true;
      core.steps.insert(core.steps.end(), {asks, fills});
      return where.outputs[0];
    }
    return -1;
  }

  // Of [image, window, head, row, size], the last three of which are known, with the same first two.
  bool are_windows(int q, int k, int v, int y) const {
    const Dims& like = *symbols_.dims(q);
    return std::ranges::all_of(std::array{q, k, v, y}, [&](int value) {
      const Dims& dims = *symbols_.dims(value);
      return dims[0] == like[0] && dims[1] == like[1] && dims[1] > 0 &&
             std::all_of(dims.begin() + 2, dims.end(), [](int64_t dim) { return dim > 0; });
    });
  }

  // Heads for which there are fast kernels.
  bool has_good_size(int v, bool is_turned = false) const {
    const int64_t size = *(symbols_.dims(v)->rbegin() + is_turned);
    return size > 0 && size <= kLargestHead && size % 8 == 0;
  }

  // Another pass makes heads larger.
  bool becomes_good(const Attention& made) const {
    return !made.to_y && padded_heads(match_, made.inputs, made.how, made.y, {made.steps.begin(), made.steps.end()});
  }

  using Chains = std::array<std::vector<Link>, 3>;  // to queries, keys and values

  // Takes away what others read, too, and what the rest stands on then. The steps that are left.
  std::set<int> settle(const Core& core, const std::array<int, 3>& starts, Chains& chains, Link& same) const {
    for (;;) {
      std::set<int> steps(core.steps.begin(), core.steps.end()), shapes;
      const auto take = [&](const Link& link) {
        steps.insert(link.steps.begin(), link.steps.end());
        shapes.insert(link.shapes.begin(), link.shapes.end());
      };
      take(same);
      for (const auto& chain : chains) std::ranges::for_each(chain, take);
      take_along(std::move(shapes), steps);
      const auto is_inside = [&](int n) { return steps.contains(n); };
      const auto has_shapes = [&](const Link& link) {
        return !match_.plan().is_group || std::ranges::all_of(link.shapes, is_inside);
      };
      // What is read has to be made outside, whoever else's way it is on.
      std::set<int> outside;
      for (size_t c = 0; c < 3; ++c)
        outside.insert(match_.maker(chains[c].empty() ? starts[c] : chains[c].back().from));
      outside.insert({match_.maker(core.mask), match_.maker(core.windows)});
      const auto stays = [&](const Link& link) {
        return has_shapes(link) && std::ranges::all_of(link.steps, [&](int n) {
                 return is_read_only_by(steps, n) && !outside.contains(n);
               });
      };
      // One at a time, as what one reads may be another's.
      bool is_settled = true;
      for (auto& chain : chains)
        if (const auto end = std::ranges::find_if_not(chain, stays); is_settled && end != chain.end()) {
          chain.erase(end, chain.end());
          is_settled = false;
        }
      // Nobody but the Reshape may ask for the product, or for its shape.
      if (is_settled && !same.steps.empty() && !(has_shapes(same) && reads_only(steps, core.product_y))) {
        same = {};
        is_settled = false;
      }
      if (is_settled) return steps;
    }
  }

  std::optional<Attention> joined(const Core& core, const std::array<int, 3>& starts, Chains chains,
                                  size_t rank) const {
    Link same = core.same;
    std::set<int> steps = settle(core, starts, chains, same);
    Attention made;
    made.how.scale = core.scale;
    std::vector<ViewStep>* const views[] = {&made.how.q, &made.how.k, &made.how.v};
    for (size_t c = 0; c < 3; ++c) {
      made.inputs.push_back(chains[c].empty() ? starts[c] : chains[c].back().from);
      for (const Link& link : chains[c]) {
        made.how.scale *= link.factor;
        if (link.view) views[c]->insert(views[c]->begin(), *link.view);
      }
    }
    const bool is_float = match_.value(core.v).type == Type::f32;
    const auto window = is_float ? std::nullopt : window_of_mask(core);
    made.inputs.push_back(window ? -1 : core.mask);
    if (window) made.how.before = window->before, made.how.after = window->after;
    const bool is_masked = core.is_masked() && !window;
    if (is_masked && !is_float) made.how.least = core.least;
    made.how.sees = is_masked && core.sees && !is_float && core.least == ops::kAnyNumber;
    made.how.zeros = is_float && core.zeros;
    // The second factor of their product is [.., size, row].
    made.how.k.push_back({ViewStep::transpose, swap_of(rank)});
    if (core.is_turned) made.how.v.push_back({ViewStep::transpose, swap_of(rank)});
    made.how.y_order.resize(rank);
    std::iota(made.how.y_order.begin(), made.how.y_order.end(), 0);
    if (!(made.how.scale > 0) || !std::isfinite(made.how.scale)) return std::nullopt;
    const int y = same.steps.empty() ? core.product_y : match_.step(same.steps[0]).outputs[0];
    if (!put_rows_last(core, y, steps, made)) made.y = take_turn(y, made.how.y_order, steps);
    if (rank == 5) join_batches(core, made);
    // Where windows have a mask of their own, all have the other one.
    if (made.windows = core.windows; core.windows >= 0 && core.mask < 0) std::swap(made.windows, made.inputs.back());
    if (made.windows >= 0 && !is_of_one_batch(core.mask)) return std::nullopt;
    made.steps.assign(steps.begin(), steps.end());
    return made;
  }
  std::optional<MaskWindow> window_of_mask(const Core& core) const {
    if (core.mask < 0 || core.windows >= 0 || match_.plan().is_group) return std::nullopt;
    const auto* const mask = match_.value(core.mask).constant;
    const auto &q = symbols_.dims(match_.step(core.product).inputs[0]), &v = symbols_.dims(core.v);
    if (!mask || !q || !v) return std::nullopt;
    return window_of(*mask, (*q)[q->size() - 2], *(v->rbegin() + !core.is_turned));
  }
  bool is_of_one_batch(int mask) const {
    const auto& dims = symbols_.dims(mask);
    return dims && (dims->size() < 4 || dims->front() == 1);
  }
  // Images and windows are a batch together.
  void join_batches(const Core& core, Attention& made) const {
    const auto with_joint = [&](int value, bool is_swapped) {
      const Dims& dims = *symbols_.dims(value);
      return ViewStep{ViewStep::reshape, {-1, dims[2], dims[is_swapped ? 4 : 3], dims[is_swapped ? 3 : 4]}};
    };
    const std::vector<int>& factors = match_.step(core.product).inputs;
    made.how.q.push_back(with_joint(factors[0], false));
    made.how.k.push_back(with_joint(factors[1], true));
    made.how.v.push_back(with_joint(core.v, false));
    std::vector<int64_t> order{0};
    for (size_t i = 2; i < 5; ++i) order.push_back(made.how.y_order[i] - 1);
    made.how.y_order = std::move(order);
    Dims to = *symbols_.dims(made.y);
    to[0] = -1;
    made.to_y = ViewStep{ViewStep::reshape, std::move(to)};
  }
  // Of what computes shapes, what nobody else reads.
  void take_along(std::set<int> shapes, std::set<int>& steps) const {
    steps.insert(shapes.begin(), shapes.end());
    for (bool changed = true; changed;) {
      changed = false;
      for (auto n = shapes.begin(); n != shapes.end();) {
        if (is_read_only_by(steps, *n)) {
          ++n;
          continue;
        }
        steps.erase(*n);
        n = shapes.erase(n);
        changed = true;
      }
    }
  }
  // Networks whose pictures have their channels first want each head's channels before its rows. Attention writes rows
  // of all heads, as channels last are, and a transposition follows, which other passes may find to be undone.
  bool put_rows_last(const Core& core, int y, std::set<int>& steps, Attention& made) const {
    const size_t rank = made.how.y_order.size();
    if (!core.is_turned) {
      const int turn = rank == 4 && !match_.plan().is_group ? turn_behind(y) : -1;
      if (turn < 0) return false;
      steps.insert(turn);
      y = match_.step(turn).outputs[0];
    }
    made.y = y;
    if (rank == 4) std::swap(made.how.y_order[1], made.how.y_order[2]);
    made.to_y = ViewStep{ViewStep::transpose, rank == 4 ? std::vector<int64_t>{0, 2, 3, 1} : swap_of(rank)};
    return true;
  }
  // The transposition behind, if it leaves the last dimension where it is; what is made then.
  int take_turn(int y, std::vector<int64_t>& order, std::set<int>& steps) const {
    const int turn = match_.only_reader(y, "Transpose");
    const auto asked = turn < 0 ? std::nullopt : match_.node(turn).find_ints("perm");
    if (!asked || asked->size() != order.size() || asked->back() != order.back()) return y;
    if (order.size() == 5 && ((*asked)[0] != 0 || (*asked)[1] != 1)) return y;  // which are one
    steps.insert(turn);
    order = *asked;
    return match_.step(turn).outputs[0];
  }
  bool is_read_only_by(const std::set<int>& steps, int n) const {
    return std::all_of(match_.step(n).outputs.begin(), match_.step(n).outputs.end(),
                       [&](int v) { return v < 0 || reads_only(steps, v); });
  }
  bool reads_only(const std::set<int>& steps, int v) const {
    return !match_.value(v).is_output && std::all_of(match_.readers(v).begin(), match_.readers(v).end(),
                                                     [&](int reader) { return steps.contains(reader); });
  }

  std::nullopt_t leave(const char* why) {
    why_ = why;
    return std::nullopt;
  }

  const Match& match_;
  const ShapeSymbols symbols_;
  const Links links_;
  const char* why_ = nullptr;
};

// Of what a transposition makes the value.
std::optional<Dims> dims_before(const Match& match, int v, const ViewStep& step) {
  const auto& dims = match.value(v).dims;
  if (step.kind != ViewStep::transpose || !dims) return std::nullopt;
  Dims made(dims->size());
  for (size_t i = 0; i < made.size(); ++i) made[size_t(step.numbers[i])] = (*dims)[i];
  return made;
}

}  // namespace

// No path leaves them and comes back, for nobody else reads what is between.
void join_attention(Match& match, int softmax) {
  Search search(match);
  const auto found = search.around(softmax);
  if (search.why()) match.note(softmax, search.why());
  if (!found) return;
  std::vector<int> inputs = found->inputs;
  std::vector<Step> made;
  const std::string name = match.value(found->y).name;
  if (found->windows >= 0) {
    const int sum = match.add_like(found->windows, " and " + match.value(inputs.back()).name, std::nullopt);
    made.push_back(match.plan().step({ops::kOnnx, "Add", 14}, name, {found->windows, inputs.back()}, {sum}));
    inputs.back() = sum;
  }
  int y = found->y;
  const bool turns = found->to_y && found->to_y->kind == ViewStep::transpose;
  if (found->to_y) y = match.add_like(y, turns ? " by rows" : " of all windows", dims_before(match, y, *found->to_y));
  made.push_back(match.plan().step({kFusions, "Attention", 1, ops::attributes_of(found->how)}, name, inputs, {y}));
  made.back().make = ops::make_viewed_attention;
  if (found->to_y)
    made.push_back(turns ? transposition(match, found->to_y->numbers, name, y, found->y)
                         : view(match, {*found->to_y}, name, y, found->y));
  match.replace(found->steps, std::move(made));
}

}  // namespace encore::fuse
