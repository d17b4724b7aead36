#include "ops/recurrent/step.h"

namespace encore::ops {

void run_rnn(Context& context, const Recurrence& r) {
  dispatch(FloatList{}, r.type, [&]<class T>() {
    Steps<T> steps(context, r);
    for (int64_t step = 0; step < r.longest; ++step) steps.run(RnnCell<T>{}, step, 0, steps.h(step));
  });
}

}  // namespace encore::ops
