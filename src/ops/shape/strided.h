// Copies between two strided views of the same shape: the engine behind every op that only moves elements.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "device/stream.h"
#include "ops/shape/interleave.h"
#include "ops/tensor.h"

namespace encore::ops {

// Dimensions with a stride for each side, in elements; outermost first. Strides may be zero (repeat) or negative.
class StridedCopy {
 public:
  // Neighbours that both sides walk alike become one.
  void add(int64_t dim, int64_t in_stride, int64_t out_stride);
  // Copies elements of `element_bytes` bytes: 1, 2, 4, 8 or 16. In host memory it is done at once.
  void run(device::StreamRef stream, const void* in, void* out, size_t element_bytes, Where where = Where::device);

  // Copies elements of 2 or 4 bits. The output's strides are those of a dense tensor.
  void run_packed(device::StreamRef stream, const void* in, void* out, int element_bits);

 private:
  void run_on_host(const char* in, char* out, size_t element_bytes, size_t first_dim) const;
  void widen(const void* in, void* out, size_t& element_bytes);
  bool is_small() const;
  void run_halves(device::StreamRef stream, const char* in, char* out, size_t element_bytes) const;
  std::optional<Interleaving> as_interleaving() const;
  int find_read_dim() const;
  bool is_dense() const;
  bool has_runs(size_t element_bytes) const;
  int aligned_bytes(const void* out, size_t element_bytes) const;

  struct Dim {
    int64_t size, in_stride, out_stride;
  };
  std::vector<Dim> dims_;
  int64_t count_ = 1;
};

// The same bytes elsewhere, or nothing if they are there already.
void copy_bytes(device::StreamRef stream, const void* in, void* out, int64_t bytes, Where where = Where::device);

}  // namespace encore::ops
