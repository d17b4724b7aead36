// What makes the next states of a unit from its products, whoever made them. `View` is what a kernel sees of a
// recurrence: RecurrenceView of step.h, or PersistentView of persistent.cu.
#pragma once
#include "device/transform.h"
#include "ops/recurrent/recurrence.h"

namespace encore::ops {

using device::Compute;

// Where a cell is.
struct Place {
  int direction;
  int64_t sequence, unit;
  int64_t state;  // its index in [direction, sequence, unit]
  int64_t time;   // the step of the sequence that is taken now
  bool alive;     // the sequence is not at its end yet
  bool last;      // it is now
};

// Where their inputs and outputs lie, in elements.
struct SequencePlaces {
  int64_t steps, batch, hidden;
  bool backward;
  const int32_t* lengths;
  int64_t x_time, x_sequence, x_direction;  // distances
  int64_t y_time, y_sequence, y_direction, end_sequence, end_direction;

  explicit SequencePlaces(const Recurrence& r)
      : steps(r.steps),
        batch(r.batch),
        hidden(r.hidden),
        backward(r.backward),
        lengths(r.lengths),
        x_direction(gates_of(r.cell) * r.hidden) {
    const int64_t x_row = r.directions * x_direction, y_row = r.directions * r.hidden;
    x_time = r.batch_first ? x_row : r.batch * x_row;
    x_sequence = r.batch_first ? r.steps * x_row : x_row;
    y_time = r.batch_first ? y_row : r.batch * y_row;
    y_direction = end_direction = r.batch_first ? r.hidden : r.batch * r.hidden;
    y_sequence = r.batch_first ? r.steps * y_row : r.hidden;
    end_sequence = r.batch_first ? y_row : r.hidden;
  }

  DEVICE_FN bool is_turned(int direction) const { return backward || direction == 1; }
  DEVICE_FN Place place(int direction, int64_t sequence, int64_t unit, int64_t step) const {
    const int64_t length = lengths ? lengths[sequence] : steps;
    return {direction,
            sequence,
            unit,
            (direction * batch + sequence) * hidden + unit,
            is_turned(direction) ? length - 1 - step : step,
            step < length,
            step == length - 1};
  }
  DEVICE_FN int64_t x_at(const Place& at) const {
    return at.time * x_time + at.sequence * x_sequence + at.direction * x_direction + at.unit;
  }
  DEVICE_FN int64_t y_at(const Place& at) const {
    return at.time * y_time + at.direction * y_direction + at.sequence * y_sequence + at.unit;
  }
  DEVICE_FN int64_t end_at(const Place& at) const {
    return at.direction * end_direction + at.sequence * end_sequence + at.unit;
  }
};

template <class C>
DEVICE_FN C clipped(C value, C clip) {
  return value < -clip ? -clip : value > clip ? clip : value;
}

// h' = f(x W' + h R' + biases)
template <class T>
struct RnnCell {
  static constexpr int kGates = 1;
  template <class View>
  DEVICE_FN void operator()(const View& s, const Place& at, const Compute<T>* product, const T*, T* next_h) const {
    s.store(at, T(s.activated(at, 0, s.input(at, 0) + product[0] + s.both_biases(at, 0))), next_h);
  }
};

template <class T>
DEVICE_FN T blended(Compute<T> update, Compute<T> candidate, T last_h) {
  return T((Compute<T>(1) - update) * candidate + update * Compute<T>(last_h));
}

// Gates in ONNX's order: update, reset, candidate. The reset gate comes after the product with R.
template <class T>
struct GruCell {
  static constexpr int kGates = 3;
  template <class View>
  DEVICE_FN void operator()(const View& s, const Place& at, const Compute<T>* product, const T* last_h,
                            T* next_h) const {
    using C = Compute<T>;
    const C update = s.activated(at, 0, s.input(at, 0) + product[0] + s.both_biases(at, 0));
    const C reset = s.activated(at, 0, s.input(at, 1) + product[1] + s.both_biases(at, 1));
    const C candidate =
        s.activated(at, 1, s.input(at, 2) + s.bias_of(at, 2, false) + reset * (product[2] + s.bias_of(at, 2, true)));
    s.store(at, blended(update, candidate, last_h[at.state]), next_h);
  }
};

// Gates in ONNX's order, i, o, f and the candidate; peepholes in the order i, o, f.
template <class T>
struct LstmCell {
  static constexpr int kGates = 4;
  bool coupled;
  template <class View>
  DEVICE_FN void operator()(const View& s, const Place& at, const Compute<T>* product, const T*, T* next_h) const {
    using C = Compute<T>;
    const auto sum = [&](int gate) { return s.input(at, gate) + product[gate] + s.both_biases(at, gate); };
    const C last = s.cell_of(at);
    const C in = s.activated(at, 0, sum(0) + s.peephole(at, 0, last));
    const C kept = coupled ? C(1) - in : s.activated(at, 0, sum(2) + s.peephole(at, 2, last));
    const C cell = kept * last + in * s.activated(at, 1, sum(3));
    const C out = s.activated(at, 0, sum(1) + s.peephole(at, 1, cell));
    s.keep_cell(at, cell);
    s.store(at, T(out * s.squashed(at, 2, cell)), next_h);
  }
};

}  // namespace encore::ops
