// Gates in ONNX's order, i, o, f and the candidate; peepholes in the order i, o, f.
#include "ops/recurrent/step.h"

namespace encore::ops {
namespace {

template <class T>
struct LstmCell {
  static constexpr int kGates = 4;
  bool coupled;
  DEVICE_FN void operator()(const RecurrenceView<T>& s, const Place& at, const Compute<T>* product, const T*,
                            T* next_h) const {
    using C = Compute<T>;
    const auto sum = [&](int gate) { return s.input(at, gate) + product[gate] + s.both_biases(at, gate); };
    const auto peephole = [&](int which, C cell) {
      return s.peepholes ? C(s.peepholes[(at.direction * 3 + which) * s.hidden + at.unit]) * cell : C(0);
    };
    const C last = s.c[at.state];
    const C in = s.activated(at, 0, sum(0) + peephole(0, last));
    const C kept = coupled ? C(1) - in : s.activated(at, 0, sum(2) + peephole(2, last));
    const C cell = kept * last + in * s.activated(at, 1, sum(3));
    const C out = s.activated(at, 0, sum(1) + peephole(1, cell));
    s.c[at.state] = cell;
    if (at.last && s.y_c) s.y_c[at.direction * s.end_direction + at.sequence * s.end_sequence + at.unit] = T(cell);
    s.store(at, T(out * s.squash[at.direction][2](cell)), next_h);
  }
};

}  // namespace

void run_lstm(Context& context, const Recurrence& r) {
  dispatch(FloatList{}, r.type, [&]<class T>() {
    Steps<T> steps(context, r);
    T* const rounded = r.in_bytes ? static_cast<T*>(context.scratch(size_t(r.states()) * sizeof(T))) : nullptr;
    for (int64_t step = 0; step < r.longest; ++step) {
      if constexpr (std::is_same_v<T, float>)
        if (rounded) round_to_bytes(context.stream(), steps.h(step), r.directions, r.batch * r.hidden, rounded);
      steps.run(LstmCell<T>{r.coupled}, step, 0, rounded ? rounded : steps.h(step));
    }
  });
}

}  // namespace encore::ops
