// ReverseSequence and TensorScatter: sequences of a batch, for each of which device memory says how long it is or where
// it goes on.
#include "device/divide.h"
#include "device/fault.h"
#include "device/launch.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/index/indices.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::FaultRef;

// [first, second, inner], of which one is time and the other the batch.
template <class T>
struct ReverseTime {
  const T* in;
  T* out;
  const int64_t* lengths;
  int64_t time, inner;
  bool time_first;
  Divider by_inner, by_second;
  FaultRef fault;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t column, second;
    const int64_t first = by_second(by_inner(i, column), second);
    const int64_t at = time_first ? first : second, length = lengths[time_first ? second : first];
    if (length < 0 || length > time) fault.report(device::FaultKind::bad_value, length, time);
    const int64_t steps = at < length && length <= time ? length - 1 - 2 * at : 0;  // to the right
    out[i] = in[i + steps * (time_first ? by_second.divisor() : 1) * inner];
  }
};

class ReverseSequence : public Op {
 public:
  explicit ReverseSequence(const NodeInfo& node) : time_first_(node.get_int("time_axis", 0) == 0) {
    const int64_t time = node.get_int("time_axis", 0), batch = node.get_int("batch_axis", 1);
    require((time == 0 && batch == 1) || (time == 1 && batch == 0), "time_axis is ", time, " and batch_axis ", batch,
            "; one must be 0, the other 1");
  }
  void run(Context& context) const override {
    const Tensor &in = context.input(0), &lengths = context.input(1);
    require(in.shape.rank() >= 2, "the input has shape ", in.shape.str(), "; it must have two dimensions or more");
    const int64_t time = in.shape[time_first_ ? 0 : 1], batch = in.shape[time_first_ ? 1 : 0];
    require(lengths.shape.rank() == 1 && lengths.shape[0] == batch, "sequence_lens has shape ", lengths.shape.str(),
            " for a batch of ", batch);
    const Tensor out = context.output(0, in.shape);
    if (out.count() == 0) return;
    int64_t inner = in.shape.count(2, in.shape.rank());
    size_t bytes = device::size_bytes(in.type);
    widen(inner, bytes, {in.data, out.data});
    const int64_t count = time * batch * inner;
    dispatch_size(bytes, [&]<class T>() {
      device::for_each_index(
          context.stream(), count,
          ReverseTime<T>{in.as<const T>(), out.as<T>(), lengths.as<const int64_t>(), time, inner, time_first_,
                         Divider(inner, count), Divider(in.shape[1], count), context.fault()});
    });
  }

 private:
  bool time_first_;
};

// cache[batch, prefix, (begin[batch] + step), inner] = update[batch, prefix, step, inner]
template <class T>
struct WriteSteps {
  T* cache;
  const T* update;
  const int64_t* begins;  // null: zeros
  int64_t cache_steps, inner;
  bool circular;
  Divider by_inner, by_steps, by_prefixes;  // of the update
  FaultRef fault;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t column, step, prefix;
    const int64_t row = by_steps(by_inner(i, column), step), batch = by_prefixes(row, prefix);
    int64_t begin = begins ? begins[batch] : 0;
    if (circular) {
      begin %= cache_steps;
      if (begin < 0) begin += cache_steps;
    } else if (begin < 0 || begin > cache_steps - by_steps.divisor()) {
      return fault.report(device::FaultKind::bad_value, begin, cache_steps - by_steps.divisor());
    }
    int64_t at = begin + step;
    if (at >= cache_steps) at -= cache_steps;
    cache[(row * cache_steps + at) * inner + column] = update[i];
  }
};

class TensorScatter : public Op {
 public:
  explicit TensorScatter(const NodeInfo& node) : axis_(node.get_int("axis", -2)) {
    circular_ = read_choice<bool>(node, "mode", "linear", {{"linear", false}, {"circular", true}});
  }
  void run(Context& context) const override {
    const Tensor &past = context.input(0), &update = context.input(1);
    const Tensor* const begins = context.find_input(2);
    const int rank = past.shape.rank(), axis = checked_axis(axis_, rank);
    require(axis > 0, "axis 0 is the batch; a sequence goes along another one");
    require(update.type == past.type, "the update is not of the type of the cache");
    require(update.shape.rank() == rank && update.shape.with(axis, past.shape[axis]) == past.shape &&
                update.shape[axis] <= past.shape[axis],
            "an update of shape ", update.shape.str(), " does not fit a cache of shape ", past.shape.str());
    require(!begins || (begins->shape.rank() == 1 && begins->shape[0] == past.shape[0]), "write_indices has shape ",
            begins ? begins->shape.str() : "", " for a batch of ", past.shape[0]);
    const Tensor out = context.output(0, past.shape);
    copy_bytes(context.stream(), past.data, out.data, int64_t(past.bytes()));
    if (update.count() == 0) return;
    const int64_t prefixes = past.shape.count(1, axis), rows = past.shape.count(0, axis);
    int64_t inner = past.shape.count(axis + 1, rank);
    size_t bytes = device::size_bytes(past.type);
    widen(inner, bytes, {out.data, update.data});
    const int64_t steps = update.shape[axis], count = rows * steps * inner;
    dispatch_size(bytes, [&]<class T>() {
      device::for_each_index(
          context.stream(), count,
          WriteSteps<T>{out.as<T>(), update.as<const T>(), begins ? begins->as<const int64_t>() : nullptr,
                        past.shape[axis], inner, circular_, Divider(inner, count), Divider(steps, count),
                        Divider(prefixes, count), context.fault()});
    });
  }

 private:
  int64_t axis_;
  bool circular_;
};

}  // namespace

std::vector<OpRow> reverse_sequence_rows() {
  const Types indices{Type::i64};
  return {
      {.name = "ReverseSequence",
       .since = 10,
       .types = {in(0, kNumbers | kBool), in(1, indices)},
       .make = make<ReverseSequence>},
      {.name = "TensorScatter",
       .since = 24,
       .types = {in(0, kFixedSize), in(2, indices)},
       .make = make<TensorScatter>,
       .may_reuse = {{0, 0}}},
  };
}

}  // namespace encore::ops
