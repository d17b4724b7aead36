// NGramHashMapping and VarlenNGramHashMapping: hashes of each token and those before it.
#include <limits>
#include <type_traits>

#include "device/divide.h"
#include "device/fault.h"
#include "ops/dispatch.h"
#include "ops/next_state.h"
#include "ops/op.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::FaultRef;

// Tokens [begin, end) of all, which are a sequence.
struct Sequence {
  int64_t index, begin, end;
};

// The tokens of sequences and what was before them: `state` tokens of each.
template <class T>
struct History {
  const T *ids, *past;                      // past may be null
  const int32_t *segments, *past_segments;  // both may be null
  const T* eos;                             // null, or one value
  T pad;
  int64_t state;

  // What stands for tokens that are not there, or that a boundary hides.
  DEVICE_FN T nothing() const { return eos ? *eos : pad; }
  // `at` counts from the sequence's begin.
  DEVICE_FN T id(const Sequence& sequence, int64_t at) const {
    if (at >= 0) return ids[sequence.begin + at];
    return past && state + at >= 0 ? past[(sequence.index + 1) * state + at] : nothing();
  }
  DEVICE_FN int32_t segment(const Sequence& sequence, int64_t at) const {
    if (at < 0 && past_segments && state + at >= 0) return past_segments[(sequence.index + 1) * state + at];
    return segments[sequence.begin + (at < 0 ? 0 : at)];
  }
};

// Hashes, then states after the first tokens of each sequence, then those after the last.
template <class T>
struct HashNGrams {
  using U = std::make_unsigned_t<T>;
  History<T> history;
  const T *multipliers, *sizes, *offsets;  // offsets may be null
  const int32_t *ends, *captured;          // where sequences end, after a zero; or null: each has `length` tokens
  T *hashes, *captures, *present;
  int32_t* present_segments;
  int64_t tokens, sequences, length, capacity;
  bool resets;  // a token that ends a text hides what is before it
  Divider by_heads, by_orders, by_length, by_state, by_capacity;
  FaultRef fault;

  DEVICE_FN void operator()(int64_t i) const {
    const int64_t hash_count = tokens * by_heads.divisor(), capture_count = sequences * capacity * history.state;
    if (i < hash_count) return hash(i);
    if (i - hash_count < capture_count) return capture(i - hash_count);
    keep(i - hash_count - capture_count);
  }

 private:
  DEVICE_FN void hash(int64_t i) const {
    int64_t head, rest;
    const int64_t token = by_heads(i, head), order = by_orders(head, rest) + 2;
    const Sequence sequence = of_token(token);
    hashes[i] = 0;
    const T size = sizes[head];
    if (!has(sequence, token) || size <= 0) return;
    const int64_t at = token - sequence.begin;
    U mix = U(history.id(sequence, at)) * U(multipliers[0]);
    bool hidden = false;
    for (int64_t k = 1; k < order; ++k) {
      T id = history.id(sequence, at - k);
      hidden |= resets && id == history.nothing();
      if (history.segments && !hidden)
        hidden = history.segment(sequence, at - k) != history.segment(sequence, at - k + 1);
      if (hidden) id = history.nothing();
      mix ^= U(id) * U(multipliers[k]);
    }
    T remainder = T(T(mix) % size);
    if (remainder < 0) remainder = T(remainder + size);
    hashes[i] = T(U(remainder) + (offsets ? U(offsets[head]) : U(0)));
  }
  DEVICE_FN void capture(int64_t i) const {
    int64_t slot, number;
    const int64_t index = by_capacity(by_state(i, slot), number);
    const Sequence sequence = of_index(index);
    const bool is_there = is_sound(sequence) && number < captured[index] && number < sequence.end - sequence.begin;
    captures[i] = is_there ? history.id(sequence, number + 1 - history.state + slot) : history.pad;
  }
  DEVICE_FN void keep(int64_t i) const {
    int64_t slot;
    const Sequence sequence = of_index(by_state(i, slot));
    const bool sound = is_sound(sequence);
    const int64_t at = sequence.end - sequence.begin - history.state + slot;
    if (present) present[i] = sound ? history.id(sequence, at) : history.pad;
    if (present_segments)
      present_segments[i] = sound && sequence.end > sequence.begin ? history.segment(sequence, at) : 0;
  }
  DEVICE_FN Sequence of_index(int64_t index) const {
    if (ends) return {index, ends[index], ends[index + 1]};
    return {index, index * length, (index + 1) * length};
  }
  DEVICE_FN Sequence of_token(int64_t token) const {
    int64_t low = 0, high = sequences;
    if (!ends) low = by_length(token, high);
    while (low + 1 < high && ends) {
      const int64_t middle = low + (high - low) / 2;
      (ends[middle] <= token ? low : high) = middle;
    }
    return of_index(low);
  }
  DEVICE_FN bool is_sound(const Sequence& sequence) const {
    if (!ends || (sequence.begin >= 0 && sequence.begin < sequence.end && sequence.end <= tokens)) return true;
    fault.report(device::FaultKind::bad_value, sequence.end, tokens);
    return false;
  }
  DEVICE_FN bool has(const Sequence& sequence, int64_t token) const {
    if (!is_sound(sequence)) return false;
    if (sequence.begin <= token && token < sequence.end) return true;
    fault.report(device::FaultKind::bad_value, sequence.begin, token);
    return false;
  }
};

template <bool kPacked>
class NGramHash : public Op {
 public:
  explicit NGramHash(const NodeInfo& node)
      : most_(node.get_int("max_ngram_size", 0)),
        heads_(node.get_int("n_head_per_ngram", 0)),
        pad_(node.get_int("pad_id", 0)),
        capacity_(kPacked ? node.get_int("state_update_capacity", 0) : 0),
        resets_(node.get_int("reset_on_eos", 0) != 0) {
    require(most_ >= 2 && most_ < int64_t(1) << 31, "max_ngram_size is ", most_, "; it must be at least 2");
    require(heads_ >= 1, "n_head_per_ngram is ", heads_, "; it must be at least 1");
    require(node.input_type(0) != Type::i32 || pad_ == int32_t(pad_), "pad_id ", pad_, " does not fit int32");
    require(capacity_ >= 0 && capacity_ <= 8, "state_update_capacity is ", capacity_, "; it must be from 0 to 8");
    if constexpr (kPacked)
      require(node.has_input(9) == (capacity_ > 0), "capture_count is wanted if state_update_capacity is, and only so");
  }

  void run(Context& context) const override {
    constexpr int kFirst = kPacked ? 4 : 3;  // of the optional ones
    const Tensor &ids = context.input(0), &multipliers = context.input(1), &sizes = context.input(2);
    const Tensor *past = context.find_input(kFirst), *offsets = context.find_input(kFirst + 1),
                 *eos = context.find_input(kFirst + 2), *segments = context.find_input(kFirst + 3),
                 *past_segments = kPacked ? context.find_input(8) : nullptr,
                 *captured = kPacked ? context.find_input(9) : nullptr, *ends = kPacked ? &context.input(3) : nullptr;
    const int64_t state = most_ - 1, all_heads = checked_product(state, heads_);
    require(ids.shape.rank() == (kPacked ? 1 : 2), "input_ids ", ids.shape.str(), " must have ",
            kPacked ? "one dimension" : "two dimensions");
    if (kPacked)
      require(ends->shape.rank() == 1 && ends->count() >= 2, "cumulative_sequence_length ", ends->shape.str(),
              " must be a vector of two values or more");
    const int64_t sequences = kPacked ? ends->count() - 1 : ids.shape[0];
    const auto check = [&](const Tensor* given, const Shape& wanted, const char* what) {
      if (given) require(given->shape == wanted, what, " ", given->shape.str(), " must be ", wanted.str());
    };
    require(multipliers.shape.rank() == 1 && multipliers.count() >= most_, "multipliers ", multipliers.shape.str(),
            " must be a vector of max_ngram_size ", most_, " values or more");
    check(&sizes, {all_heads}, "vocab_sizes");
    check(past, {sequences, state}, "past_ids");
    check(offsets, {all_heads}, "head_offsets");
    check(segments, ids.shape, "segment_ids");
    check(past_segments, {sequences, state}, "past_segment_ids");
    check(captured, {sequences}, "capture_count");
    require(!eos || eos->shape.rank() == 0, "eos_token_id ", eos ? eos->shape.str() : "", " must be a scalar");
    require(segments || (!past_segments && !(kPacked && context.wants_output(2))),
            "past_segment_ids and present_segment_ids want segment_ids");

    std::vector<int64_t> dims(ids.shape.dims().begin(), ids.shape.dims().end());
    dims.push_back(all_heads);
    const Tensor hashes = context.output(0, Shape(dims));
    const Shape states{sequences, state};
    const Tensor present = context.wants_output(1) ? context.output(1, states) : Tensor();
    const Tensor present_segments = kPacked && context.wants_output(2) ? context.output(2, states) : Tensor();
    const Tensor captures =
        kPacked && context.wants_output(3) ? context.output(3, Shape{sequences, capacity_, state}) : Tensor();
    const bool keeps = present.data || present_segments.data;
    const int64_t capacity = captures.data ? capacity_ : 0;
    const int64_t count = hashes.count() + sequences * capacity * state + (keeps ? states.count() : 0);
    if (count == 0) return;
    const NextState next(context, present, past), next_segments(context, present_segments, past_segments);
    dispatch(TypeList<int32_t, int64_t>{}, ids.type, [&]<class T>() {
      const auto at = [](const Tensor* tensor) { return tensor ? tensor->as<const T>() : nullptr; };
      const auto ints = [](const Tensor* tensor) { return tensor ? tensor->as<const int32_t>() : nullptr; };
      const int64_t length = kPacked ? 0 : ids.shape[1];
      device::for_each_index(context.stream(), count,
                             HashNGrams<T>{
                                 {at(&ids), at(past), ints(segments), ints(past_segments), at(eos), T(pad_), state},
                                 at(&multipliers),
                                 at(&sizes),
                                 at(offsets),
                                 ints(ends),
                                 ints(captured),
                                 hashes.as<T>(),
                                 captures.as<T>(),
                                 static_cast<T*>(next.data()),
                                 static_cast<int32_t*>(next_segments.data()),
                                 ids.count(),
                                 sequences,
                                 length,
                                 capacity,
                                 resets_ && eos,
                                 Divider(all_heads, count),
                                 Divider(heads_, count),
                                 Divider(length, count),
                                 Divider(state, count),
                                 Divider(capacity, count),
                                 context.fault(),
                             });
    });
    next.settle(context.stream());
    next_segments.settle(context.stream());
  }

 private:
  int64_t most_, heads_, pad_, capacity_;
  bool resets_;
};

// Scores of tokens that would end a row of `size` tokens which is there already are the least there is.
struct BlockRepeats {
  const int64_t* ids;
  float* scores;
  int64_t length, tokens, size;
  Divider by_rows;  // of tokens that there are
  FaultRef fault;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t first;
    const int64_t batch = by_rows(i, first);
    const int64_t *own = ids + batch * length, *last = own + length - (size - 1);
    for (int64_t k = 0; k + 1 < size; ++k)
      if (own[first + k] != last[k]) return;
    const int64_t token = own[first + size - 1];
    if (token >= 0 && token < tokens)
      scores[batch * tokens + token] = -std::numeric_limits<float>::infinity();
    else
      fault.report(device::FaultKind::index_out_of_range, token, tokens);
  }
};

class NGramRepeatBlock : public Op {
 public:
  explicit NGramRepeatBlock(const NodeInfo& node) : size_(node.get_int("ngram_size", 0)) {
    require(size_ >= 1, "ngram_size is ", size_, "; it must be at least 1");
  }
  void run(Context& context) const override {
    const Tensor &ids = context.input(0), &scores = context.input(1);
    require(ids.shape.rank() == 2 && scores.shape.rank() == 2 && ids.shape[0] == scores.shape[0], "input_ids ",
            ids.shape.str(), " and scores ", scores.shape.str(), " must have two dimensions, the first alike");
    const Tensor out = context.output(0, scores.shape);
    const int64_t length = ids.shape[1], rows = length < size_ ? 0 : length - size_ + 1;
    const int64_t count = scores.shape[0] * rows;
    copy_bytes(context.stream(), scores.data, out.data, int64_t(out.bytes()));
    if (count > 0)
      device::for_each_index(context.stream(), count,
                             BlockRepeats{ids.as<const int64_t>(), out.as<float>(), length, scores.shape[1], size_,
                                          Divider(rows, count), context.fault()});
  }

 private:
  int64_t size_;
};

}  // namespace

std::vector<OpRow> ngram_hash_rows() {
  const std::vector<TypeRule> types = {in(0, kIndices)};
  return {
      {.domain = kMicrosoft, .name = "NGramHashMapping", .since = 1, .types = types, .make = make<NGramHash<false>>},
      {.domain = kMicrosoft,
       .name = "VarlenNGramHashMapping",
       .since = 1,
       .types = types,
       .make = make<NGramHash<true>>},
      {.domain = kMicrosoft,
       .name = "NGramRepeatBlock",
       .since = 1,
       .types = {in(0, {Type::i64}), in(1, {Type::f32})},
       .make = make<NGramRepeatBlock>,
       .may_reuse = {{1, 0}}}};
}

}  // namespace encore::ops
