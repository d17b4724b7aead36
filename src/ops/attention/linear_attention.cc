// LinearAttention: a state for each head that every token updates, and that every token's queries are answered from.
//
// A block keeps kColumns columns of one head's state in registers, its rows divided among kSlices groups of threads.
#include <cmath>

#include "device/launch.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Blocks;
using device::Pack;
using device::PerThread;

constexpr int kColumns = 32, kSlices = 8, kThreads = kColumns * kSlices;
constexpr int kMostRows = 256;

// Numbers of one of the three types, which is the same for all threads.
struct Numbers {
  void* data;
  Type type;
  DEVICE_FN float load(int64_t i) const {
    if (type == Type::f32) return static_cast<const float*>(data)[i];
    if (type == Type::f16) return float(static_cast<const Half*>(data)[i]);
    return float(static_cast<const BFloat16*>(data)[i]);
  }
  DEVICE_FN void store(int64_t i, float value) const {
    if (type == Type::f32)
      static_cast<float*>(data)[i] = value;
    else if (type == Type::f16)
      static_cast<Half*>(data)[i] = Half(value);
    else
      static_cast<BFloat16*>(data)[i] = BFloat16(value);
  }
};
Numbers numbers_of(const Tensor* tensor) {
  return tensor ? Numbers{tensor->data, tensor->type} : Numbers{nullptr, Type::f32};
}

template <int kRows>  // of the state that a thread keeps
struct AttendLinearly {
  struct Shared {
    float query[kMostRows], key[kMostRows], kept[kMostRows];  // kept: what decay leaves of each row
    float part[kSlices][kColumns];
  };
  Numbers query, key, value, past, decay, beta, y, present;
  int64_t tokens;
  int rows, columns, column_blocks, heads, queries;  // of a head; queries: how many heads of the query share it
  bool decay_by_row, beta_by_head, corrects;
  float scale;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const int64_t head = b.index() / column_blocks, batch = head / heads;  // head: of all batches
    const int first = int(b.index() % column_blocks) * kColumns, in_batch = int(head % heads);
    PerThread<Pack<float, kRows>, kThreads> state;
    b.threads([&](int t, Shared&) {
      const int column = first + t % kColumns;
      UNROLL for (int i = 0; i < kRows; ++i) {
        const int row = i * kSlices + t / kColumns;
        const bool there = past.data && row < rows && column < columns;
        state[t].at[i] = there ? past.load((head * rows + row) * columns + column) : 0;
      }
    });
    for (int64_t token = 0; token < tokens; ++token) {
      const int64_t place = (batch * tokens + token) * heads + in_batch;  // of the key, value, decay and beta
      b.threads([&](int t, Shared& s) {
        for (int row = t; row < rows; row += kThreads) {
          s.key[row] = key.load(place * rows + row);
          s.kept[row] = !decay.data ? 1.f : expf(decay.load(decay_by_row ? place * rows + row : place));
        }
      });
      b.threads([&](int t, Shared& s) {
        float sum = 0;
        UNROLL for (int i = 0; i < kRows; ++i) {
          const int row = i * kSlices + t / kColumns;
          if (row >= rows) continue;
          state[t].at[i] *= s.kept[row];
          sum += s.key[row] * state[t].at[i];
        }
        if (corrects) s.part[t / kColumns][t % kColumns] = sum;
      });
      b.threads([&](int t, Shared& s) {
        const int column = first + t % kColumns;
        if (column >= columns) return;
        float change = value.load(place * columns + column);
        if (corrects) change -= total(s, t % kColumns);
        if (beta.data) change *= beta.load(beta_by_head ? place : batch * tokens + token);
        UNROLL for (int i = 0; i < kRows; ++i) {
          const int row = i * kSlices + t / kColumns;
          if (row < rows) state[t].at[i] += s.key[row] * change;
        }
      });
      for (int q = 0; q < queries; ++q) {
        const int64_t asked = place * queries + q;
        b.threads([&](int t, Shared& s) {
          for (int row = t; row < rows; row += kThreads) s.query[row] = query.load(asked * rows + row);
        });
        b.threads([&](int t, Shared& s) {
          float sum = 0;
          UNROLL for (int i = 0; i < kRows; ++i) {
            const int row = i * kSlices + t / kColumns;
            if (row < rows) sum += s.query[row] * state[t].at[i];
          }
          s.part[t / kColumns][t % kColumns] = sum;
        });
        b.threads([&](int t, Shared& s) {
          if (t < kColumns && first + t < columns) y.store(asked * columns + first + t, scale * total(s, t));
        });
      }
    }
    b.threads([&](int t, Shared&) {
      const int column = first + t % kColumns;
      UNROLL for (int i = 0; i < kRows; ++i) {
        const int row = i * kSlices + t / kColumns;
        if (row < rows && column < columns && present.data)
          present.store((head * rows + row) * columns + column, state[t].at[i]);
      }
    });
  }

 private:
  DEVICE_FN static float total(const Shared& s, int column) {
    float sum = 0;
    UNROLL for (int slice = 0; slice < kSlices; ++slice) sum += s.part[slice][column];
    return sum;
  }
};

class LinearAttention : public Op {
 public:
  explicit LinearAttention(const NodeInfo& node)
      : heads_(node.get_int("kv_num_heads", 0)),
        query_heads_(node.get_int("q_num_heads", 0)),
        scale_(node.get_float("scale", 0)) {
    require(heads_ > 0 && heads_ <= INT32_MAX && query_heads_ > 0 && query_heads_ % heads_ == 0, "q_num_heads is ",
            query_heads_, " and kv_num_heads ", heads_, "; the first must be a multiple of the second");
    const std::string rule = node.get_string("update_rule", "gated_delta");
    gated_ = rule == "gated" || rule == "gated_delta";
    corrects_ = rule == "delta" || rule == "gated_delta";
    require(gated_ || corrects_ || rule == "linear", "update_rule is \"", rule,
            "\", not linear, gated, delta or gated_delta");
    require(node.has_input(4) == gated_, "update_rule ", rule, gated_ ? " needs" : " takes no", " decay");
    require(node.has_input(5) == corrects_, "update_rule ", rule, corrects_ ? " needs" : " takes no", " beta");
    if (const auto dims = node.input_dims(0); dims && dims->size() == 3) check_rows(dims->back() / query_heads_);
  }
  void run(Context& context) const override {
    const Tensor &query = context.input(0), &key = context.input(1), &value = context.input(2);
    const Tensor *past = context.find_input(3), *decay = context.find_input(4), *beta = context.find_input(5);
    require(query.shape.rank() == 3, "query has shape ", query.shape.str(), ", not (batch, tokens, heads x size)");
    const int64_t batch = query.shape[0], tokens = query.shape[1], rows = query.shape[2] / query_heads_;
    const Shape keys{batch, tokens, checked_product(heads_, rows)};
    require(query.shape[2] == rows * query_heads_, "query's ", query.shape[2], " numbers are not divisible by ",
            query_heads_, " heads");
    check_rows(rows);
    require(key.shape == keys, "key has shape ", key.shape.str(), ", not ", keys.str());
    require(
        value.shape.rank() == 3 && value.shape[0] == batch && value.shape[1] == tokens && value.shape[2] % heads_ == 0,
        "value has shape ", value.shape.str(), "; ", batch, " x ", tokens, " x a multiple of ", heads_, " is wanted");
    const int64_t columns = value.shape[2] / heads_;
    require(columns <= INT32_MAX, "value's heads are too large");
    const Shape state{batch, heads_, rows, columns};
    require(!past || past->shape == state, "past_state has another shape than ", state.str());
    const Shape per_head{batch, tokens, heads_};
    require(!decay || decay->shape == per_head || decay->shape == keys, "decay has another shape than ", per_head.str(),
            " and ", keys.str());
    const bool beta_by_head = beta && beta->shape == per_head;
    require(!beta || beta_by_head || beta->shape == Shape{batch, tokens, 1}, "beta has another shape than ",
            per_head.str(), " and one for each token");
    const Tensor y = context.output(0, Shape{batch, tokens, checked_product(query_heads_, columns)});
    const Tensor present = context.wants_output(1) ? context.output(1, state) : Tensor();
    const int64_t column_blocks = (columns + kColumns - 1) / kColumns;
    const int64_t blocks = checked_product(checked_product(batch, heads_), column_blocks);
    const auto launch = [&]<int kRows>() {
      device::block_kernel<typename AttendLinearly<kRows>::Shared>(
          context.stream(), Blocks{blocks, kThreads},
          AttendLinearly<kRows>{numbers_of(&query), numbers_of(&key), numbers_of(&value), numbers_of(past),
                                numbers_of(decay), numbers_of(beta), numbers_of(&y), numbers_of(&present), tokens,
                                int(rows), int(columns), int(column_blocks), int(heads_), int(query_heads_ / heads_),
                                decay && decay->shape == keys && keys != per_head, beta_by_head, corrects_,
                                scale_ != 0 ? scale_ : 1 / std::sqrt(float(rows))});
    };
    if (rows <= 8 * kSlices) return launch.template operator()<8>();
    if (rows <= 16 * kSlices) return launch.template operator()<16>();
    launch.template operator()<32>();
  }

 private:
  static void check_rows(int64_t rows) {
    if (rows > kMostRows) fail(Code::not_supported, "keys of ", rows, " numbers a head; ", kMostRows, " is the most");
  }

  int64_t heads_, query_heads_;
  float scale_;
  bool gated_, corrects_;
};

}  // namespace

std::vector<OpRow> linear_attention_rows() {
  const Types types = kHalves | Types{Type::f32};
  return {{.name = "LinearAttention",
           .since = 27,
           .types = {in(0, types), in(3, types), in(4, types), in(5, types), out(1, types)},
           .make = make<LinearAttention>}};
}

}  // namespace encore::ops
