// Shared libraries which are opened when first needed, so that a model without convolutions runs without cuDNN.
#pragma once
#include <initializer_list>
#include <string>

namespace encore::device::cuda {

// Opened once, never closed: graphs and other users of the process may still hold its kernels.
class Library {
 public:
  struct Wanted {
    const char* file;     // with its major version: "libcudnn.so.9"
    const char* version;  // for people: "cuDNN 9"
    const char* package;  // the PyPI package which brings it
  };
  // Throws Error{library_missing}: which library, which version, every place looked at, and the way out.
  explicit Library(const Wanted& wanted);

  void* handle() const { return handle_; }
  const std::string& path() const { return path_; }  // what was opened
  // Function is the header's declaration: library.find<decltype(cublasLtCreate)>("cublasLtCreate").
  template <class Function>
  Function* find(const char* symbol) const {
    return reinterpret_cast<Function*>(address(symbol));
  }

 private:
  void* address(const char* symbol) const;
  Wanted wanted_;
  void* handle_ = nullptr;
  std::string path_;
};

// A failed attempt is made again at the next call.
const Library& cublaslt();
const Library& cudnn();
const Library& nvrtc();

}  // namespace encore::device::cuda
