// Arrays on the device for tests: DeviceArray<float> x({1, 2, 3}); kernel(stream, x.data()); x.download(stream).
#pragma once
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "device/error.h"
#include "device/memory.h"
#include "device/stream.h"
#ifdef ENCORE_CUDA
#include <cuda_runtime.h>
#else
#include "device/virtual/control.h"
#endif

namespace encore::device {

// What an application may do, and Encore never does: waits for all that anybody has enqueued.
inline void synchronize_device(int device) {
#ifdef ENCORE_CUDA
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(device);
  const cudaError_t result = cudaDeviceSynchronize();
  cudaSetDevice(before);
  cudaGetLastError();
  if (result != cudaSuccess)
    throw Error(result == cudaErrorStreamCaptureUnsupported ? Code::capture_forbidden : Code::device_failed,
                cudaGetErrorString(result), "cudaDeviceSynchronize");
#else
  virtual_gpu::synchronize_device(device);
#endif
}

// std::vector<bool> has no data(): bool travels as one byte.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size, int device = 0)
      : device_(device), size_(size), data_(static_cast<T*>(allocate(device, size * sizeof(T)))) {}
  explicit DeviceArray(const std::vector<T>& values, int device = 0) : DeviceArray(values.size(), device) {
    Stream stream(device);
    upload(stream, values);
  }
  ~DeviceArray() {
    if (data_) free(device_, data_);
  }
  DeviceArray(DeviceArray&& other) noexcept
      : device_(other.device_), size_(std::exchange(other.size_, 0)), data_(std::exchange(other.data_, nullptr)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(size_, other.size_);
    std::swap(data_, other.data_);
    return *this;
  }

  T* data() const { return data_; }
  size_t size() const { return size_; }

  // Both are ordered by the stream and wait for it.
  void upload(StreamRef stream, const std::vector<T>& values) {
    if (values.size() != size_) throw Error(Code::internal, "a DeviceArray cannot change its size");
    copy(stream, data_, values.data(), size_ * sizeof(T));
    stream.synchronize();
  }
  std::vector<T> download(StreamRef stream) const {
    std::vector<T> values(size_);
    copy(stream, values.data(), data_, size_ * sizeof(T));
    stream.synchronize();
    return values;
  }

 private:
  int device_ = 0;
  size_t size_ = 0;
  T* data_ = nullptr;
};

// Pinned memory that kernels read and write at the same address.
template <class T>
class PinnedArray {
 public:
  explicit PinnedArray(size_t size, T value = T())
      : size_(size), data_(static_cast<T*>(allocate_pinned(size * sizeof(T)))) {
    std::uninitialized_fill_n(data_, size, value);
  }
  ~PinnedArray() { free_pinned(data_); }
  PinnedArray(const PinnedArray&) = delete;

  T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  size_t size_;
  T* data_;
};

// Expects an Error of this code from a call.
#define EXPECT_ERROR(call, expected_code)                                                   \
  try {                                                                                     \
    call;                                                                                   \
    ADD_FAILURE() << #call " did not fail";                                                 \
  } catch (const ::encore::Error& error) {                                                  \
    EXPECT_EQ(::encore::name(error.code()), ::encore::name(expected_code)) << error.what(); \
  }

}  // namespace encore::device
