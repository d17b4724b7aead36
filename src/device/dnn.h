// Convolutions of f32, f16 and bf16 through cuDNN's graph API (it scales doubles by a float: f64 is refused). The
// virtual GPU has none: there, and on machines without cuDNN, the ops room lowers convolutions to im2col and a matrix
// product.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/stream.h"
#include "device/type.h"

namespace encore::device {

// y = relu?(conv(x, w) + bias? + residual?), NC[D]HW and OI[D]HW, one to three spatial dimensions. With `transposed`
// the roles of x and y swap: w is I(O/groups)HW as ONNX has it for ConvTranspose.
struct Convolution {
  Type type = Type::f32;
  std::vector<int64_t> x, w, y;  // full dimensions
  std::vector<int64_t> pads_begin, pads_end, strides, dilations;
  int64_t groups = 1;
  bool transposed = false;
  bool has_bias = false, has_residual = false, relu = false;
  bool tf32 = false;

  bool operator==(const Convolution&) const = default;
};
std::string describe(const Convolution& problem);

struct DnnSettings {
  bool wanted = true;   // if not, it is never available
  bool measure = true;  // time the candidates for each new problem, else trust cuDNN's heuristics
};

class Dnn {
 public:
  explicit Dnn(int device, DnnSettings settings = {});  // opens nothing yet
  ~Dnn();
  Dnn(const Dnn&) = delete;

  // Whether cuDNN could be opened; if not, `why` says which version was wanted and where it was looked for.
  bool available(std::string* why = nullptr);
  struct Prepared {
    size_t workspace_bytes;
    bool fused;  // if not, cuDNN has the convolution alone: run() leaves bias, residual and relu to the caller
  };
  // Builds (or finds) the plan for this problem; measuring it uses memory and time of the device, but not the stream.
  // During a capture a plan must be there already: Error{capture_forbidden} asks for a warm-up with these shapes.
  // Plans, and so this object, must outlive the graphs that were captured.
  Prepared prepare(StreamRef stream, const Convolution& problem);
  // Every address must be aligned to 16 bytes.
  void run(StreamRef stream, const Convolution& problem, const void* x, const void* w, const void* bias,
           const void* residual, void* y, void* workspace);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace encore::device
