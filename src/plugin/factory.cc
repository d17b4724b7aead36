#include "plugin/factory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "plugin/host/code.h"
#include "plugin/kernels/fused_node.h"
#include "plugin/kernels/kernel_registry.h"
#include "plugin/options/options.h"
#include "plugin/session/ep.h"
#include "plugin/session/stream.h"

namespace encore::plugin {
namespace {

constexpr const char* kSharesAllocators = "session.use_env_allocators";
constexpr const char* kMakesContext = "ep.context_enable";

std::map<std::string, std::string> map_of(const OrtKeyValuePairs* pairs) {
  const char* const* keys = nullptr;
  const char* const* values = nullptr;
  size_t count = 0;
  if (pairs) ort().api->GetKeyValuePairs(pairs, &keys, &values, &count);
  std::map<std::string, std::string> map;
  for (size_t i = 0; i < count; ++i) map.emplace(keys[i], values[i]);
  return map;
}

std::map<std::string, std::string> config_of(const OrtSessionOptions* session) {
  OrtKeyValuePairs* raw = nullptr;
  check(ort().api->GetSessionOptionsConfigEntries(session, &raw));
  const auto pairs = owned(raw, ort().api->ReleaseKeyValuePairs);
  return map_of(raw);
}

constexpr const char* kOutsideOfSessions = "the tensors outside of sessions";

// A session's device is the one that it was given: what the options say of it, if anything, has to agree.
void settle_device(const std::string& ep_name, const OrtKeyValuePairs* const* metadata, size_t device_count,
                   std::map<std::string, std::string>& config) {
  std::string given;
  for (size_t i = 0; i < device_count; ++i) given += text(i ? ", " : "", Devices::from_metadata(metadata[i]));
  require(device_count == 1, "a session runs on one device, but was given devices ", given,
          "; pass one OrtEpDevice, or hide the others (CUDA_VISIBLE_DEVICES) from an application that passes all");
  std::vector<std::string> keys = {"device_id"};
  for (const std::string& prefix : option_prefixes(ep_name)) keys.push_back(prefix + "device_id");
  for (const std::string& key : keys)
    if (const auto said = config.find(key); said != config.end())
      require(said->second == given, "provider option '", key, "' is '", said->second,
              "', but the session was given device ", given,
              "; leave the option out, or pass the OrtEpDevice with that cuda_device_id");
  config.emplace("device_id", given);
}

// A wrong address would end the process in the first run.
void check_functions(const memory::External& external) {
  const auto check_one = [](const char* key, auto* function) {
    const void* const address = reinterpret_cast<const void*>(function);
    require(!function || is_code(address), "provider option '", key, "': there is no function at ", address,
            "; pass its address (in Python ctypes.cast(callback, ctypes.c_void_p).value)");
  };
  check_one("gpu_external_alloc", external.allocate);
  check_one("gpu_external_free", external.free);
  check_one("gpu_external_empty_cache", external.empty_cache);
}

}  // namespace

std::string ep_name_for(const std::string& registration_name) {
  return registration_name.ends_with("ExecutionProvider") ? registration_name : "CUDAExecutionProvider";
}

OrtEpFactory* Factory::create(const std::string& registration_name, const OrtLogger* logger) {
  auto factory = std::make_shared<Factory>(ep_name_for(registration_name), Log(logger));
  factory->self_ = factory;
  return factory.get();
}

void Factory::let_go(OrtEpFactory* factory) noexcept {
  const std::shared_ptr<Factory> last = std::move(from(factory).self_);
}

Factory::Factory(std::string name, Log log)
    : OrtEpFactory{}, name_(std::move(name)), log_(log), devices_(log), pinned_(std::make_shared<PinnedPool>()) {
  memory::offer(pinned_);
  fill_callbacks();
}

const OrtKernelRegistry* Factory::registry() {
  const std::lock_guard lock(mutex_);
  if (!registry_) registry_ = make_kernel_registry(name_);
  return registry_.get();
}

Copies& Factory::copies(int device) {
  const std::lock_guard lock(mutex_);
  return copies_.try_emplace(device, device).first->second;
}

std::shared_ptr<memory::Arena> Factory::shared_arena(int device) {
  const std::lock_guard lock(mutex_);
  auto& arena = arenas_[device];
  if (!arena) arena = std::make_shared<memory::Arena>(device, memory::Settings{}, kOutsideOfSessions);
  return arena;
}

OrtAllocator* Factory::make_allocator(const OrtMemoryInfo* info, std::shared_ptr<memory::Arena> arena) {
  const OrtMemoryDevice* const memory = ort().ep->MemoryInfo_GetMemoryDevice(info);
  const int device = int(ort().ep->MemoryDevice_GetDeviceId(memory));
  const bool pinned = is_pinned_memory(memory);
  require(pinned || is_device_memory(memory), "Encore was asked for an allocator of memory that it does not offer");
  const OrtMemoryInfo* const own_info = devices_.memory_info(device, pinned);
  if (pinned) return make_pinned_allocator(shared_from_this(), own_info, pinned_);
  return make_device_allocator(shared_from_this(), own_info, arena ? std::move(arena) : shared_arena(device));
}

std::shared_ptr<memory::Arena> Factory::make_shared_arena(int device, const OrtKeyValuePairs* options) {
  std::map<std::string, std::string> config;
  for (const auto& [key, value] : map_of(options)) {
    require(key.starts_with("arena.") || key == "use_arena" || key == "gpu_mem_limit" || key == "arena_extend_strategy",
            "'", key,
            "' is no option of an allocator; use_arena, gpu_mem_limit, arena_extend_strategy and arena.* are");
    config.emplace("ep.cuda." + key, value);
  }
  const memory::Settings settings = memory_settings(parse_options(name_, config));
  const std::lock_guard lock(mutex_);
  return arenas_[device] = std::make_shared<memory::Arena>(device, settings, kOutsideOfSessions);
}

OrtEp* Factory::create_ep(const OrtKeyValuePairs* const* metadata, size_t device_count,
                          const OrtSessionOptions* session, Log log) {
  Options options;
  try {
    auto config = config_of(session);
    settle_device(name_, metadata, device_count, config);
    options = parse_options(name_, config);
    if (host_has(kExecutionModeApi)) {
      ExecutionMode mode = ORT_SEQUENTIAL;
      check(ort().api->GetSessionExecutionMode(session, &mode));
      require(
          mode == ORT_SEQUENTIAL || !options.enable_cuda_graph,
          "enable_cuda_graph and the parallel execution mode exclude each other: a graph is captured in one thread");
      require(mode == ORT_SEQUENTIAL || !(options.has_user_compute_stream || options.use_ep_level_unified_stream),
              "the parallel execution mode and one stream for the whole session (user_compute_stream, "
              "use_ep_level_unified_stream) exclude each other: there would be nothing in parallel");
    }
    if (const auto makes = config.find(kMakesContext);
        makes != config.end() && makes->second == "1" && options.fuse_nodes) {
      options.fuse_nodes = false;
      log.warning(text(kMakesContext,
                       "=1 is for nodes that are kept compiled, and Encore's can't be: nothing is fused, ",
                       "as with fuse_nodes=0"));
    }
    std::shared_ptr<memory::Arena> arena;
    if (const auto shares = config.find(kSharesAllocators); shares != config.end() && shares->second == "1") {
      require(memory_settings(options) == memory::Settings(), kSharesAllocators,
              "=1 gives the session the environment's memory, so gpu_mem_limit, use_arena, arena_extend_strategy, "
              "arena.* and gpu_external_* have nothing to say; leave them or ",
              kSharesAllocators, " out");
      arena = shared_arena(options.device_id);
    }
    check_functions(options.external);
    Ep* const ep = new Ep(shared_from_this(), options, log, std::move(arena));
    compile_fused_nodes(*ep);
    return ep;
  } catch (const std::exception& error) {
    // onnxruntime's Python goes on with the CPU provider after this, and prints the reason only to stdout.
    log.error(error.what());
    throw;
  }
}

void Factory::fill_callbacks() {
  ort_version_supported = ort().version;
  GetName = [](const OrtEpFactory* self) noexcept { return static_cast<const Factory*>(self)->name_.c_str(); };
  GetVendor = [](const OrtEpFactory*) noexcept { return "Encore"; };
  GetVendorId = [](const OrtEpFactory*) noexcept -> uint32_t { return kNvidia; };
  GetVersion = [](const OrtEpFactory*) noexcept { return ENCORE_VERSION; };
  GetSupportedDevices = [](OrtEpFactory* self, const OrtHardwareDevice* const* listed, size_t listed_count,
                           OrtEpDevice** offered, size_t most, size_t* offered_count) noexcept -> OrtStatus* {
    return guarded("GetSupportedDevices",
                   [&] { from(self).devices_.offer(self, listed, listed_count, offered, most, offered_count); });
  };
  CreateEp = [](OrtEpFactory* self, const OrtHardwareDevice* const*, const OrtKeyValuePairs* const* metadata,
                size_t device_count, const OrtSessionOptions* session, const OrtLogger* logger,
                OrtEp** ep) noexcept -> OrtStatus* {
    return guarded("CreateEp", [&] { *ep = from(self).create_ep(metadata, device_count, session, Log(logger)); });
  };
  ReleaseEp = [](OrtEpFactory*, OrtEp* ep) noexcept { delete_on(Ep::from(ep).device(), &Ep::from(ep)); };
  CreateAllocator = [](OrtEpFactory* self, const OrtMemoryInfo* info, const OrtKeyValuePairs* options,
                       OrtAllocator** allocator) noexcept -> OrtStatus* {
    return guarded("CreateAllocator", [&] {
      const OrtMemoryDevice* const where = ort().ep->MemoryInfo_GetMemoryDevice(info);
      std::shared_ptr<memory::Arena> arena;
      if (!map_of(options).empty()) {
        require(is_device_memory(where), "only allocators of device memory have options");
        arena = from(self).make_shared_arena(int(ort().ep->MemoryDevice_GetDeviceId(where)), options);
      }
      *allocator = from(self).make_allocator(info, std::move(arena));
    });
  };
  ReleaseAllocator = [](OrtEpFactory*, OrtAllocator* allocator) noexcept { release_allocator(allocator); };
  CreateDataTransfer = [](OrtEpFactory* self, OrtDataTransferImpl** transfer) noexcept -> OrtStatus* {
    return guarded("CreateDataTransfer", [&] { *transfer = make_data_transfer(from(self).shared_from_this()); });
  };
  IsStreamAware = [](const OrtEpFactory*) noexcept { return true; };
  CreateSyncStreamForDevice = [](OrtEpFactory* self, const OrtMemoryDevice* memory, const OrtKeyValuePairs*,
                                 OrtSyncStreamImpl** stream) noexcept -> OrtStatus* {
    return guarded("CreateSyncStreamForDevice", [&] {
      const int device = int(ort().ep->MemoryDevice_GetDeviceId(memory));
      *stream = new SyncStream(from(self).shared_from_this(), device);
    });
  };
}

}  // namespace encore::plugin
