// Recurrent layers by cuDNN's RNN functions.
#include "device/dnn_recurrent.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <vector>

#include "device/cuda/capture.h"
#include "device/cuda/check.h"
#include "device/cuda/dnn_handle.h"
#include "device/cuda/library.h"
#include "device/device.h"
#include "device/error.h"
#include "device/graph.h"
#include "device/memory.h"

namespace encore::device {
namespace {

// The functions of the library that are used here.
struct Functions {
  const cuda::Library& library = cuda::cudnn();
#define ENCORE_DNN(member, symbol) decltype(&symbol) member = library.find<decltype(symbol)>(#symbol)
  ENCORE_DNN(error_string, cudnnGetErrorString);
  ENCORE_DNN(create_layer, cudnnCreateRNNDescriptor);
  ENCORE_DNN(destroy_layer, cudnnDestroyRNNDescriptor);
  ENCORE_DNN(set_layer, cudnnSetRNNDescriptor_v8);
  ENCORE_DNN(create_dropout, cudnnCreateDropoutDescriptor);
  ENCORE_DNN(destroy_dropout, cudnnDestroyDropoutDescriptor);
  ENCORE_DNN(set_dropout, cudnnSetDropoutDescriptor);
  ENCORE_DNN(create_data, cudnnCreateRNNDataDescriptor);
  ENCORE_DNN(destroy_data, cudnnDestroyRNNDataDescriptor);
  ENCORE_DNN(set_data, cudnnSetRNNDataDescriptor);
  ENCORE_DNN(create_tensor, cudnnCreateTensorDescriptor);
  ENCORE_DNN(destroy_tensor, cudnnDestroyTensorDescriptor);
  ENCORE_DNN(set_tensor, cudnnSetTensorNdDescriptor);
  ENCORE_DNN(weight_bytes, cudnnGetRNNWeightSpaceSize);
  ENCORE_DNN(weight_place, cudnnGetRNNWeightParams);
  ENCORE_DNN(workspace_bytes, cudnnGetRNNTempSpaceSizes);
  ENCORE_DNN(forward, cudnnRNNForward);
#undef ENCORE_DNN
};
const Functions& dnn() {
  static const Functions functions;
  return functions;
}

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  const cudaError_t cause = cudaGetLastError();
  const Code code = cause != cudaSuccess                  ? cuda::code_of(cause)
                    : status == CUDNN_STATUS_ALLOC_FAILED ? Code::out_of_memory
                    : status >= CUDNN_STATUS_NOT_SUPPORTED && status < CUDNN_STATUS_INTERNAL_ERROR
                        ? Code::not_supported
                        : Code::device_failed;
  throw Error(code, text(dnn().error_string(status), cause == cudaSuccess ? "" : text(", ", cudaGetErrorString(cause))),
              call);
}

// A descriptor that goes with its scope.
template <class T>
class Descriptor {
 public:
  using Destroy = cudnnStatus_t (*)(T);
  Descriptor(cudnnStatus_t (*create)(T*), Destroy destroy, const char* call) : destroy_(destroy) {
    check(create(&it_), call);
  }
  ~Descriptor() { destroy_(it_); }
  Descriptor(const Descriptor&) = delete;
  operator T() const { return it_; }

 private:
  T it_ = nullptr;
  Destroy destroy_;
};

struct LayerDescriptor : Descriptor<cudnnRNNDescriptor_t> {
  LayerDescriptor() : Descriptor(dnn().create_layer, dnn().destroy_layer, "cudnnCreateRNNDescriptor") {}
};
struct DropoutDescriptor : Descriptor<cudnnDropoutDescriptor_t> {
  DropoutDescriptor() : Descriptor(dnn().create_dropout, dnn().destroy_dropout, "cudnnCreateDropoutDescriptor") {}
};
struct TensorDescriptor : Descriptor<cudnnTensorDescriptor_t> {
  TensorDescriptor() : Descriptor(dnn().create_tensor, dnn().destroy_tensor, "cudnnCreateTensorDescriptor") {}
};
struct DataDescriptor : Descriptor<cudnnRNNDataDescriptor_t> {
  // Sequences of the same length have no padding: they are as good as packed.
  DataDescriptor(cudnnDataType_t type, int64_t steps, int64_t batch, int64_t width)
      : Descriptor(dnn().create_data, dnn().destroy_data, "cudnnCreateRNNDataDescriptor") {
    const std::vector<int> lengths(static_cast<size_t>(batch), static_cast<int>(steps));
    check(dnn().set_data(*this, type, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED, int(steps), int(batch), int(width),
                         lengths.data(), nullptr),
          "cudnnSetRNNDataDescriptor");
  }
};

cudnnDataType_t type_of(Type type) {
  switch (type) {
    case Type::f32: return CUDNN_DATA_FLOAT;
    case Type::f64: return CUDNN_DATA_DOUBLE;
    case Type::f16: return CUDNN_DATA_HALF;
    default: fail(Code::not_supported, "cuDNN has no recurrent layers of ", name(type));
  }
}

cudnnRNNMode_t mode_of(RecurrentLayer::Cell cell) {
  switch (cell) {
    case RecurrentLayer::Cell::rnn_relu: return CUDNN_RNN_RELU;
    case RecurrentLayer::Cell::rnn_tanh: return CUDNN_RNN_TANH;
    case RecurrentLayer::Cell::gru: return CUDNN_GRU;
    default: return CUDNN_LSTM;
  }
}

// Which of ONNX's gates are cuDNN's, in its order.
std::vector<int> gates_of(RecurrentLayer::Cell cell) {
  switch (cell) {
    case RecurrentLayer::Cell::lstm: return {0, 2, 3, 1};  // i o f c: input, forget, new, output
    case RecurrentLayer::Cell::gru: return {1, 0, 2};      // z r h: reset, update, new
    default: return {0};
  }
}

}  // namespace

struct DnnRecurrent::State {
  DnnHandle& shared;
  RecurrentLayer layer;
  cudnnDataType_t type;
  size_t weight_bytes = 0;
  LayerDescriptor descriptor;
  DropoutDescriptor no_dropout;
  // One kernel for all steps, which keeps the weights in registers; null where cuDNN has none, or wants the weights in
  // another order.
  std::unique_ptr<LayerDescriptor> resident;
  std::atomic<bool> resident_serves = true;

  State(DnnHandle& opened, const RecurrentLayer& layer) : shared(opened), layer(layer), type(type_of(layer.type)) {
    const std::lock_guard lock(shared.mutex);
    const Current current(shared.device);
    check(dnn().set_dropout(no_dropout, shared.handle, 0, nullptr, 0, 0), "cudnnSetDropoutDescriptor");
    check(set(descriptor, CUDNN_RNN_ALGO_STANDARD), "cudnnSetRNNDescriptor_v8");
    check(dnn().weight_bytes(shared.handle, descriptor, &weight_bytes), "cudnnGetRNNWeightSpaceSize");
    if (layer.type == Type::f64 || layer.both_directions || layer.hidden % 128 != 0 || layer.hidden > kMostResident)
      return;
    auto other = std::make_unique<LayerDescriptor>();
    if (set(*other, CUDNN_RNN_ALGO_PERSIST_STATIC) == CUDNN_STATUS_SUCCESS && has_same_places(*other))
      resident = std::move(other);
    cudaGetLastError();
  }
  int directions() const { return layer.both_directions ? 2 : 1; }
  bool may_be_resident(int64_t batch) const { return resident && batch <= kMostTogether && resident_serves; }

 private:
  // It takes sequences one after the other: beyond these other ways are sooner done.
  static constexpr int64_t kMostResident = 512, kMostTogether = 3;

  cudnnStatus_t set(cudnnRNNDescriptor_t which, cudnnRNNAlgo_t algorithm) const {
    const bool plain = layer.type == Type::f64 || (layer.type == Type::f32 && !layer.tf32);
    return dnn().set_layer(which, algorithm, mode_of(layer.cell), CUDNN_RNN_DOUBLE_BIAS,
                           layer.both_directions ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, type,
                           layer.type == Type::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT,
                           plain ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH, int32_t(layer.input), int32_t(layer.hidden),
                           int32_t(layer.hidden), 1, no_dropout, CUDNN_RNN_PADDED_IO_DISABLED);
  }
  // Whether both descriptors want each gate's weights in the same place.
  bool has_same_places(cudnnRNNDescriptor_t other) const {
    size_t other_bytes = 0;
    if (dnn().weight_bytes(shared.handle, other, &other_bytes) != CUDNN_STATUS_SUCCESS || other_bytes != weight_bytes)
      return false;
    const TensorDescriptor matrix, bias;
    // Places are asked for, not touched.
    void* const base = reinterpret_cast<void*>(uintptr_t(1) << 32);
    for (int32_t gate = 0; gate < int32_t(2 * gates_of(layer.cell).size()); ++gate) {
      void* places[2][2] = {};
      for (int i = 0; i < 2; ++i)
        if (dnn().weight_place(shared.handle, i == 0 ? cudnnRNNDescriptor_t(descriptor) : other, 0, weight_bytes, base,
                               gate, matrix, &places[i][0], bias, &places[i][1]) != CUDNN_STATUS_SUCCESS)
          return false;
      if (places[0][0] != places[1][0] || places[0][1] != places[1][1]) return false;
    }
    return true;
  }
};

DnnRecurrent::DnnRecurrent(std::unique_ptr<State> state) : state_(std::move(state)) {}
DnnRecurrent::~DnnRecurrent() = default;

std::unique_ptr<DnnRecurrent> DnnRecurrent::make(Dnn& dnn, const RecurrentLayer& layer, std::string* why) {
  DnnHandle& handle = dnn.handle();
  try {
    {
      const std::lock_guard lock(handle.mutex);
      if (!handle.opened()) fail(Code::library_missing, handle.missing);
    }
    require(layer.input > 0 && layer.hidden > 0 && layer.input <= std::numeric_limits<int32_t>::max() &&
                layer.hidden <= std::numeric_limits<int32_t>::max(),
            "cuDNN has no recurrent layers of ", layer.input, " inputs and ", layer.hidden, " hidden units");
    return std::unique_ptr<DnnRecurrent>(new DnnRecurrent(std::make_unique<State>(handle, layer)));
  } catch (const Error& error) {
    if (why) *why = error.what();
    return nullptr;
  }
}

size_t DnnRecurrent::weight_bytes() const { return state_->weight_bytes; }

void DnnRecurrent::pack(StreamRef stream, Part part, const void* from, void* weights) {
  const RecurrentLayer& layer = state_->layer;
  const std::vector<int> gates = gates_of(layer.cell);
  const size_t hidden = size_t(layer.hidden), width = part == Part::w   ? size_t(layer.input)
                                                      : part == Part::r ? hidden
                                                                        : 1;
  const size_t bytes = hidden * width * size_bytes(layer.type);  // of one gate
  const TensorDescriptor matrix, bias;
  DnnHandle& shared = state_->shared;
  const std::lock_guard lock(shared.mutex);
  const auto copy_gate = [&](int direction, size_t gate, bool recurrent, size_t at) {
    void *matrix_at = nullptr, *bias_at = nullptr;
    check(dnn().weight_place(shared.handle, state_->descriptor, direction, state_->weight_bytes, weights,
                             int32_t(gate + (recurrent ? gates.size() : 0)), matrix, &matrix_at, bias, &bias_at),
          "cudnnGetRNNWeightParams");
    void* const to = part == Part::b ? bias_at : matrix_at;
    if (!to) fail(Code::internal, "cuDNN has no place for a gate's weights");
    copy(stream, to, static_cast<const char*>(from) + at * bytes, bytes);
  };
  for (int direction = 0; direction < state_->directions(); ++direction) {
    for (size_t gate = 0; gate < gates.size(); ++gate) {
      if (part != Part::b) {
        copy_gate(direction, gate, part == Part::r, size_t(direction) * gates.size() + size_t(gates[gate]));
        continue;
      }
      const size_t first = size_t(direction) * 2 * gates.size();  // Wb of all gates, then Rb
      copy_gate(direction, gate, false, first + size_t(gates[gate]));
      copy_gate(direction, gate, true, first + gates.size() + size_t(gates[gate]));
    }
  }
}

size_t DnnRecurrent::workspace_bytes(int64_t steps, int64_t batch) {
  const DataDescriptor x(state_->type, steps, batch, state_->layer.input);
  DnnHandle& shared = state_->shared;
  const std::lock_guard lock(shared.mutex);
  size_t workspace = 0, reserve = 0;
  check(dnn().workspace_bytes(shared.handle, state_->descriptor, CUDNN_FWD_MODE_INFERENCE, x, &workspace, &reserve),
        "cudnnGetRNNTempSpaceSizes");
  if (!state_->may_be_resident(batch)) return workspace;
  size_t resident = 0;
  if (dnn().workspace_bytes(shared.handle, *state_->resident, CUDNN_FWD_MODE_INFERENCE, x, &resident, &reserve) !=
      CUDNN_STATUS_SUCCESS)
    state_->resident_serves = false;
  return std::max(workspace, resident);
}

bool DnnRecurrent::is_resident(int64_t batch) const { return state_->may_be_resident(batch); }

void DnnRecurrent::run(StreamRef stream, const Run& run) {
  const RecurrentLayer& layer = state_->layer;
  const int directions = state_->directions(), hidden = int(layer.hidden), batch = int(run.batch);
  const DataDescriptor x(state_->type, run.steps, run.batch, layer.input),
      y(state_->type, run.steps, run.batch, directions * layer.hidden);
  const TensorDescriptor states;
  const int dims[] = {directions, batch, hidden}, strides[] = {batch * hidden, hidden, 1};
  check(dnn().set_tensor(states, state_->type, 3, dims, strides), "cudnnSetTensorNdDescriptor");
  const bool cells = layer.cell == RecurrentLayer::Cell::lstm;
  DnnHandle& shared = state_->shared;
  const std::lock_guard lock(shared.mutex);
  shared.use(stream);
  const auto forward = [&](cudnnRNNDescriptor_t descriptor) {
    return dnn().forward(shared.handle, descriptor, CUDNN_FWD_MODE_INFERENCE, run.lengths, x, run.x, y, run.y, states,
                         run.h, run.y_h, states, cells ? run.c : nullptr, cells ? run.y_c : nullptr,
                         state_->weight_bytes, run.weights, run.workspace_bytes, run.workspace, 0, nullptr);
  };
  bool done = false;
  if (state_->may_be_resident(run.batch)) {
    const cudnnStatus_t status = forward(*state_->resident);
    done = status == CUDNN_STATUS_SUCCESS;
    // That it has no kernel for these sizes it says before it launches anything.
    if (!done && status >= CUDNN_STATUS_NOT_SUPPORTED && status < CUDNN_STATUS_INTERNAL_ERROR)
      state_->resident_serves = false;
    else
      check(status, "cudnnRNNForward");
  }
  if (!done) check(forward(state_->descriptor), "cudnnRNNForward");
  cuda::note_capture(stream);
}

}  // namespace encore::device
