// Few rows come to the norm as the parts of a product that is shared out along its depth, which the norm adds up: that
// saves the kernel which does so at the product's end. Others are made as a whole.
#include "ops/matmul/product_norm.h"

#include "ops/matmul/product.h"
#include "ops/norm/few_row_norm.h"
#include "ops/norm/row_norm.h"

namespace encore::ops {
namespace {

using enum ProductNormInputs::Input;

// Rather than in parts by the library, which take less time than a depth that warpgroups share.
bool is_made_by_tiles(TileGemmWay way) { return way.parts == 1 || (way.parts > 1 && way.shape < kFirstOfWarpgroups); }

class ProductNorm : public Op {
 public:
  explicit ProductNorm(const NodeInfo& node)
      : alpha_(node.get_float("alpha", 1)),
        transpose_b_(node.get_int("transB", 0) != 0),
        tf32_(node.settings.use_tf32),
        epsilon_(node.get_float("epsilon", 0)),
        epsilon_ahead_(node.get_float(kEpsilonAhead, 0)),
        centred_(node.get_int(kCentred, 1) != 0),
        strict_(node.settings.strict_skip_layer_norm) {}

  bool prepack(int input, const Tensor&, Prepack&) override {
    constants_ |= 1u << input;
    return false;
  }

  void run(Context& context) const override {
    const Tensor &a = context.input(kA), &b = context.input(kB);
    const Tensor* const residual = context.find_input(kResidual);
    const int rank = a.shape.rank();
    if (a.type != b.type || rank == 0)
      fail(Code::invalid_input, "A has type ", device::name(a.type), " and shape ", a.shape.str(), ", B has type ",
           device::name(b.type));
    const Tensor rows{a.type, a.where, {a.shape.count(0, rank - 1), a.shape.back()}, a.data};
    device::Gemm gemm = product_of(rows, b, false, transpose_b_, nullptr);
    gemm.type = gemm.output = a.type;
    gemm.alpha = alpha_;
    gemm.tf32 = tf32_;
    gemm.constant_b = is_constant(kB);
    if (residual && (residual->type != a.type || residual->count() != gemm.m * gemm.n))
      fail(Code::invalid_input, "the residual has shape ", residual->shape.str(), "; the product has ", gemm.m,
           " rows of ", gemm.n);
    const NormTypes types{a.type, context.input(kGamma).type, a.type};
    const auto row = [&](int input, Type type) -> const void* {
      const Tensor* const values = context.find_input(input);
      if (values && (values->type != type || values->count() != gemm.n))
        fail(Code::invalid_input, "input ", input, " has shape ", values->shape.str(), "; ", gemm.n,
             " values are wanted");
      return values ? values->data : nullptr;
    };
    const void* const bias = row(kBias, a.type);
    RowNorm norm{.rows = gemm.m,
                 .width = gemm.n,
                 .skip = residual ? residual->data : nullptr,
                 .skip_rows = gemm.m,
                 .bias = row(kAdded, a.type),
                 .gamma = {row(kGamma, types.gamma)},
                 .beta = {row(kBeta, types.gamma)},
                 .ahead = {row(kAhead, types.gamma), epsilon_ahead_},
                 .centred = centred_,
                 .strict = strict_ && residual,
                 .epsilon = epsilon_};
    require(!norm.ahead.gamma || (residual && !bias && !norm.bias),
            "a norm ahead of the residual wants one, and no bias");
    const Shape shape = residual ? residual->shape : a.shape.with(rank - 1, gemm.n);
    norm.y = context.output(0, shape).data;
    if (const Tensor* const behind = context.find_input(kBehind)) {
      if (behind->type != a.type || behind->shape != shape)
        fail(Code::invalid_input, "what is added to the result has shape ", behind->shape.str(), "; the result has ",
             shape.str());
      norm.behind = behind->data;
    }
    if (context.wants_output(1)) norm.sum = context.output(1, shape).data;
    if (gemm.m == 0 || gemm.n == 0) return;
    if (run_in_parts(context, gemm, a.data, b.data, bias, norm, types)) return;
    void* const x = context.scratch(size_t(gemm.m * gemm.n) * device::size_bytes(a.type));
    product(context, gemm, {a.data, b.data, bias, x});
    norm.x = x;
    normalize_rows(context.stream(), norm, types);
  }

 private:
  bool is_constant(int input) const { return constants_ >> input & 1; }

  // False, and nothing is done, if the product is to be made as a whole.
  bool run_in_parts(Context& context, device::Gemm gemm, const void* a, const void* b, const void* bias, RowNorm norm,
                    const NormTypes& types) const {
    const StreamRef stream = context.stream();
    for (const int row : {kBias, kGamma, kBeta, kAdded, kAhead})
      if (context.find_input(row) && !is_constant(row)) return false;
    if (bias && norm.bias) return false;
    gemm.has_bias = bias != nullptr;
    if (bias) norm.bias = bias;
    if (!can_normalize_parts(stream.device(), norm, types) ||
        is_made_by_tiles(tile_gemm_way(gemm, {a, b, bias, nullptr}, {}, stream.device())))
      return false;
    ScratchWorkspace workspace(context);
    norm.parts = context.blas().parts_of(stream, gemm, a, b, bias, workspace);
    if (norm.parts == 1) return false;
    void* const x = context.scratch(size_t(norm.parts * gemm.m * gemm.n) * sizeof(float));
    context.blas().gemm(stream, device::in_parts(gemm, norm.parts), a, b, x, nullptr, workspace);
    norm.x = x;
    normalize_parts(stream, norm, types);
    return true;
  }

  float alpha_;
  bool transpose_b_, tf32_;
  float epsilon_, epsilon_ahead_;
  bool centred_, strict_;
  unsigned constants_ = 0;  // inputs, a bit each
};

}  // namespace

std::unique_ptr<Op> make_product_norm(const NodeInfo& node) { return std::make_unique<ProductNorm>(node); }

}  // namespace encore::ops
