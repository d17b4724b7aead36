// com.microsoft's SparseAttention: as GroupQueryAttention, but of the keys a query sees some blocks, as its head's
// layout says.
#include <cmath>

#include "ops/attention/inputs/grouped_inputs.h"
#include "ops/attention/inputs/heads.h"
#include "ops/attention/sparse/attend_block_sparse.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

constexpr Types kTypes{Type::f32, Type::f16, Type::bf16};

class SparseAttention : public Op {
 public:
  explicit SparseAttention(const NodeInfo& node)
      : heads_(node.get_int("num_heads", 0)),
        kv_heads_(node.get_int("kv_num_heads", 0)),
        block_(node.get_int("sparse_block_size", 0)),
        rotates_(node.get_int("do_rotary", 0) == 1),
        interleaved_(node.get_int("rotary_interleaved", 0) == 1),
        scale_(node.get_float("scale", 0)) {
    require(!rotates_ || (node.has_input(kCos) && node.has_input(kSin)), "do_rotary wants cos_cache and sin_cache");
    require(node.has_input(1) == node.has_input(2), "key and value are wanted together, or packed with query");
    for (const int i : {1, 2, int(kPast), kPast + 1, int(kCos), int(kSin)})
      if (node.has_input(i) && node.input_type(i) != node.input_type(0))
        fail(Code::not_supported, "query is ", device::name(node.input_type(0)), " and input ", i, " is ",
             device::name(node.input_type(i)), "; they must be of one type");
  }

  void run(Context& context) const override {
    check_attributes();
    CacheExtension cache;
    cache.heads = heads_, cache.kv_heads = kv_heads_;
    take_new_rows(context, cache);
    require(cache.size <= 256, "heads have ", cache.size, " values; there are kernels for up to 256");
    const int64_t total = total_keys(context.input(kTotal), cache.rows);
    const BlockSparseLayout blocks = take_blocks(context, total);
    take_buffers(context, cache, kPast, total);
    const Tensor& lengths = context.input(kLengths);
    require(lengths.shape == Shape{cache.batch}, "key_total_sequence_lengths has shape ", lengths.shape.str(), "; [",
            cache.batch, "] is wanted");
    cache.last_keys = lengths.as<const int32_t>();
    cache.beyond_last = 1;
    cache.from_start = cache.rows == total;
    if (rotates_) take_rotation(context, cache, kCos, total, interleaved_);
    const Tensor y = context.output(0, {cache.batch, cache.rows, heads_ * cache.size});
    take_present(context, cache);
    if (cache.batch == 0) return;
    const int64_t token = heads_ * cache.size;
    HeadRows q{cache.q, cache.rows * cache.q_token, cache.size, cache.q_token};
    if (cache.cos && y.count() > 0) {
      cache.rotated_q = context.scratch(y.bytes());
      q = {cache.rotated_q, cache.rows * token, cache.size, token};
    }
    extend_cache(context, cache);
    if (y.count() == 0) return;

    Attend problem;
    problem.type = cache.type;
    problem.batch = cache.batch, problem.heads = heads_, problem.kv_heads = kv_heads_;
    problem.queries = cache.rows, problem.keys = cache.from_start ? cache.rows : cache.capacity;
    problem.head_size = problem.value_size = cache.size;
    problem.q = q;
    problem.k =
        problem.v = {cache.keys, kv_heads_ * cache.capacity * cache.size, cache.capacity * cache.size, cache.size};
    problem.v.data = cache.values;
    problem.y = {y.data, cache.rows * token, cache.size, token};
    problem.scale = scale_of(scale_, cache.size);
    problem.visible.after = 0;
    problem.visible.from_end = !cache.from_start;
    problem.visible.last_keys = cache.last_keys;
    problem.visible.beyond_last = 1;
    attend_block_sparse(context, problem, blocks);
  }

 private:
  enum Input { kPast = 3, kBegins = 5, kColumns, kTotal, kLengths, kCos, kSin };

  // Not in the constructor, for the CPU EP would divide by what a node that is declined has there.
  void check_attributes() const {
    require(heads_ > 0 && kv_heads_ > 0 && heads_ % kv_heads_ == 0, "num_heads is ", heads_, " and kv_num_heads is ",
            kv_heads_, "; the former must be a multiple of the latter");
    require(heads_ < kSizeCap / 4, "num_heads is ", heads_, "; it must be below ", kSizeCap / 4);
    require(block_ == 16 || block_ == 32 || block_ == 64 || block_ == 128, "sparse_block_size is ", block_,
            "; it must be 16, 32, 64 or 128");
    require(std::isfinite(scale_), "scale is ", scale_, "; it must be finite");
  }
  BlockSparseLayout take_blocks(Context& context, int64_t total) const {
    const Tensor &begins = context.input(kBegins), &columns = context.input(kColumns);
    const bool fit = begins.shape.rank() == 2 && columns.shape.rank() == 2 && begins.shape[0] == columns.shape[0];
    require(fit && begins.shape[0] > 0 && begins.shape[1] > 1 && heads_ % begins.shape[0] == 0, "block_row_indices ",
            begins.shape.str(), " and block_col_indices ", columns.shape.str(), " must have as many layouts, of which ",
            "num_heads (", heads_, ") is a multiple, and the former a number more than blocks");
    require(begins.count() < kIntCap && columns.count() < kIntCap, "block_row_indices ", begins.shape.str(),
            " and block_col_indices ", columns.shape.str(), " are more than there are kernels for");
    const int64_t rows = begins.shape[1] - 1;
    require(total <= rows * block_, "total_sequence_length is ", total, ", and the layout of block_row_indices ",
            begins.shape.str(), " ends with key ", rows * block_);
    return {begins.as<const int32_t>(), columns.as<const int32_t>(), begins.shape[0], rows, columns.shape[1], block_};
  }

  int64_t heads_, kv_heads_, block_;
  bool rotates_, interleaved_;
  float scale_;
};

}  // namespace

std::vector<OpRow> sparse_attention_rows() {
  return {{.domain = kMicrosoft,
           .name = "SparseAttention",
           .since = 1,
           .types = {in(0, kTypes), in(1, kTypes), in(2, kTypes), in(3, kTypes), in(4, kTypes), in(5, {Type::i32}),
                     in(6, {Type::i32}), in(7, {Type::i32}), in(8, {Type::i32}), in(9, kTypes), in(10, kTypes)},
           .make = make<SparseAttention>,
           .host_inputs = {7},
           .may_reuse = {{3, 1}, {4, 2}}}};
}

}  // namespace encore::ops
