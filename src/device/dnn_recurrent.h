// Recurrent layers by cuDNN. The virtual GPU has none: there, and for what cuDNN has not, the ops room has its own way.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "device/dnn.h"
#include "device/stream.h"
#include "device/type.h"

namespace encore::device {

// tanh and sigmoid where they usually are, two biases, the reset gate of a GRU after the product with its weights.
struct RecurrentLayer {
  enum class Cell { rnn_relu, rnn_tanh, gru, lstm };
  Cell cell = Cell::lstm;
  Type type = Type::f32;  // f32, f64 or f16
  int64_t input = 0, hidden = 0;
  bool both_directions = false;
  bool tf32 = false;
};

// One layer; safe to use from many threads. It must outlive the graphs that were captured.
class DnnRecurrent {
 public:
  // Null, with the reason, if cuDNN could not be opened or has no such layer. It works with that Dnn's handle, which
  // must outlive it.
  static std::unique_ptr<DnnRecurrent> make(Dnn& dnn, const RecurrentLayer& layer, std::string* why = nullptr);
  ~DnnRecurrent();
  DnnRecurrent(const DnnRecurrent&) = delete;

  size_t weight_bytes() const;
  // Copies weights as ONNX has them to where cuDNN wants them: W, R or B, whole. What is not copied is to be zero.
  enum class Part { w, r, b };
  void pack(StreamRef stream, Part part, const void* from, void* weights);

  size_t workspace_bytes(int64_t steps, int64_t batch);
  // Whether all steps of so many sequences are one kernel, which no other way comes near.
  bool is_resident(int64_t batch) const;
  // x is [steps, batch, input] and y [steps, batch, directions * hidden]; states are [directions, batch, hidden]. First
  // states that are null are zero, and last ones that are null are not wanted. `lengths` has `steps`, for each
  // sequence.
  struct Run {
    int64_t steps, batch;
    const int32_t* lengths;
    const void *weights, *x, *h, *c;
    void *y, *y_h, *y_c, *workspace;
    size_t workspace_bytes;  // as workspace_bytes() says
  };
  void run(StreamRef stream, const Run& run);

 private:
  struct State;
  explicit DnnRecurrent(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace encore::device
