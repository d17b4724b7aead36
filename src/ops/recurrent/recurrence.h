// RNN, GRU and LSTM: what they have in common. The products of all steps' inputs with W are one product; after it come
// the steps, each with its product of the last state with R, and a cell that makes the next state of both. Both
// directions are done at once.
#pragma once
#include <span>

#include "ops/op.h"
#include "ops/recurrent/squash.h"

namespace encore::ops {

enum class Cell { rnn, gru, lstm };
constexpr int gates_of(Cell cell) { return cell == Cell::rnn ? 1 : cell == Cell::gru ? 3 : 4; }

// One run of one node. Addresses are of device memory; what is absent is null.
struct Recurrence {
  Cell cell;
  Type type;
  int64_t steps, batch, input, hidden;
  int directions = 1;
  bool backward = false;     // the first direction; a second one always is
  bool batch_first = false;  // X is [batch, steps, input], else [steps, batch, input]; Y and the states alike
  bool reset_after = false;  // GRU: the reset gate comes after the product with R
  bool coupled = false;      // LSTM: the forget gate is 1 less the input gate
  bool tf32 = false;
  bool in_bytes = false;  // states are rounded as if they were quantized to 8 bits before they are multiplied
  double clip = 0;        // of what activations are given
  Squash squash[2][3];
  const void *x = nullptr, *w = nullptr, *r = nullptr, *b = nullptr, *p = nullptr;
  const void *initial_h = nullptr, *initial_c = nullptr;
  void *y = nullptr, *y_h = nullptr, *y_c = nullptr;
  const int32_t* lengths = nullptr;  // of the sequences, if not all are `steps` long
  int64_t longest = 0;               // of them
  // Made on the way.
  const void* x_gates = nullptr;  // X W', a row for each row of X
  void *h = nullptr, *c = nullptr;

  int64_t states() const { return directions * batch * hidden; }
  Shape y_shape() const {
    return batch_first ? Shape{batch, steps, directions, hidden} : Shape{steps, directions, batch, hidden};
  }
  // Sigmoid for gates and tanh for the rest, or an RNN's relu.
  bool has_usual_activations() const {
    for (int direction = 0; direction < directions; ++direction) {
      const Squash* const own = squash[direction];
      if (cell == Cell::rnn) {
        if (own->kind != squash[0][0].kind) return false;
        if (own->kind != Squash::Kind::tanh && own->kind != Squash::Kind::relu) return false;
        continue;
      }
      if (own[0].kind != Squash::Kind::sigmoid || own[1].kind != Squash::Kind::tanh) return false;
      if (cell == Cell::lstm && own[2].kind != Squash::Kind::tanh) return false;
    }
    return true;
  }
};

// Whether one kernel does a step: it is then over sooner than two can be launched.
constexpr bool is_few(int64_t sequences) { return sequences <= 8; }

// Of several layers each has the states of the one below as its X, and may_persist() says that they can be one launch.
void run_recurrence(Context& context, std::span<const Recurrence> layers);

// rounded = values, as if they were quantized to 8 bits and back; `count` neighbours share a scale, which is chosen as
// DynamicQuantizeLinear does.
void round_to_bytes(StreamRef stream, const float* values, int64_t groups, int64_t count, float* rounded);

// Those of sequences, which only the device knows, of which none is longer than there are steps: a bad one is reported,
// and is none.
const int32_t* checked_lengths(Context& context, const Recurrence& r, const int32_t* lengths);

// The steps alone.
void run_rnn(Context& context, const Recurrence& recurrence);
void run_gru(Context& context, const Recurrence& recurrence);
void run_lstm(Context& context, const Recurrence& recurrence);

}  // namespace encore::ops
