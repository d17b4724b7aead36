// If the reset gate comes before the product with R, a step is two.
#include "ops/recurrent/step.h"

namespace encore::ops {
namespace {

// The first half: the two gates.
template <class T>
struct GruGates {
  static constexpr int kGates = 2;
  Compute<T>* update;
  T* reset_h;  // the last state by the reset gate
  DEVICE_FN void operator()(const RecurrenceView<T>& s, const Place& at, const Compute<T>* product, const T* last_h,
                            T*) const {
    using C = Compute<T>;
    update[at.state] = s.activated(at, 0, s.input(at, 0) + product[0] + s.both_biases(at, 0));
    const C reset = s.activated(at, 0, s.input(at, 1) + product[1] + s.both_biases(at, 1));
    reset_h[at.state] = T(reset * C(last_h[at.state]));
  }
};

template <class T>
struct GruCandidate {
  static constexpr int kGates = 1;
  const Compute<T>* update;
  DEVICE_FN void operator()(const RecurrenceView<T>& s, const Place& at, const Compute<T>* product, const T* last_h,
                            T* next_h) const {
    const Compute<T> candidate = s.activated(at, 1, s.input(at, 2) + product[0] + s.both_biases(at, 2));
    s.store(at, blended(update[at.state], candidate, last_h[at.state]), next_h);
  }
};

}  // namespace

void run_gru(Context& context, const Recurrence& r) {
  dispatch(FloatList{}, r.type, [&]<class T>() {
    Steps<T> steps(context, r);
    if (r.reset_after) {
      for (int64_t step = 0; step < r.longest; ++step) steps.run(GruCell<T>{}, step, 0, steps.h(step));
      return;
    }
    auto* const update = static_cast<Compute<T>*>(context.scratch(size_t(r.states()) * sizeof(Compute<T>)));
    auto* const reset_h = static_cast<T*>(context.scratch(size_t(r.states()) * sizeof(T)));
    for (int64_t step = 0; step < r.longest; ++step) {
      steps.run(GruGates<T>{update, reset_h}, step, 0, steps.h(step));
      steps.run(GruCandidate<T>{update}, step, 2, reset_h);
    }
  });
}

}  // namespace encore::ops
