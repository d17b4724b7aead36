// h' = f(x W' + h R' + biases)
#include "ops/recurrent/step.h"

namespace encore::ops {
namespace {

template <class T>
struct RnnCell {
  static constexpr int kGates = 1;
  DEVICE_FN void operator()(const RecurrenceView<T>& s, const Place& at, const Compute<T>* product, const T*,
                            T* next_h) const {
    s.store(at, T(s.activated(at, 0, s.input(at, 0) + product[0] + s.both_biases(at, 0))), next_h);
  }
};

}  // namespace

void run_rnn(Context& context, const Recurrence& r) {
  dispatch(FloatList{}, r.type, [&]<class T>() {
    Steps<T> steps(context, r);
    for (int64_t step = 0; step < r.longest; ++step) steps.run(RnnCell<T>{}, step, 0, steps.h(step));
  });
}

}  // namespace encore::ops
