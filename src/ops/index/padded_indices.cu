#include "ops/index/padded_indices.h"

#include "device/divide.h"
#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;

// Rows are of several elements each, as where axes behind them are merged with theirs.
template <class T>
struct PaddedIndices {
  const T *indices, *keys;
  const int64_t* rows;  // that there were, and that are added
  T* out;
  int64_t dim;  // of the data's axis
  int64_t column;
  bool has_rows;
  Divider by_columns, by_row, by_rows;
  DEVICE_FN void operator()(int64_t i) const {
    const int64_t before = rows[0], added = rows[1];
    int64_t at, row, rest;
    by_columns(i, at);
    out[i] = indices[i];
    if (before == 0 || at != column) return;
    by_rows(by_row(i, rest), row);
    if (has_rows && row >= before) {
      out[i] = 0;
      return;
    }
    const int64_t row_size = keys == indices ? dim / (before + added) : 1, all = before * row_size, key = keys[i];
    if (all == 0) return;
    const int64_t times = key / all - int64_t(key % all < 0);  // rounded down
    out[i] = T(indices[i] + times * added * row_size);
  }
};

class PaddedIndicesOp : public Op {
 public:
  explicit PaddedIndicesOp(const NodeInfo& node)
      : axis_(int(node.get_int("axis", 0))),
        rows_(int(node.get_int("rows", -1))),
        tuples_(node.get_int("tuples", 0) != 0) {}
  void run(Context& context) const override {
    const Tensor &data = context.input(0), &indices = context.input(1), &rows = context.input(2);
    const Tensor* const keys = context.find_input(3);
    require(axis_ < data.shape.rank() && rows_ < indices.shape.rank(), "indices ", indices.shape.str(), " into ",
            data.shape.str(), " have no such axis");
    require(!keys || keys->shape == indices.shape, "a part of the indices has another shape");
    const Tensor out = context.output(0, indices.shape);
    const int64_t count = out.count(), columns = tuples_ ? indices.shape[indices.shape.rank() - 1] : 1;
    if (count == 0) return;
    const int64_t row = rows_ < 0 ? count : indices.shape.count(rows_ + 1, indices.shape.rank());
    const int64_t length = rows_ < 0 ? 1 : indices.shape[rows_];
    dispatch(TypeList<int32_t, int64_t>{}, indices.type, [&]<class T> {
      device::for_each_index(
          context.stream(), count,
          PaddedIndices<T>{indices.as<const T>(), keys ? keys->as<const T>() : indices.as<const T>(),
                           rows.as<const int64_t>(), out.as<T>(), data.shape[axis_], tuples_ ? axis_ : 0, rows_ >= 0,
                           Divider(columns, count), Divider(row, count), Divider(length, count)});
    });
  }

 private:
  const int axis_, rows_;
  const bool tuples_;
};

}  // namespace

std::unique_ptr<Op> make_padded_indices(const NodeInfo& node) { return std::make_unique<PaddedIndicesOp>(node); }

}  // namespace encore::ops
