// Queries, keys and values as one product of the rows that they are made of.
#include <algorithm>

#include "fuse/joined_products.h"
#include "fuse/passes.h"
#include "fuse/viewed_attention.h"
#include "ops/attention/operators/viewed_attention.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr size_t kInputs = 3;
constexpr int64_t kPack = 8;  // a multiple of it begins at a multiple of 16 bytes

// The product that makes the input, for nobody else; or -1.
int product_of(const Match& match, int attention, size_t input) {
  const int v = match.step(attention).inputs[input], made = match.maker(v);
  if (made < 0 || match.readers(v).size() != 1 || match.value(v).is_output) return -1;
  const int64_t columns = columns_of(match, match.step(made));
  return columns > 0 && columns % kPack == 0 && match.rank(v) ? made : -1;
}

// Inputs that one product can make, the largest number of them.
std::vector<size_t> alike(const Match& match, int attention) {
  std::vector<size_t> most;
  for (size_t first = 0; first + 1 < kInputs; ++first) {
    const int product = product_of(match, attention, first);
    std::vector<size_t> inputs{first};
    for (size_t i = first + 1; product >= 0 && i < kInputs; ++i)
      if (const int other = product_of(match, attention, i);
          other >= 0 && can_join(match, match.step(product), match.step(other)))
        inputs.push_back(i);
    if (inputs.size() > std::max<size_t>(most.size(), 1)) most = std::move(inputs);
  }
  return most;
}

std::vector<int> products_of(const Match& match, int attention, const std::vector<size_t>& inputs) {
  std::vector<int> products;
  for (const size_t i : inputs) products.push_back(product_of(match, attention, i));
  return products;
}

// A value with the columns of all.
int add_joined(Match& match, const std::vector<int>& products) {
  Value made = match.value(match.step(products.front()).outputs[0]);
  made.name += " with its kin";
  made.dims->back() = 0;
  for (const int s : products) made.dims->back() += columns_of(match, match.step(s));
  return match.add(std::move(made));
}

void join(Match& match, int attention, std::vector<int> products, int joined, Step reader) {
  reader.make = match.step(attention).make;
  std::vector<Step> made;
  made.push_back(join_products(match, products, 0, joined));
  made.push_back(std::move(reader));
  products.push_back(attention);
  match.replace(std::move(products), std::move(made));
}

void join_viewed(Match& match, int attention) {
  const std::vector<size_t> inputs = alike(match, attention);
  if (inputs.empty()) return;
  const std::vector<int> products = products_of(match, attention, inputs);
  const Step& step = match.step(attention);
  ops::ViewedAttention how = ops::viewed_attention(*step.node);
  std::vector<ops::ViewStep>* const views[kInputs] = {&how.q, &how.k, &how.v};
  std::vector<int> read = step.inputs;
  const std::vector<int> outputs = step.outputs;
  const std::string name = step.node->name();
  const int joined = add_joined(match, products);
  const int64_t all = match.value(joined).dims->back();
  int64_t begin = 0;
  for (size_t n = 0; n < inputs.size(); ++n) {
    const int64_t columns = columns_of(match, match.step(products[n]));
    auto& view = *views[inputs[n]];
    view.insert(view.begin(), {ops::ViewStep::slice, {-1, begin, columns, all}});
    read[inputs[n]] = joined;
    begin += columns;
  }
  join(match, attention, products, joined,
       match.plan().step({kFusions, "Attention", 1, ops::attributes_of(how)}, name, std::move(read), outputs));
}

// GroupQueryAttention takes them packed.
void join_packed(Match& match, int attention) {
  const std::vector<size_t> inputs = alike(match, attention);
  if (inputs.size() != kInputs) return;
  const std::vector<int> products = products_of(match, attention, inputs);
  const Step& step = match.step(attention);
  const NodeInfo& node = *step.node;
  std::vector<int> read = step.inputs;
  const int joined = add_joined(match, products);
  read[0] = joined, read[1] = read[2] = -1;
  Step reader = match.plan().step({node.domain(), node.op_type(), node.since_version(), node.attributes()}, node.name(),
                                  std::move(read), match.step(attention).outputs);
  join(match, attention, products, joined, std::move(reader));
}

}  // namespace

// No path leaves them and comes back, for the products have no other reader.
void join_projections(Match& match, int attention) {
  if (is_viewed_attention(match.step(attention)))
    join_viewed(match, attention);
  else if (match.is_there(attention) && match.node(attention).op_type() == "GroupQueryAttention" &&
           match.node(attention).domain() == ops::kMicrosoft && match.step(attention).inputs.size() > 2 &&
           match.step(attention).inputs[1] >= 0)
    join_packed(match, attention);
}

}  // namespace encore::fuse
