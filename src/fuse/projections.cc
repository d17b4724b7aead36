// Queries, keys and values as one product of the rows that they are made of.
#include <algorithm>
#include <array>
#include <map>

#include "fuse/joined_products.h"
#include "fuse/passes.h"
#include "fuse/viewed_attention.h"
#include "fuse/viewed_rotation.h"
#include "ops/registry.h"
#include "ops/shape/viewed.h"

namespace encore::fuse {
namespace {

constexpr size_t kInputs = 3;
constexpr int64_t kPack = 8;  // a multiple of it begins at a multiple of 16 bytes

constexpr const char* kViews[kInputs] = {"q", "k", "v"};  // attributes of attention that say how it reads them

// The step that reads what a product makes, as one of its attributes says.
struct Reader {
  int step;
  size_t input;
  const char* view;
};
using Readers = std::array<Reader, kInputs>;  // of queries, keys and values

// Attention itself, or a rotation which that alone reads.
Readers readers_of(const Match& match, int attention) {
  Readers readers;
  for (size_t i = 0; i < kInputs; ++i) {
    const int v = match.step(attention).inputs[i], made = match.producer(v);
    const bool is_rotated =
        made >= 0 && is_viewed_rotation(match.step(made)) && match.readers(v).size() == 1 && !match.value(v).is_output;
    readers[i] = is_rotated ? Reader{made, 0, "x"} : Reader{attention, i, kViews[i]};
  }
  return readers;
}

// The product of which it reads all, and nobody else; or -1.
int product_of(const Match& match, const Reader& reader) {
  const int v = match.step(reader.step).inputs[reader.input], made = match.maker(v);
  if (made < 0 || match.readers(v).size() != 1 || match.value(v).is_output) return -1;
  const int64_t columns = columns_of(match, match.step(made));
  return columns > 0 && columns % kPack == 0 && match.rank(v) ? made : -1;
}

// Inputs that one product can make, the largest number of them.
std::vector<size_t> alike(const Match& match, const Readers& readers) {
  std::vector<size_t> most;
  for (size_t first = 0; first + 1 < kInputs; ++first) {
    const int product = product_of(match, readers[first]);
    std::vector<size_t> inputs{first};
    for (size_t i = first + 1; product >= 0 && i < kInputs; ++i)
      if (const int other = product_of(match, readers[i]);
          other >= 0 && can_join(match, match.step(product), match.step(other)))
        inputs.push_back(i);
    if (inputs.size() > std::max<size_t>(most.size(), 1)) most = std::move(inputs);
  }
  return most;
}

std::vector<int> products_of(const Match& match, const Readers& readers, const std::vector<size_t>& inputs) {
  std::vector<int> products;
  for (const size_t i : inputs) products.push_back(product_of(match, readers[i]));
  return products;
}

// None of them can be one with another: that is said of a product that has the same rows as an earlier one.
void note_apart(Match& match, const Readers& readers) {
  for (size_t first = 0; first + 1 < kInputs; ++first)
    for (size_t i = first + 1; i < kInputs; ++i) {
      const int product = product_of(match, readers[first]), other = product_of(match, readers[i]);
      if (product >= 0 && other >= 0 && match.step(product).inputs[0] == match.step(other).inputs[0])
        return match.note(other, "its weights are not alike those of the other products, or others read them");
    }
}

// A value with the columns of all.
int add_joined(Match& match, const std::vector<int>& products) {
  Value made = match.value(match.step(products.front()).outputs[0]);
  made.name += " with its kin";
  made.dims->back() = 0;
  for (const int s : products) made.dims->back() += columns_of(match, match.step(s));
  return match.add(std::move(made));
}

// The step with other attributes and inputs.
Step changed(const Match& match, int s, ops::Attributes attributes, std::vector<int> inputs) {
  const NodeInfo& node = match.node(s);
  Step made = match.plan().step({node.domain(), node.op_type(), node.since_version(), std::move(attributes)},
                                node.name(), std::move(inputs), match.step(s).outputs);
  made.make = match.step(s).make;
  return made;
}

void join_viewed(Match& match, int attention) {
  const Readers readers = readers_of(match, attention);
  const std::vector<size_t> inputs = alike(match, readers);
  if (inputs.empty()) return note_apart(match, readers);
  const std::vector<int> products = products_of(match, readers, inputs);
  const int joined = add_joined(match, products);
  const int64_t all = match.value(joined).dims->back();
  std::map<int, std::pair<ops::Attributes, std::vector<int>>> changes;  // by step
  int64_t begin = 0;
  for (size_t n = 0; n < inputs.size(); ++n) {
    const auto& [step, input, view] = readers[inputs[n]];
    const int64_t columns = columns_of(match, match.step(products[n]));
    auto& [attributes, read] =
        changes.try_emplace(step, match.node(step).attributes(), match.step(step).inputs).first->second;
    std::vector<ops::ViewStep> steps = ops::view_steps(match.node(step).get_string(view, ""));
    steps.insert(steps.begin(), {ops::ViewStep::slice, {-1, begin, columns, all}});
    attributes[view] = ops::text_of(steps);
    read[input] = joined;
    begin += columns;
  }
  std::vector<int> replaced = products;
  std::vector<Step> made;
  made.push_back(join_products(match, products, 0, joined));
  for (auto& [step, change] : changes) {
    made.push_back(changed(match, step, std::move(change.first), std::move(change.second)));
    replaced.push_back(step);
  }
  match.replace(std::move(replaced), std::move(made));
}

// GroupQueryAttention takes them packed.
void join_packed(Match& match, int attention) {
  const Readers readers{Reader{attention, 0, ""}, Reader{attention, 1, ""}, Reader{attention, 2, ""}};
  const std::vector<size_t> inputs = alike(match, readers);
  if (inputs.empty()) note_apart(match, readers);
  if (inputs.size() != kInputs) return;
  std::vector<int> replaced = products_of(match, readers, inputs);
  std::vector<int> read = match.step(attention).inputs;
  const int joined = add_joined(match, replaced);
  read[0] = joined, read[1] = read[2] = -1;
  std::vector<Step> made;
  made.push_back(join_products(match, replaced, 0, joined));
  made.push_back(changed(match, attention, match.node(attention).attributes(), std::move(read)));
  replaced.push_back(attention);
  match.replace(std::move(replaced), std::move(made));
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
