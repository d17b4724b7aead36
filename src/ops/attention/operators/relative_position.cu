// com.microsoft's RelativePositionBias and GatedRelativePositionBias, which make biases for scores.
#include <algorithm>
#include <cmath>

#include "device/divide.h"
#include "device/fault.h"
#include "device/memory.h"
#include "device/transform.h"
#include "ops/attention/inputs/heads.h"
#include "ops/dispatch.h"
#include "ops/elementwise/curves.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;

// Distances up to half of the buckets have one each; what is further shares them, by its logarithm.
template <class T>
struct BiasOfDistance {
  const T* table;  // [head, bucket], whatever its shape says
  T* y;
  Divider by_keys, by_rows;
  int buckets, side, exact;  // `side`: those of one direction
  bool both_ways;
  float per_log;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t key, query;
    const int64_t head = by_rows(by_keys(i, key), query);
    const int64_t ahead = key - query;
    const bool after = ahead > 0;
    const int64_t distance = !after ? -ahead : both_ways ? ahead : 0;
    int bucket = int(distance);
    if (distance >= exact) {
      const float further = std::log(float(distance) / float(exact)) / per_log * float(side - exact);
      bucket = further < float(side - 1 - exact) ? exact + int(further) : side - 1;
    }
    if (both_ways && after) bucket += side;
    y[i] = table[head * buckets + bucket];
  }
};

class RelativePositionBias : public Op {
 public:
  explicit RelativePositionBias(const NodeInfo& node)
      : furthest_(node.get_int("max_distance", 0)), both_ways_(node.get_int("is_bidirectional", 0) == 1) {
    require(furthest_ > 0 && furthest_ < int64_t(1) << 31, "max_distance is ", furthest_, "; it must be above zero");
  }

  void run(Context& context) const override {
    const Tensor& table = context.input(0);
    require(table.shape.rank() == 2, "bias_table has shape ", table.shape.str(), "; [buckets, heads] is wanted");
    const int64_t buckets = table.shape[0], heads = table.shape[1];
    const int64_t side = both_ways_ ? buckets / 2 : buckets, exact = side / 2;
    require(exact > 0 && buckets < int64_t(1) << 24, "bias_table has shape ", table.shape.str(), "; there must be ",
            both_ways_ ? 4 : 2, " buckets at least");
    require(furthest_ > exact, "max_distance is ", furthest_, "; with ", buckets, " buckets it must be above ", exact);
    const int64_t length = length_of(context.input(1), "query_length");
    require(length == length_of(context.input(2), "key_length"), "query_length is ", length,
            " and key_length another; they must be the same");
    const Tensor y = context.output(0, {1, heads, length, length});
    dispatch(TypeList<float, Half>{}, y.type, [&]<class T> {
      device::for_each_index(context.stream(), y.count(),
                             BiasOfDistance<T>{table.as<const T>(), y.as<T>(), Divider(length, y.count()),
                                               Divider(length, y.count()), int(buckets), int(side), int(exact),
                                               both_ways_, std::log(float(furthest_) / float(exact))});
    });
  }

 private:
  static int64_t length_of(const Tensor& tensor, const char* what) {
    require(tensor.count() == 1, what, " has shape ", tensor.shape.str(), "; it must be one number");
    const int64_t length = *tensor.as<const int64_t>();
    require(length >= 0 && length < int64_t(1) << 31, what, " is ", length, "; it cannot be negative or beyond 2^31");
    return length;
  }

  int64_t furthest_;
  bool both_ways_;
};

// A gate wants only the sums of its half of the columns, so these are added up first: [gate, size], and of the bias.
template <class T>
struct SumColumns {
  const T *weight, *bias;
  float* sums;  // [2 * size + 2]
  int size, half;
  DEVICE_FN void operator()(int64_t i) const {
    const bool of_bias = i >= 2 * size;
    const int gate = of_bias ? int(i) - 2 * size : int(i) / size, row = of_bias ? 0 : int(i) % size;
    const T* const from = (of_bias ? bias : weight + int64_t(row) * 2 * half) + gate * half;
    float sum = 0;
    for (int j = 0; j < half; ++j) sum += float(from[j]);
    sums[i] = sum;
  }
};

template <class T>
struct MakeGates {
  const T *query, *query_bias, *eco;
  const float* sums;
  const int32_t* offsets;  // of packed tokens, or null
  float* gates;            // [batch, head, row]
  int64_t tokens, places;
  Divider by_heads, by_rows;
  int heads, size;
  device::FaultRef fault;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t head, row;
    const int64_t token = by_heads(i, head);
    int64_t place = offsets ? offsets[token] : token;
    if (place < 0 || place >= places) {
      fault.report(device::FaultKind::index_out_of_range, place, places);
      return;
    }
    const int64_t batch = by_rows(place, row);
    const T* const from = query + (token * heads + head) * size;
    const T* const more = query_bias + head * size;
    float update = sums[2 * size], reset = sums[2 * size + 1];
    for (int j = 0; j < size; ++j) {
      const float value = (token < tokens ? float(from[j]) : 0.f) + float(more[j]);
      update += value * sums[j];
      reset += value * sums[size + j];
    }
    gates[(batch * heads + head) * by_rows.divisor() + row] =
        sigmoid(update) * (sigmoid(reset) * float(eco[head]) - 1) + 2;
  }
};

template <class T>
struct GateBias {
  static constexpr int kPack = device::pack_size<T>();
  const float* gates;
  const T* bias;  // [head, row, key]
  T* y;
  Divider by_packs, by_places;
  int keys;
  bool aligned;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack, place;
    const int64_t row = by_packs(i, pack), first = pack * kPack;
    by_places(row, place);
    const int count = keys - first < kPack ? int(keys - first) : kPack;
    const float gate = gates[row];
    auto values = device::load_pack<kPack>(bias + place * keys + first, aligned, count);
    UNROLL for (int j = 0; j < kPack; ++j) values.at[j] = T(gate * float(values.at[j]));
    device::store_pack(y + row * keys + first, values, aligned, count);
  }
};

class GatedRelativePositionBias : public Op {
 public:
  explicit GatedRelativePositionBias(const NodeInfo& node) : heads_(node.get_int("num_heads", 0)) {
    require(heads_ > 0, "num_heads is ", heads_, "; it must be above zero");
  }

  void run(Context& context) const override {
    const Tensor &query = context.input(0), &query_bias = context.input(1), &bias = context.input(2),
                 &weight = context.input(3), &weight_bias = context.input(4), &eco = context.input(5);
    const Tensor* offsets = context.find_input(6);
    const Shape &shape = query.shape, &whole = bias.shape;
    require(shape.rank() == (offsets ? 2 : 3) && shape.back() % heads_ == 0, "query_layer has shape ", shape.str(),
            "; [", offsets ? "token" : "batch, row", ", width] is wanted, of which ", heads_,
            " heads divide the width");
    const Shape& places = offsets ? offsets->shape : shape;
    require(places.rank() >= 2 && (!offsets || places.rank() == 2), "token_offset has shape ", places.str(),
            "; [batch, row] is wanted");
    const int64_t batch = places[0], rows = places[1], size = shape.back() / heads_, all = checked_product(batch, rows);
    const int64_t tokens = offsets ? shape[0] : all;
    require(tokens <= all, "there are ", tokens, " tokens, and offsets for ", all);
    require(weight.shape.rank() == 2 && weight.shape[0] == size && weight.shape[1] % 2 == 0 &&
                weight_bias.shape == Shape{weight.shape[1]},
            "weight has shape ", weight.shape.str(), " and bias ", weight_bias.shape.str(), "; [", size,
            ", 2 n] and [2 n] are wanted");
    require(query_bias.shape == Shape{shape.back()} && eco.count() == heads_, "query_bias has shape ",
            query_bias.shape.str(), " and eco_a ", eco.shape.str(), "; [", shape.back(), "] and ", heads_,
            " numbers are wanted");
    require(whole == Shape{1, heads_, rows, rows}, "rel_pos has shape ", whole.str(), "; [1,", heads_, ",", rows, ",",
            rows, "] is wanted");
    require(size < kIntCap / 2 && weight.shape[1] < kIntCap, "query_layer has shape ", shape.str(), " and weight ",
            weight.shape.str(), "; that is more than there are kernels for");
    const Tensor y = context.output(0, {batch, heads_, rows, rows});
    if (y.count() == 0) return;

    const int64_t count = checked_product(all, heads_);
    auto* const sums = static_cast<float*>(context.scratch(size_t(2 * size + 2) * sizeof(float)));
    auto* const gates = static_cast<float*>(context.scratch(size_t(count) * sizeof(float)));
    if (offsets) device::fill(context.stream(), gates, 0, size_t(count) * sizeof(float));  // some may name no place
    dispatch(TypeList<float, Half>{}, y.type, [&]<class T> {
      using Gate = GateBias<T>;
      constexpr int kPack = Gate::kPack;
      device::for_each_index(
          context.stream(), 2 * size + 2,
          SumColumns<T>{weight.as<const T>(), weight_bias.as<const T>(), sums, int(size), int(weight.shape[1] / 2)});
      device::for_each_index(
          context.stream(), count,
          MakeGates<T>{query.as<const T>(), query_bias.as<const T>(), eco.as<const T>(), sums,
                       offsets ? offsets->as<const int32_t>() : nullptr, gates, tokens, all, Divider(heads_, count),
                       Divider(rows, count), int(heads_), int(size), context.fault()});
      const int64_t packs = (rows + kPack - 1) / kPack, moves = checked_product(count, packs);
      const bool aligned = rows % kPack == 0 && device::is_pack_aligned<kPack>(bias.as<const T>()) &&
                           device::is_pack_aligned<kPack>(y.as<T>());
      device::for_each_index(context.stream(), moves,
                             Gate{gates, bias.as<const T>(), y.as<T>(), Divider(packs, moves),
                                  Divider(heads_ * rows, moves), int(rows), aligned});
    });
  }

 private:
  int64_t heads_;
};

}  // namespace

std::vector<OpRow> relative_position_rows() {
  const Types types{Type::f32, Type::f16};
  return {{.domain = kMicrosoft,
           .name = "RelativePositionBias",
           .since = 1,
           .types = {in(0, types), in(1, {Type::i64}), in(2, {Type::i64})},
           .make = make<RelativePositionBias>,
           .host_inputs = {1, 2}},
          {.domain = kMicrosoft,
           .name = "GatedRelativePositionBias",
           .since = 1,
           .types = {in(0, types), in(6, {Type::i32})},
           .make = make<GatedRelativePositionBias>}};
}

}  // namespace encore::ops
