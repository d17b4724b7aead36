#include "fuse/passes.h"

#include "fuse/shape_symbols.h"

namespace encore::fuse {
namespace {

constexpr Pass kPasses[] = {
    {"dims", nullptr, infer_dims},
    {"attention", "an attention", join_attention},
    {"gates", "a gate", join_gate},
    {"norms", "a norm and a product", join_norm},
    {"biases", "a product and its bias", join_bias},
    {"gelu", "a Gelu", join_gelu},
    {"residuals", "a sum and its norm", join_residual},
};

}  // namespace

void rewrite(Plan& plan) {
  for (const Pass& pass : kPasses) {
    Match match(plan, pass.what);
    for (int s = 0; s < match.size(); ++s)
      if (match.step(s).node) pass.at(match, s);
    match.finish();
  }
}

}  // namespace encore::fuse
