// cuDNN as one Dnn has it: opened when first needed, and what its users share.
#pragma once
#include <cudnn.h>

#include <memory>
#include <mutex>
#include <string>

#include "device/dnn.h"

namespace encore::device {

struct AttentionPlans;  // dnn_attention.cc's

struct DnnHandle {
  int device = 0;
  DnnSettings settings;
  int sm_version = 0;
  std::mutex mutex;  // of everything below: a handle serves one thread at a time, and so do plans
  bool tried = false;
  std::string missing;  // why, if it could not be opened
  cudnnHandle_t handle = nullptr;
  StreamRef stream;  // the handle's
  std::shared_ptr<AttentionPlans> attention;

  DnnHandle() = default;
  DnnHandle(const DnnHandle&) = delete;
  ~DnnHandle();
  // Whether cuDNN could be opened, which is tried once.
  bool opened();
  // The handle works on that stream from now on.
  void use(StreamRef wanted);

 private:
  void open();
};

// One more of an open library, for another thread; null if there can be none, or the device is below zero.
class BorrowedHandle {
 public:
  explicit BorrowedHandle(int device);
  ~BorrowedHandle();
  BorrowedHandle(const BorrowedHandle&) = delete;
  cudnnHandle_t get() const { return handle_; }

 private:
  int device_;
  cudnnHandle_t handle_ = nullptr;
};

// What the handle is given from now on is done there.
cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream);

// An Error for what the library has said, and for what CUDA has said meanwhile.
[[noreturn]] void raise_execution_failure(const std::string& problem, const std::string& failure);

}  // namespace encore::device
