// The stream where an application's work goes that names none: CUDA's legacy default stream, which is torch's too
// unless it is told otherwise. Other streams do not wait for it by themselves.
#pragma once
#include "device/stream.h"

namespace encore::device {

StreamRef default_stream(int device);

// Makes `later` wait for what is on `earlier` by now, by way of the event, which the caller has to itself. One of the
// two is a default stream. Nothing happens if they are the same, or while somebody captures a stream for which the
// default stream waits by itself: CUDA allows no use of it then, and the capture would be lost.
void order_default_stream(StreamRef later, StreamRef earlier, EventRef event);

// Waits for the device's default stream, and the calling thread's own (cudaStreamPerThread).
void synchronize_default_streams(int device);

}  // namespace encore::device
