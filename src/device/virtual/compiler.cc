#include "device/compiler.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "device/compiled_code.h"
#include "device/error.h"
#include "device/exchange.h"
#include "device/virtual/capture.h"
#include "device/virtual/queue.h"
#include "device/virtual/stream_state.h"

namespace encore::device {

using namespace virtual_gpu;

struct CompiledKernel::Code {
  explicit Code(void* library) : library(library) {}
  ~Code() { dlclose(library); }
  Code(const Code&) = delete;

  void* const library;
  Loop entry = nullptr;
};

namespace {

namespace fs = std::filesystem;

// What body() of a source is called by.
constexpr const char* kEntry = R"(
#include <stdexcept>
extern "C" void entry(const void* arguments, int64_t first, int64_t end, int64_t step) {
  for (int64_t i = first; i != end; i += step) {
    bool has_waited = false;
    encore::compiled::body(*static_cast<const encore::compiled::Arguments*>(arguments), i, [&] { has_waited = true; });
    if (!has_waited) throw std::logic_error("a compiled kernel has threads that do not wait");
  }
}
)";

class TemporaryFolder {
 public:
  TemporaryFolder() : path_((fs::temp_directory_path() / "encore-XXXXXX").string()) {
    if (!mkdtemp(path_.data())) fail(Code::internal, "there is no temporary folder to compile in");
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  fs::path file(const std::string& name, std::string_view content) const {
    const fs::path path = fs::path(path_) / name;
    fs::create_directories(path.parent_path());
    std::ofstream written(path, std::ios::binary);
    written << content;
    written.close();
    if (!written) fail(Code::internal, "there is no room to compile in: ", path.string(), " cannot be written");
    return path;
  }
  fs::path operator/(const char* name) const { return fs::path(path_) / name; }

 private:
  std::string path_;
};

std::string content_of(const fs::path& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

std::function<void()> task_of(const CompiledKernel& kernel, int64_t count, std::span<const char> arguments) {
  constexpr bool kHasAddresses = true;
  return loop_task(count, {arguments.data(), arguments.size(), kHasAddresses}, kernel.code().entry);
}

}  // namespace

// Read as a session is made: the thread that compiles may come to it when the variable has changed.
std::string compile_target(int) {
  const char* const compiler = std::getenv("ENCORE_VIRTUAL_COMPILER");
  return compiler ? compiler : "";
}

void open_compiler(int) {}

std::string compile(const std::string& target, const std::string& source) {
  const TemporaryFolder folder;
  for (const RunTimeHeader& header : run_time_headers()) folder.file(header.name, header.text);
  const fs::path file = folder.file("compiled.cc", source + kEntry), made = folder / "compiled.so",
                 log = folder / "log";
  const std::string command = text(target, " -std=c++20 -O1 -ffp-contract=off -shared -fPIC -I", (folder / "").string(),
                                   " -o ", made.string(), ' ', file.string(), " 2> ", log.string());
  if (std::system(command.c_str()) != 0)
    fail(Code::internal, "a kernel cannot be compiled: ", content_of(log), "\n", source);
  return content_of(made);
}

std::shared_ptr<const CompiledKernel::Code> load(int, const std::string& binary) {
  const TemporaryFolder folder;
  void* const library = dlopen(folder.file("compiled.so", binary).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) fail(Code::internal, "a compiled kernel cannot be opened: ", dlerror());
  auto code = std::make_shared<CompiledKernel::Code>(library);
  code->entry = reinterpret_cast<Loop>(dlsym(library, "entry"));
  if (!code->entry) fail(Code::internal, "a compiled kernel has no entry");
  return code;
}

void launch(StreamRef stream, const CompiledLaunch& launch) {
  enqueue(stream, "compiled program", task_of(*launch.kernel, launch.count, launch.arguments));
}

void exchange_latest(StreamRef ref, const CompiledLaunch& launch) {
  const KernelNode node = latest_kernel(ref);
  StreamState& stream = state_of(ref);
  std::lock_guard lock(stream.mutex);
  if (Capture* capture = stream.capturing(); capture && !capture->is_body) capture->exchange({node, launch});
}

void apply(const GraphExec& exec, const Exchange& exchange) {
  set_node(exec, exchange.node, task_of(*exchange.kernel, exchange.count, exchange.arguments));
}

}  // namespace encore::device
