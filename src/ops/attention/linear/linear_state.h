// A state for each head that every token updates, and that every token's queries are answered from:
//   state = kept * state + key (rate * (value - kept * state^T key))^T,  y = scale * state^T query
// where a rule may leave out what is kept, the rate, and what is subtracted from the value.
#pragma once
#include "ops/op.h"

namespace encore::ops {

inline constexpr int64_t kMostStateRows = 256;

// Numbers of one of float and the half types, which is the same for all threads.
struct AnyNumbers {
  void* data = nullptr;
  Type type = Type::f32;

  AnyNumbers() = default;
  explicit AnyNumbers(const Tensor* tensor) {
    if (tensor) data = tensor->data, type = tensor->type;
  }
  DEVICE_FN float load(int64_t i) const {
    if (type == Type::f32) return static_cast<const float*>(data)[i];
    if (type == Type::f16) return float(static_cast<const device::Half*>(data)[i]);
    return float(static_cast<const device::BFloat16*>(data)[i]);
  }
  DEVICE_FN void store(int64_t i, float value) const {
    if (type == Type::f32)
      static_cast<float*>(data)[i] = value;
    else if (type == Type::f16)
      static_cast<device::Half*>(data)[i] = device::Half(value);
    else
      static_cast<device::BFloat16*>(data)[i] = device::BFloat16(value);
  }
};

// One number for each head of each token: element token * step + head * by_head.
struct PerHead {
  AnyNumbers numbers;
  int64_t step = 0, by_head = 1;
};

// Heads of the tokens: token `t` has its first head's numbers at t * step + first.
struct TokenHeads {
  AnyNumbers numbers;
  int64_t step = 0, first = 0;
};

struct LinearState {
  int64_t batches = 0;
  int64_t tokens = 0;                // of each batch; with `ends` of all of them
  const int32_t* ends = nullptr;     // where each batch's tokens begin, and one more: on the device
  int heads = 0;                     // of the state
  int rows = 0, columns = 0;         // of a head's state: the sizes of a key and of a value
  int key_share = 1;                 // heads of the state that share a key's head
  int query_share = 1, queries = 1;  // the same for queries; queries of each head of the state. One of both is 1
  TokenHeads query, key, value;
  PerHead decay, rate;        // no numbers: none
  bool decay_by_row = false;  // a head has a number for each row
  bool corrects = false;      // what the state holds for the key is subtracted from the value
  float scale = 1;
  // What is done to numbers before their use.
  bool unit_keys = false;        // queries and keys are divided by their lengths
  float least_squares = 1e-12f;  // added to the squares that such a length is made of
  bool squash_rate = false;      // by a sigmoid
  // For a head: decay = -exp(scale) * softplus(decay + bias), or floor * sigmoid(exp(scale) * (decay + bias)).
  const float *gate_scale = nullptr, *gate_bias = nullptr;
  bool bias_by_row = false;  // a head has a bias for each row
  float gate_floor = 0;      // negative for the sigmoid

  // The state before the first token, if there is one, and after the last: [batch, head, rows, columns], or
  // transposed [batch, head, columns, rows].
  AnyNumbers past, present;
  bool transposed = false;
  int windows = 1;  // the last windows states are kept; one begins `batches` states after the other

  AnyNumbers y;  // [token, head of the result, columns]

  // The first tokens' changes: kept [most, head] (by row: [most, head, rows]), keys [most, key's head, rows], and what
  // is added along the keys [most, head, columns]; for each batch one after the other.
  float* changes = nullptr;
  const int32_t* change_counts = nullptr;
  int most_changes = 0;

  DEVICE_FN int64_t decays() const { return decay_by_row ? rows : 1; }  // of a head
};

void run_linear_state(Context& context, const LinearState& state);

}  // namespace encore::ops
