// The shape of what is turned tells where it is turned from.
#include <algorithm>

#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/registry.h"

namespace encore::fuse {
// On the host, where shapes are.
void read_shape_before_turn(Match& match, int shape) {
  if (!match.is(shape, "Shape") || match.node(shape).get_int("start", 0) != 0 || match.node(shape).find_int("end"))
    return;
  const int turn = match.maker(match.step(shape).inputs[0], "Transpose");
  const auto order = turn < 0 ? std::nullopt : match.node(turn).find_ints("perm");
  if (!order || std::ranges::any_of(*order, [&](int64_t axis) { return axis < 0 || axis >= std::ssize(*order); }))
    return;
  const std::string name = match.node(shape).name();
  const int x = match.step(turn).inputs[0], made = match.step(shape).outputs[0];
  const int indices = match.add_constant(name + "'s order", own_ints(*order));
  const int of_x = match.add({name + " before it is turned", Type::i64, Dims{std::ssize(*order)}});
  Step in_order = match.plan().step({ops::kOnnx, "Gather", 13}, name, {of_x, indices}, {made});
  in_order.runs = Runs::on_host;
  match.insert(match.plan().step({ops::kOnnx, "Shape", 13}, name, {x}, {of_x}));
  match.replace({shape}, std::move(in_order));
  drop_unread(match, turn);
}

}  // namespace encore::fuse
