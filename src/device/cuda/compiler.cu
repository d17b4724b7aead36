#include "device/compiler.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <iterator>
#include <vector>

#include "device/compiled_code.h"
#include "device/cuda/built_for.h"
#include "device/cuda/capture.h"
#include "device/cuda/check.h"
#include "device/cuda/driver.h"
#include "device/cuda/graph_state.h"
#include "device/cuda/library.h"
#include "device/device.h"
#include "device/launch.h"

namespace encore::device {

struct CompiledKernel::Code {
  explicit Code(cudaLibrary_t library) : library(library) {}
  ~Code() { cuda::report(cudaLibraryUnload(library), "cudaLibraryUnload"); }
  Code(const Code&) = delete;

  const cudaLibrary_t library;
  cudaKernel_t kernel = nullptr;
};

namespace {

using cuda::check;

constexpr int kThreads = 128;

// What body() of a source is called by. Those who have no index need not wait: others of their kernel do.
constexpr const char* kEntry = R"(
extern "C" __global__ void __launch_bounds__(128) entry(const __grid_constant__ encore::compiled::Arguments arguments,
                                                        long long count) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  const long long index = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index < count)
    encore::compiled::body(arguments, index, [] {
#if __CUDA_ARCH__ >= 900
      asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    });
}
)";

// NVRTC, as far as it is used here.
struct Nvrtc {
  using Program = struct Opaque*;
  using Create = int(Program*, const char*, const char*, int, const char* const*, const char* const*);
  using Compile = int(Program, int, const char* const*);
  using Size = int(Program, size_t*);
  using Fill = int(Program, char*);

  const cuda::Library& library = cuda::nvrtc();
  Create* const create = library.find<Create>("nvrtcCreateProgram");
  int (*const destroy)(Program*) = library.find<int(Program*)>("nvrtcDestroyProgram");
  Compile* const compile = library.find<Compile>("nvrtcCompileProgram");
  Size* const log_size = library.find<Size>("nvrtcGetProgramLogSize");
  Fill* const log = library.find<Fill>("nvrtcGetProgramLog");
  Size* const binary_size = library.find<Size>("nvrtcGetCUBINSize");
  Fill* const binary = library.find<Fill>("nvrtcGetCUBIN");
  const char* (*const words)(int) = library.find<const char*(int)>("nvrtcGetErrorString");

  void check(int result, const char* call) const {
    if (result != 0) throw Error(Code::internal, words(result), call);
  }
};

const Nvrtc& nvrtc() {
  static const Nvrtc nvrtc;
  return nvrtc;
}

// Of a call that tells a size, and one that fills as much.
std::string bytes_of(const Nvrtc& library, Nvrtc::Program program, Nvrtc::Size* size, Nvrtc::Fill* fill) {
  size_t count = 0;
  library.check(size(program, &count), "NVRTC's size of a result");
  std::string bytes(count, '\0');
  if (count) library.check(fill(program, bytes.data()), "NVRTC's result");
  return bytes;
}

const void* function_of(const CompiledKernel& kernel) { return reinterpret_cast<const void*>(kernel.code().kernel); }
Blocks grid_of(int64_t count) { return {(count + kThreads - 1) / kThreads, kThreads}; }

struct CompiledProgram {};  // in listings

}  // namespace

std::string compile_target(int device) { return text("sm_", cuda::capability(device) / 10); }

std::string compile(const std::string& target, const std::string& source) {
  const Nvrtc& library = nvrtc();
  std::vector<const char*> names, texts;
  for (const RunTimeHeader& header : run_time_headers()) names.push_back(header.name), texts.push_back(header.text);
  const std::string whole = source + kEntry, architecture = "--gpu-architecture=" + target;
  const char* const options[] = {architecture.c_str(), "--std=c++20", "--device-as-default-execution-space"};
  struct Made {
    const Nvrtc& library;
    Nvrtc::Program program = nullptr;
    ~Made() { library.destroy(&program); }
  } made{library};
  library.check(
      library.create(&made.program, whole.c_str(), "compiled.cu", int(names.size()), texts.data(), names.data()),
      "nvrtcCreateProgram");
  if (library.compile(made.program, int(std::size(options)), options) != 0)
    throw Error(Code::internal,
                text("a kernel cannot be compiled for ", target, ": ",
                     bytes_of(library, made.program, library.log_size, library.log), "\n", source),
                "nvrtcCompileProgram");
  return bytes_of(library, made.program, library.binary_size, library.binary);
}

void open_compiler(int device) {
  compile(compile_target(device),
          "namespace encore::compiled { struct Arguments {}; __device__ void body(Arguments, long long, auto) {} }");
}

std::shared_ptr<const CompiledKernel::Code> load(int device, const std::string& binary) {
  const Current current(device);
  cudaLibrary_t library = nullptr;
  check(cudaLibraryLoadData(&library, binary.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cudaLibraryLoadData");
  auto code = std::make_shared<CompiledKernel::Code>(library);
  check(cudaLibraryGetKernel(&code->kernel, library, "entry"), "cudaLibraryGetKernel");
  cudaFuncAttributes attributes;  // which loads it now, and not as it is captured
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(code->kernel)), "cudaFuncGetAttributes");
  return code;
}

void launch(StreamRef stream, const CompiledLaunch& launch) {
  int64_t count = launch.count;
  void* arguments[] = {const_cast<char*>(launch.arguments.data()), &count};
  cuda::launch(stream, function_of(*launch.kernel), grid_of(count), arguments, kernel_name<CompiledProgram>());
}

void exchange_latest(StreamRef stream, const CompiledLaunch& launch) {
  if (!cuda::bodies_open) cuda::note_exchange(stream, {latest_kernel(stream), launch});
}

// By the driver, for the runtime has no word on whether it takes such kernels here.
void apply(const GraphExec& exec, const Exchange& exchange) {
  using Get = CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS_v2*);
  using Set = CUresult (*)(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v2*);
  static const auto get = cuda::driver_function<Get>("cuGraphKernelNodeGetParams", 12000);
  static const auto set = cuda::driver_function<Set>("cuGraphExecKernelNodeSetParams", 12000);
  const auto node = reinterpret_cast<CUgraphNode>(exchange.node.id);
  int64_t count = exchange.count;
  void* arguments[] = {const_cast<char*>(exchange.arguments.data()), &count};
  const Blocks grid = grid_of(count);
  CUDA_KERNEL_NODE_PARAMS_v2 params = {};
  check(cudaError_t(get(node, &params)), "cuGraphKernelNodeGetParams");  // for its context
  params.func = nullptr;
  params.kern = reinterpret_cast<CUkernel>(exchange.kernel->code().kernel);
  params.gridDimX = unsigned(grid.blocks);
  params.blockDimX = unsigned(grid.threads);
  params.sharedMemBytes = 0;
  params.kernelParams = arguments;
  params.extra = nullptr;
  check(cudaError_t(set(exec.state().exec, node, &params)), "cuGraphExecKernelNodeSetParams");
}

}  // namespace encore::device
