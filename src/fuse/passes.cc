#include "fuse/passes.h"

#include "fuse/shape_symbols.h"

namespace encore::fuse {
namespace {

constexpr Pass kPasses[] = {
    {"requantizations", nullptr, drop_requantization, false},
    {"dims", nullptr, infer_dims},
    {"known_numbers", nullptr, nullptr, false, know_numbers},
    {"known_targets", nullptr, know_target, false},
    {"turned_operands", nullptr, turn_operand_ahead, false},
    {"constants", nullptr, nullptr, false, fold_constants},
    {"repetitions", nullptr, drop_repetition, false},
    {"hard_swishes", "a HardSwish", join_hard_swish, false},
    {"einsums", nullptr, make_product_of_einsum, false},
    {"group_norms", "a norm of groups", join_group_norm, false},
    {"convolution_sums", nullptr, join_convolution_sum, false},
    {"unmoved", nullptr, drop_identity, false},
    {"reduction_casts", "a reduction", join_reduction_casts, false},
    {"channels_last", nullptr, nullptr, false, turn_pictures},
    {"batch_norms_ahead", nullptr, fold_batch_norm_ahead, false},
    {"convolutions", nullptr, join_convolution, false},
    {"folded_batch_norms", nullptr, fold_batch_norm, false},
    {"aligned_parts", nullptr, align_parts, false},
    {"row_orders", nullptr, turn_rows_elsewhere, false},
    {"casts", nullptr, drop_casts, false},
    {"any", nullptr, ask_for_any, false},
    {"any_odd", nullptr, ask_for_any_odd, false},
    {"transposes", nullptr, join_transposes, false},
    {"shapes", nullptr, read_shape_before_turn, false},
    {"whole_gathers", nullptr, open_gather, false},
    {"identities", nullptr, drop_identity, false},
    {"flat_gemms", nullptr, open_flat_gemm, false},
    {"chosen_masks", nullptr, add_chosen_mask, false},
    {"flat_heads", nullptr, part_heads, false},
    {"joined_masks", "a mask", join_masks, false},
    {"equal_constants", nullptr, nullptr, false, share_constants},
    {"same", nullptr, share_result, false},
    {"last_keys", "a count of keys", join_last_keys, false},
    {"spelled_norms", "a norm", join_spelled_norm, false},
    {"centred_norms", "a norm", centre_norm, false},
    {"norm_casts", "a norm", join_norm_casts, false},
    {"spelled_l2_norms", "a norm", join_spelled_l2_norm, false},
    {"head_scales", nullptr, scale_heads, false},
    {"viewed_norms", "a norm", view_l2_norm, false},
    {"rotations", "a rotation", join_rotation, false},
    {"attention", "an attention", join_attention},
    {"padded_heads", "an attention", pad_heads, false},
    {"constant_masks", nullptr, nullptr, false, fold_constants},
    {"softmaxes", "a masked softmax", join_softmax},
    {"gelu", "a Gelu", join_gelu},
    {"tanh_gelu", "a Gelu", join_tanh_gelu, false},
    {"gates", "a gate", join_gate},
    {"biases", "a product and its bias", join_bias},
    {"integer_products", "a product of bytes", join_integer_product, false},
    {"gated_products", "one product", join_gated_products, false},
    {"squeeze_excite", "squeeze and excite", join_squeeze_excite, false},
    {"projections", "one product", join_projections, false},
    {"packed_heads", "attention of packed heads", pack_heads, false},
    {"rotation_pairs", "two rotations", join_rotation_pair, false},
    {"stacked_recurrences", "recurrent layers", stack_recurrences, false},
    {"shared_masks", nullptr, nullptr, false, share_masks},
    {"embeddings", "embeddings and their norm", join_embeddings, false},
    {"residuals", "a sum and its norm", join_residual},
    {"clipped_norms", "a norm", join_clipped_norm, false},
    {"norms", "a norm and a product", join_norm},
    {"quick_gelu", "a Gelu", join_quick_gelu, false},
    {"convolution_activations", "a convolution and its activation", end_convolution, false},
    {"group_norm_activations", "a norm of groups", end_group_norm, false},
    {"bias_gelu", "a Gelu and its bias", join_bias_gelu, false},
    {"layer_scales", "a product and its scale", fold_layer_scale, false},
    {"products", "a product", join_product, false},
    {"product_sums", "a product and its sum", join_product_sum, false},
    {"product_activations", "a product and its activation", join_product_activation, false},
    {"product_norms", "a product and its norm", join_product_norm, false},
    {"two_norms", "two norms", join_two_norms, false},
    {"norm_sums", "a norm and its sum", join_norm_sum, false},
    {"turned_pairs", "a roll", turn_pairs, false},
    {"rolls", "a roll", join_roll, false},
    {"patches", "patches", join_patches, false},
    {"planes", "a convolution", take_planes, false},
    {"movements", nullptr, nullptr, false, join_movements},
    {"batch_norms", nullptr, open_batch_norm, false},
    {"neutral_operands", nullptr, drop_neutral, false},
    {"clips", nullptr, open_clip, false},
    {"unit_dims", nullptr, move_unit_dims, false},
    {"selections", nullptr, nullptr, false, cut_selections},
    {"pieces", nullptr, take_pieces, false},
    {"elementwise", "elementwise", nullptr, false, join_elementwise},
    {"joined_resizes", "resized pieces", join_resizes, false},
    {"joined_cuts", "parts side by side", join_cuts, false},
    {"read_parts", "a convolution", read_part, false},
    {"unread", nullptr, drop_unread, false},
};

}  // namespace

std::span<const Pass> passes() { return kPasses; }

bool run(const Pass& pass, Plan& plan) {
  Match match(plan, pass.what);
  if (pass.whole) pass.whole(match);
  for (int s = 0; pass.at && s < match.size(); ++s)
    if (match.step(s).node) pass.at(match, s);
  return match.finish();
}

void rewrite(Plan& plan, const Watch& watch) {
  for (const Pass& pass : passes()) {
    if (plan.is_group && !pass.is_for_groups) continue;
    const size_t noted = plan.notes.size();
    const bool has_changed = run(pass, plan);
    if (watch && (has_changed || plan.notes.size() > noted)) watch(pass.name, plan);
  }
}

}  // namespace encore::fuse
