// Libraries that a session's first run will need, which takes a while the first time in a process. What goes wrong is
// told when they are needed.
#pragma once
#include "device/dnn.h"

namespace encore::device {

void open_blas(int device) noexcept;  // which chooses an algorithm
void open_dnn(Dnn& dnn) noexcept;     // which loads engines, if plans are kept (DnnSettings::tuning)

}  // namespace encore::device
