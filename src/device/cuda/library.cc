#include "device/cuda/library.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "device/error.h"

namespace encore::device::cuda {
namespace {

namespace fs = std::filesystem;

// Libraries go by the major version of the CUDA that this was built with, as the runtime that is linked in does.
#if CUDART_VERSION >= 13000
#define ENCORE_OF_CUDA(name) name "13"
constexpr const char *kCublasPackage = "nvidia-cublas", *kNvrtcPackage = "nvidia-cuda-nvrtc";
#else
#define ENCORE_OF_CUDA(name) name "12"
constexpr const char *kCublasPackage = "nvidia-cublas-cu12", *kNvrtcPackage = "nvidia-cuda-nvrtc-cu12";
#endif

constexpr const char* kPathVariable = "ENCORE_LIBRARY_PATH";

// Folders named by the user, separated by colons.
std::vector<fs::path> folders_of_user() {
  std::vector<fs::path> folders;
  const char* set = std::getenv(kPathVariable);
  for (std::string_view rest = set ? set : ""; !rest.empty();) {
    const size_t end = std::min(rest.find(':'), rest.size());
    if (end > 0) folders.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return folders;
}

// site-packages/nvidia/*/lib, where site-packages/onnxruntime_ep_encore/cuda/ holds this very library.
std::vector<fs::path> folders_of_packages() {
  std::vector<fs::path> folders;
  Dl_info own{};
  if (!dladdr(reinterpret_cast<const void*>(&folders_of_packages), &own) || !own.dli_fname) return folders;
  std::error_code ignored;  // a folder that can't be read holds nothing for us
  const fs::path file = fs::absolute(own.dli_fname, ignored);
  const fs::path packages = file.parent_path().parent_path().parent_path();
  for (fs::directory_iterator entry(packages / "nvidia", ignored), end; !ignored && entry != end;
       entry.increment(ignored))
    folders.push_back(entry->path() / "lib");
  std::sort(folders.begin(), folders.end());  // the same choice everywhere
  return folders;
}

struct Opened {
  void* handle = nullptr;
  std::string path, looked;  // `looked` has one line for each place that failed
};

Opened open(const char* file) {
  Opened found;
  const auto attempt = [&](const std::string& path, const std::string& place, int flags) {
    if (found.handle) return;
    found.handle = dlopen(path.c_str(), flags | RTLD_NOW | RTLD_LOCAL);
    found.path = path;
    if (found.handle) return;
    const char* why = dlerror();
    found.looked += text("\n  ", place, ": ", (flags & RTLD_NOLOAD) ? "no" : why ? why : "not opened");
  };
  const auto in_folders = [&](const std::vector<fs::path>& folders) {
    for (const fs::path& folder : folders) {
      std::error_code ignored;
      const fs::path path = folder / file;
      if (fs::exists(path, ignored))
        attempt(path, path, 0);
      else if (!found.handle)
        found.looked += text("\n  ", folder.string(), ": not there");
    }
  };
  attempt(file, "already in this process", RTLD_NOLOAD);
  if (!found.handle && !std::getenv(kPathVariable)) found.looked += text("\n  ", kPathVariable, ": not set");
  in_folders(folders_of_user());
  in_folders(folders_of_packages());
  attempt(file, "the loader's path", 0);
  in_folders({"/usr/local/cuda/lib64"});
  return found;
}

}  // namespace

Library::Library(const Wanted& wanted) : wanted_(wanted) {
  Opened found = open(wanted.file);
  if (!found.handle)
    fail(Code::library_missing, wanted.file, " (", wanted.version, ") could not be opened. Looked at:", found.looked,
         "\nInstall it beside Encore with `pip install ", wanted.package, "`, or name its folder in ", kPathVariable,
         ".");
  handle_ = found.handle;
  path_ = std::move(found.path);
}

void* Library::address(const char* symbol) const {
  void* found = dlsym(handle_, symbol);
  if (!found)
    fail(Code::library_missing, path_, " has no ", symbol, "; ", wanted_.version, " is wanted: `pip install -U ",
         wanted_.package, "`");
  return found;
}

const Library& cublaslt() {
  static const Library library({ENCORE_OF_CUDA("libcublasLt.so."), ENCORE_OF_CUDA("cuBLASLt "), kCublasPackage});
  return library;
}

const Library& nvrtc() {
  static const Library library({ENCORE_OF_CUDA("libnvrtc.so."), ENCORE_OF_CUDA("NVRTC "), kNvrtcPackage});
  return library;
}

const Library& cudnn() {
  static const Library library = [] {
    // cuDNN opens these by name when an engine needs them; one that is missing is cuDNN's to report.
    for (const char* companion :
         {ENCORE_OF_CUDA("libcublasLt.so."), ENCORE_OF_CUDA("libcublas.so."), ENCORE_OF_CUDA("libnvrtc.so.")})
      open(companion);
    return Library({"libcudnn.so.9", "cuDNN 9", ENCORE_OF_CUDA("nvidia-cudnn-cu")});
  }();
  return library;
}

}  // namespace encore::device::cuda
