// Streams that are an application's, and stay so: nobody here destroys them.
#pragma once
#include "device/stream.h"

namespace encore::device {

// Throws Error{invalid_input} that says why if the handle is no stream of the device, or none that can capture when
// that is wanted.
StreamRef external_stream(void* native, int device, bool to_capture);

}  // namespace encore::device
