// Pictures of a few planes that become channels last: a value of each plane, side by side.
#pragma once
#include <cstddef>
#include <cstdint>

#include "device/stream.h"

namespace encore::ops {

// What is made is dense.
struct Interleaving {
  int64_t images, planes, size;        // values of a plane, which are neighbours
  int64_t image_stride, plane_stride;  // in elements
};

// Does it, if there is a kernel for so many planes of such elements.
bool interleave(device::StreamRef stream, const Interleaving& pictures, const void* in, void* out,
                size_t element_bytes);
// Two to four planes of elements of two or four bytes, and zeros where there are fewer.
void interleave_by_four(device::StreamRef stream, const Interleaving& pictures, const void* in, void* out,
                        size_t element_bytes);

}  // namespace encore::ops
