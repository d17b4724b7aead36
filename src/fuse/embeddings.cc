// What models have before their first layer: rows that ids pick from tables, of words, places and kinds of tokens, are
// added, and the sum is normalised.
#include "ops/norm/embedding_norm.h"

#include <algorithm>

#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/matmul/product_norm.h"
#include "ops/norm/normed_embeddings.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

struct Summand {
  int rows, ids = -1;  // values
  float factor = 1;
};

// Rows of a constant table, from which the step picks.
std::optional<Summand> picked_by(const Match& match, int gather) {
  if (!match.is(gather, "Gather")) return std::nullopt;
  const Step& step = match.step(gather);
  const Value &table = match.value(step.inputs[0]), &ids = match.value(step.inputs[1]);
  const int64_t axis = match.node(gather).get_int("axis", 0);
  if (!table.is_constant || !table.dims || table.dims->size() != 2 || (axis != 0 && axis != -2) ||
      !(ops::Types{Type::i32, Type::i64}).has(ids.type))
    return std::nullopt;
  return Summand{step.inputs[0], step.inputs[1]};
}

class Search {
 public:
  Search(const Match& match, int norm) : match_(match), x_(match.step(norm).inputs[0]), steps_{norm} {}

  // Whether the norm is one of a sum, in the order of adding, of which something is picked.
  bool run() {
    int v = x_;
    for (int sum = inner_sum(v); sum >= 0; sum = inner_sum(v)) {
      const std::vector<int>& inputs = match_.step(sum).inputs;
      const size_t inner = inner_sum(inputs[1]) >= 0 && inner_sum(inputs[0]) < 0 ? 1 : 0;
      if (!add(inputs[1 - inner])) return false;
      steps_.push_back(sum);
      v = inputs[inner];
    }
    if (!add(v)) return false;
    std::ranges::reverse(summands_);
    return std::ranges::any_of(summands_, [](const Summand& one) { return one.ids >= 0; });
  }
  const std::vector<Summand>& summands() const { return summands_; }
  const std::vector<int>& steps() const { return steps_; }

 private:
  bool is_read_here(int v) const { return v == x_ || match_.only_reader(v) >= 0; }
  // That makes the value for the norm, if there may be so many summands; or -1.
  int inner_sum(int v) const {
    const int sum = summands_.size() + 1 < ops::kMostEmbeddings && is_read_here(v) ? match_.maker(v, "Add") : -1;
    return sum >= 0 && broadcasts(match_.node(sum)) ? sum : -1;
  }

  bool add(int v) {
    const int made = is_read_here(v) ? match_.maker(v) : -1;
    std::vector<int> steps{made};
    auto found = picked_by(match_, made);
    const auto by = !found && match_.is(made, "Mul") ? match_.scaled(made) : std::nullopt;
    if (by && match_.only_reader(by->from) >= 0) {
      steps.push_back(match_.maker(by->from));
      if (found = picked_by(match_, steps.back()); found) found->factor = float(by->factor);
    }
    if (found) steps_.insert(steps_.end(), steps.begin(), steps.end());
    summands_.push_back(found.value_or(Summand{v}));
    return has_last_dims(v);
  }
  // Of the sum, which has all of its columns; what is before these is one.
  bool has_last_dims(int v) const {
    const auto &dims = match_.value(v).dims, &all = match_.value(x_).dims;
    if (!dims || dims->empty() || dims->size() > all->size() || std::ranges::count(*dims, -1) > 0 ||
        match_.value(v).type != match_.value(x_).type)
      return false;
    const auto from = std::find_if(dims->begin(), dims->end() - 1, [](int64_t dim) { return dim != 1; });
    return std::equal(dims->rbegin(), dims->rbegin() + (dims->end() - from), all->rbegin());
  }

  const Match& match_;
  const int x_;
  std::vector<Summand> summands_;  // the last one first while they are looked for
  std::vector<int> steps_;
};

}  // namespace

// No path leaves them and comes back: what is between nobody else reads but the sum, of which no summand is made.
void join_embeddings(Match& match, int norm) {
  if (!is_norm_of_rows(match, norm)) return;
  const Step& step = match.step(norm);
  const int x = step.inputs[0];
  const Type of_scale = match.value(step.inputs[1]).type;
  if (of_scale != match.value(x).type && of_scale != Type::f32) return;
  Search search(match, norm);
  if (!search.run()) return;
  const bool is_centred = match.is(norm, "LayerNormalization");
  std::vector<int> inputs{step.inputs[1], is_centred && step.inputs.size() > 2 ? step.inputs[2] : -1};
  std::vector<float> factors;
  for (const Summand& one : search.summands()) {
    inputs.insert(inputs.end(), {one.rows, one.ids});
    factors.push_back(one.factor);
  }
  std::vector<int> outputs{step.outputs[0]};
  if (match.value(x).is_output || match.readers(x).size() > 1) outputs.push_back(x);
  ops::Attributes attributes{{ops::kCentred, int64_t(is_centred)},
                             {"epsilon", match.node(norm).get_float("epsilon", 1e-5f)},
                             {ops::kFactors, std::move(factors)}};
  const std::string first = match.node(search.steps().back()).name();
  Step made = match.plan().step({kFusions, "EmbeddingNorm", 1, std::move(attributes)},
                                first + " and " + match.node(norm).name(), std::move(inputs), std::move(outputs));
  made.make = ops::make_embedding_norm;
  match.replace(search.steps(), std::move(made));
}

}  // namespace encore::fuse
