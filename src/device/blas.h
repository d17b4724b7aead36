// Matrix products: cuBLASLt on CUDA, Eigen on the virtual GPU.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/stream.h"
#include "device/type.h"

namespace encore::device {

enum class Epilogue { none, relu, gelu_tanh };

// c = epilogue(alpha * op(a) * op(b) + beta * addend + bias), all row-major. a is m×k (k×m if transpose_a), b is k×n
// (n×k if transpose_b), c is m×n; lda, ldb, ldc are the distances between stored rows. `bias` has n values of c's type.
// The addend is c itself, or another matrix that lies as c does.
// Types: f32, f64, f16, bf16 for all three; f16, bf16 into f32; i8 × i8 (or u8 on the virtual GPU) into i32.
struct Gemm {
  Type type = Type::f32;    // of a and b
  Type output = Type::f32;  // of c and bias
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t batch = 1;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;  // between batches, in elements; zero repeats the matrix
  float alpha = 1, beta = 0;
  Epilogue epilogue = Epilogue::none;
  bool has_bias = false;
  bool tf32 = false;  // f32 may use tensor cores with 10 bits of mantissa
  // b is a constant of the model, which nothing in a stream ever writes: it may be read before earlier work is done.
  bool constant_b = false;

  bool operator==(const Gemm&) const = default;
};
void check(const Gemm& gemm);  // throws for what neither back end does; gemm() begins with it
std::string describe(const Gemm& gemm);

inline constexpr int kMostProductParts = 4;
// The same in parts of its depth, as batches of floats, to which the reader adds the bias, too.
Gemm in_parts(const Gemm& gemm, int parts);
// How many there can be, up to `most`: one of what is made as a whole only.
int possible_parts(const Gemm& gemm, int most);

// Where a product's scratch memory comes from: device memory which stays valid until what is enqueued is done. Asked
// again, it may hand out the same, for later work of the same stream.
class Workspace {
 public:
  virtual void* at_least(size_t bytes) = 0;

 protected:
  ~Workspace() = default;
};

struct BlasSettings {
  bool tune = false;      // time the best few algorithms for each new problem, outside of captures
  int max_tuning_ms = 0;  // for one problem; zero: no limit
};

// What tuning found for one problem.
struct TunedProduct {
  std::string problem;
  int candidates = 0, chosen = 0;  // chosen: 0 is the library's own first choice
  double first_us = 0, chosen_us = 0;
};

// One per session and device; safe to use from many threads. Algorithms are cached by problem and alignment.
class Blas {
 public:
  // Opens the library; Error{library_missing} says which, which version and where it looked.
  explicit Blas(int device, BlasSettings settings = {});
  ~Blas();
  Blas(const Blas&) = delete;

  // The workspace is asked for no more than the problem needs. Tuning, which happens in the first call that is not
  // captured, uses more of it, and waits for the stream. Without `addend` it is c; another one lies nowhere in c.
  void gemm(StreamRef stream, const Gemm& gemm, const void* a, const void* b, void* c, const void* bias,
            Workspace& workspace, const void* addend = nullptr);
  // In how many parts to make a product whose reader can add them up: more than one where that takes less time. Tuning
  // tells, as it does for gemm(); without it, what the library would do, which adds up parts by another kernel where it
  // splits the depth. It is the same each time, and one for what is first seen in a capture though it could be tuned.
  // `c` is aligned to 256 bytes.
  int parts_of(StreamRef stream, const Gemm& gemm, const void* a, const void* b, const void* bias,
               Workspace& workspace);
  std::vector<TunedProduct> tuned() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace encore::device
