#include "ops/norm/embedding_norm.h"

#include <algorithm>

#include "ops/matmul/product_norm.h"
#include "ops/norm/normed_embeddings.h"
#include "ops/shape.h"

namespace encore::ops {
namespace {

constexpr int kFirst = 2;  // of the summands' inputs

class EmbeddingNorm : public Op {
 public:
  explicit EmbeddingNorm(const NodeInfo& node)
      : factors_(node.find_floats(kFactors).value()),
        centred_(node.get_int(kCentred, 1) != 0),
        epsilon_(node.get_float("epsilon", 1e-5f)) {
    require(!factors_.empty() && factors_.size() <= kMostEmbeddings, "there are ", factors_.size(), " summands");
  }

  void run(Context& context) const override {
    const Tensor& gamma = context.input(0);
    const Tensor* const beta = context.find_input(1);
    std::vector<Shape> shapes;
    Shape shape;
    for (size_t i = 0; i < factors_.size(); ++i) {
      shapes.push_back(shape_of(context, i, gamma));
      shape = broadcast(shape, shapes.back());
    }
    NormedEmbeddings norm{.rows = shape.count(0, shape.rank() - 1),
                          .width = shape.back(),
                          .terms = {},
                          .gamma = {gamma.data, gamma.type},
                          .beta = beta ? AnyFloats{beta->data, beta->type} : AnyFloats(),
                          .y = nullptr,
                          .epsilon = epsilon_,
                          .centred = centred_,
                          .rounds = true,
                          .counts_from_end = true};
    for (size_t i = 0; i < factors_.size(); ++i) {
      const Tensor& rows = context.input(rows_of(i));
      const Tensor* const ids = context.find_input(rows_of(i) + 1);
      const int64_t repeats = repeating_rows(shapes[i], shape);
      norm.terms[i] = {rows.data, ids ? rows.shape[0] : repeats, ids ? indices_of(*ids) : Indices(), repeats,
                       factors_[i]};
    }
    norm.y = context.output(0, shape).data;
    if (context.wants_output(1)) norm.sum = context.output(1, shape).data;
    normalize_embeddings(context, norm, context.input(kFirst).type);
  }

 private:
  static int rows_of(size_t summand) { return kFirst + 2 * int(summand); }

  static Shape shape_of(Context& context, size_t summand, const Tensor& gamma) {
    const Tensor& rows = context.input(rows_of(summand));
    const Tensor* const ids = context.find_input(rows_of(summand) + 1);
    require(rows.shape.rank() > 0 && Shape{rows.shape.back()} == gamma.shape, "rows ", rows.shape.str(),
            " do not fit the scale ", gamma.shape.str());
    if (!ids) return rows.shape;
    require(rows.shape.rank() == 2, "the table ", rows.shape.str(), " must have two dimensions");
    require(rows.shape[0] > 0 || ids->count() == 0, "the table ", rows.shape.str(), " has no rows to pick");
    std::vector<int64_t> dims(ids->shape.dims().begin(), ids->shape.dims().end());
    dims.push_back(rows.shape.back());
    return Shape(dims);
  }

  // After how many rows those of a summand begin again.
  static int64_t repeating_rows(const Shape& own, const Shape& all) {
    const auto dims = own.dims();
    const auto from = std::find_if(dims.begin(), dims.end() - 1, [](int64_t dim) { return dim != 1; });
    require(std::equal(dims.rbegin(), dims.rbegin() + (dims.end() - from), all.dims().rbegin()), "a summand ",
            own.str(), " has not the last dimensions of the sum ", all.str());
    return own.count(0, own.rank() - 1);
  }

  std::vector<float> factors_;
  bool centred_;
  float epsilon_;
};

}  // namespace

std::unique_ptr<Op> make_embedding_norm(const NodeInfo& node) { return std::make_unique<EmbeddingNorm>(node); }

}  // namespace encore::ops
