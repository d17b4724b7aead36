// The table of provider options.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

#include "plugin/host/lower.h"
#include "plugin/options/options.h"

namespace encore::plugin {
namespace {

template <class T>
std::optional<T> number(std::string_view text, T least, T most, int base = 10) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value, base);
  if (error != std::errc() || stopped != end || value < least || value > most) return std::nullopt;
  return value;
}

// None of an empty text.
std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

template <class T>
bool take(std::optional<T> value, T& into) {
  if (value) into = *value;
  return value.has_value();
}

std::optional<bool> flag(std::string_view text) {
  const std::string value = lower(text);
  if (value == "1" || value == "true") return true;
  if (value == "0" || value == "false") return false;
  return std::nullopt;
}
// None is "safe".
bool flag_or_safe(std::string_view text, std::optional<bool>& into) {
  into = flag(text);
  return into || text == "safe";
}

bool regions(std::string_view text, Options& into) {
  const std::optional<bool> wanted = flag(text);
  into.regions = wanted.value_or(true);
  into.lone_regions = text == "all";
  return wanted || into.lone_regions;
}

bool compile_when(std::string_view text, device::CompilerSettings::When& into) {
  using enum device::CompilerSettings::When;
  const std::optional<bool> wanted = flag(text);
  into = text == "now" ? at_once : wanted.value_or(true) ? in_background : never;
  return wanted || text == "now";
}

bool bytes(std::string_view text, size_t& into) { return take(number<size_t>(text, 0, SIZE_MAX), into); }

// onnxruntime writes -1 for a default of the arena's.
bool bytes_or_default(std::string_view text, size_t& into) { return text == "-1" || bytes(text, into); }

// An address, as Python or C++ print it: 94033 or 0x16f51.
std::optional<uintptr_t> address(std::string_view text) {
  const bool hex = text.starts_with("0x") || text.starts_with("0X");
  return number<uintptr_t>(hex ? text.substr(2) : text, 0, UINTPTR_MAX, hex ? 16 : 10);
}

template <class Pointer>
bool pointer(std::string_view text, Pointer& into) {
  const auto value = address(text);
  if (value) into = reinterpret_cast<Pointer>(*value);
  return value.has_value();
}

// As OrtArenaCfg numbers the strategies, and as OrtCUDAProviderOptionsV2 names them.
bool strategy(std::string_view text, Options& o) {
  const bool doubles = text == "kNextPowerOfTwo" || text == "0" || text == "-1";
  if (!doubles && text != "kSameAsRequested" && text != "1") return false;
  o.grow_by_doubling = doubles;
  return true;
}

// "batch:1,2,4;sequence:64,128", or "off"
bool paddings(std::string_view text, Options& o) {
  o.pad.clear();
  o.lengthens = text != "off";
  if (!o.lengthens) return true;
  for (const std::string_view one : parts_of(text, ';')) {
    const size_t colon = one.rfind(':');
    if (colon == one.npos || colon == 0) return false;
    std::vector<int64_t>& lengths = o.pad[std::string(one.substr(0, colon))];
    if (!lengths.empty()) return false;
    for (const std::string_view length : parts_of(one.substr(colon + 1), ','))
      if (!take(number<int64_t>(length, 1, INT32_MAX), lengths.emplace_back())) return false;
    if (lengths.empty()) return false;
    std::ranges::sort(lengths);
  }
  return true;
}

constexpr const char* kNoLimit = "unlimited";
constexpr const char* kLimit = "a number of bytes, more than zero, or unlimited";

bool memory_limit(std::string_view text, Options& o) {
  if (text == kNoLimit) return o.gpu_mem_limit = SIZE_MAX, true;
  return take(number<size_t>(text, 1, SIZE_MAX), o.gpu_mem_limit);
}

bool bytes_of_graphs(std::string_view text, Options& o) {
  if (text == "half") return o.auto_graph_mem_limit.reset(), true;
  const std::optional<size_t> bytes = number<size_t>(text, 1, SIZE_MAX);
  if (bytes) o.auto_graph_mem_limit = bytes;
  return bytes.has_value();
}

// onnxruntime runs a model at most eight times in a row to get it captured; with more than six warm-ups its own
// count can run out before the capture has happened.
constexpr int kMostWarmUps = 6;

constexpr const char* kFlag = "0 or 1";
constexpr const char* kBytes = "a number of bytes";
constexpr const char* kBytesOrDefault = "a number of bytes, or -1 for the default";
constexpr const char* kAddress = "an address, decimal or with 0x";

constexpr OptionRow kRows[] = {
    {"device_id", true, "0", "the number of a device",
     "The CUDA device to run on, which is the one that the session was given.",
     [](std::string_view value, Options& o) { return take(number(value, 0, 1 << 16), o.device_id); }},

    // ---- graphs
    {"enable_cuda_graph", true, "0", kFlag,
     "Capture the model into a CUDA graph, and replay it (onnxruntime 1.26 or newer).",
     [](std::string_view value, Options& o) { return take(flag(value), o.enable_cuda_graph); }},
    {"min_num_runs_before_cuda_graph_capture", false, "2",
     "a number from 1 to 6 (onnxruntime gives up after eight runs in a row)",
     "Eager runs before the capture, in each thread and for each graph id.",
     [](std::string_view value, Options& o) {
       return take(number(value, 1, kMostWarmUps), o.min_num_runs_before_cuda_graph_capture);
     }},
    {"graph_on_error", false, "fail", "fail or eager",
     "When a model can't be captured: fail the run with the reason, or warn and go on without graphs.",
     [](std::string_view value, Options& o) {
       if (value != "fail" && value != "eager") return false;
       o.graph_on_error = value == "fail" ? graph::OnError::fail : graph::OnError::eager;
       return true;
     }},

    {"auto_graph", false, "safe", "0, 1 or safe",
     "Capture what runs again with the same shapes, and replay it; the application has nothing to keep to. `safe` is 1 "
     "where captures survive a wait for the whole device in another thread, as with drivers of CUDA 13. Elsewhere it "
     "is 0.",
     [](std::string_view value, Options& o) { return flag_or_safe(value, o.auto_graph); }},
    {"auto_graph_limit", false, "128", "a number from 1 to 100000",
     "The most graphs that `auto_graph` keeps in a session: those that are used most.",
     [](std::string_view value, Options& o) { return take(number(value, 1, 100000), o.auto_graph_limit); }},
    {"auto_graph_mem_limit", false, "half", "a number of bytes, more than zero, or half",
     "The most device memory that graphs of `auto_graph` hold in a session: those that are used most. It is what they "
     "work in, and what the driver takes for them, which is estimated as 10 KiB a node. `half` is half of "
     "`gpu_mem_limit`, or of the device's memory.",
     bytes_of_graphs},
    {"conditional_nodes", false, "1", kFlag,
     "Let graphs hold an If or a Loop about which data on the device decides, if no shape depends on it and the driver "
     "is CUDA 12.8's or newer. Elsewhere onnxruntime runs these nodes.",
     [](std::string_view value, Options& o) { return take(flag(value), o.conditional_nodes); }},

    {"pad", false, "", "dimensions of the model's inputs with lengths, such as batch:1,2,4,8;sequence:64,128, or off",
     "Pad these dimensions to the next of their lengths, and cut what comes out. So few shapes are run, and with "
     "`auto_graph` each has a graph. A session fails if padding might change a result: every node of a region has to "
     "leave the rows of the dimension apart; attention and reductions are masked. `auto_graph` "
     "also pads a mask that grows from run to run, if no output shows its length; `off` stops that.",
     paddings},

    // ---- streams
    {"has_user_compute_stream", true, "0", kFlag,
     "Run on `user_compute_stream`. It need not be given, since an address implies it.",
     [](std::string_view value, Options& o) { return take(flag(value), o.has_user_compute_stream); }},
    {"user_compute_stream", true, "0", kAddress,
     "The address of a cudaStream_t of the application's. The session runs, captures and replays on it, and never "
     "destroys it.",
     [](std::string_view value, Options& o) { return pointer(value, o.user_compute_stream); }},
    {"do_copy_in_default_stream", true, "1", kFlag,
     "Copy between host and device on the stream that computes. With 0 copies have a stream of their own, and events "
     "keep both in order.",
     [](std::string_view value, Options& o) { return take(flag(value), o.do_copy_in_default_stream); }},
    {"use_ep_level_unified_stream", true, "0", kFlag,
     "One stream for all of the session's runs and copies; its runs then come one after another.",
     [](std::string_view value, Options& o) { return take(flag(value), o.use_ep_level_unified_stream); }},
    {"run_after_default_stream", false, "1", kFlag,
     "Each run, a replay too, comes on the device after what the application has enqueued on its default stream, as "
     "torch does. So inputs that torch makes need no synchronisation. With 0 the application sees to that.",
     [](std::string_view value, Options& o) { return take(flag(value), o.default_stream.run_waits); }},
    {"default_stream_after_run", false, "0", kFlag,
     "What the application enqueues on its default stream after a run comes after that run on the device. So outputs "
     "of asynchronous runs that torch reads there need no synchronisation.",
     [](std::string_view value, Options& o) { return take(flag(value), o.default_stream.it_waits); }},

    // ---- memory
    {"gpu_mem_limit", true, kNoLimit, kLimit, "The most device memory that the session may hold, graphs included.",
     memory_limit},
    {"arena.max_mem", false, kNoLimit, kLimit, "The same as `gpu_mem_limit`.", memory_limit, "gpu_mem_limit"},
    {"arena_extend_strategy", true, "kNextPowerOfTwo", "kNextPowerOfTwo (0) or kSameAsRequested (1)",
     "Let the arena grow by doubling, or by what is asked for.", strategy},
    {"arena.extend_strategy", false, "kNextPowerOfTwo", "kNextPowerOfTwo (0) or kSameAsRequested (1)",
     "The same as `arena_extend_strategy`.", strategy, "arena_extend_strategy"},
    {"arena.initial_chunk_size_bytes", false, "1048576", kBytesOrDefault,
     "The arena's first piece of device memory, if it grows by doubling.",
     [](std::string_view value, Options& o) { return bytes_or_default(value, o.initial_chunk_bytes); }},
    {"arena.initial_growth_chunk_size_bytes", false, "0", kBytesOrDefault,
     "The least by which the arena grows after a shrink, if it grows by doubling. 0: as at first.",
     [](std::string_view value, Options& o) { return bytes_or_default(value, o.initial_growth_bytes); }},
    {"arena.max_power_of_two_extend_bytes", false, "1073741824", kBytesOrDefault,
     "The most by which the arena grows at once, unless one tensor needs more.",
     [](std::string_view value, Options& o) { return bytes_or_default(value, o.largest_growth_bytes); }},
    {"arena.max_dead_bytes_per_chunk", false, "0", kBytesOrDefault,
     "A free block is handed out whole if no more than this would be left over. 0: blocks are always cut to size.",
     [](std::string_view value, Options& o) { return bytes_or_default(value, o.dead_bytes_per_chunk); }},
    {"use_arena", false, "1", kFlag, "Keep freed device memory for later. With 0 the driver gets it back each time.",
     [](std::string_view value, Options& o) { return take(flag(value), o.use_arena); }},
    {"arena.use_cuda_mempool", false, "0", kFlag,
     "Leave the reuse of device memory to a stream-ordered pool of CUDA's (cudaMallocAsync) instead of the arena.",
     [](std::string_view value, Options& o) { return take(flag(value), o.use_mempool); }},
    {"arena.cuda_mempool_release_threshold", false, "0", kBytes,
     "What that pool keeps of its unused memory whenever the host waits for the device.",
     [](std::string_view value, Options& o) { return bytes(value, o.mempool_release_threshold); }},
    {"arena.cuda_mempool_bytes_to_keep_on_shrink", false, "0", kBytes, "What that pool keeps when the arena is shrunk.",
     [](std::string_view value, Options& o) { return bytes(value, o.mempool_keep_on_shrink); }},
    {"gpu_external_alloc", true, "0", kAddress,
     "A function `void* (size_t bytes)` of the application's that gives the session all its device memory.",
     [](std::string_view value, Options& o) { return pointer(value, o.external.allocate); }},
    {"gpu_external_free", true, "0", kAddress, "A function `void (void*)` that takes it back.",
     [](std::string_view value, Options& o) { return pointer(value, o.external.free); }},
    {"gpu_external_empty_cache", true, "0", kAddress, "A function `void ()`, called after a shrink; optional.",
     [](std::string_view value, Options& o) { return pointer(value, o.external.empty_cache); }},

    // ---- computing
    {"use_tf32", true, "1", kFlag, "Let float matrix products, convolutions and attention use TF32 tensor cores.",
     [](std::string_view value, Options& o) { return take(flag(value), o.use_tf32); }},
    {"deterministic", false, "0", kFlag,
     "Compute the same bits in every session: nothing is chosen by timing, and algorithms of libraries that vary are "
     "left out. onnxruntime's own `use_deterministic_compute` does not reach providers.",
     [](std::string_view value, Options& o) { return take(flag(value), o.deterministic); }},
    {"enable_cudnn", false, "1", kFlag,
     "Use cuDNN for convolutions and attention. With 0, or if there is none, convolutions become matrix products, and "
     "the log says so.",
     [](std::string_view value, Options& o) { return take(flag(value), o.enable_cudnn); }},
    {"cudnn_conv_algo_search", true, "EXHAUSTIVE", "EXHAUSTIVE, HEURISTIC or DEFAULT",
     "How cuDNN's engine for a new convolution is chosen. EXHAUSTIVE times the candidates in the first run; "
     "`tuning_cache` keeps what it found. HEURISTIC trusts cuDNN's heuristics, as do sessions with `deterministic`. "
     "DEFAULT takes the first engine that works.",
     [](std::string_view value, Options& o) {
       if (value != "EXHAUSTIVE" && value != "HEURISTIC" && value != "DEFAULT") return false;
       o.conv_search = value == "EXHAUSTIVE"  ? ConvSearch::exhaustive
                       : value == "HEURISTIC" ? ConvSearch::heuristic
                                              : ConvSearch::standard;
       return true;
     }},
    {"cudnn_conv_use_max_workspace", true, "1", kFlag,
     "Let convolutions use up to 1 GiB of scratch memory (256 MiB without cuDNN) if that is faster. With 0 they have "
     "32 MiB.",
     [](std::string_view value, Options& o) { return take(flag(value), o.conv_max_workspace); }},
    {"cudnn_conv1d_pad_to_nc1d", true, "0", kFlag,
     "Give one-dimensional convolutions to cuDNN as [N, C, 1, D] instead of [N, C, D, 1].",
     [](std::string_view value, Options& o) { return take(flag(value), o.conv1d_pad_to_nc1d); }},
    {"fuse_conv_bias", true, "0", kFlag,
     "Add a convolution's bias inside cuDNN's own kernel wherever it can. With 0 that is done only where timing found "
     "it faster.",
     [](std::string_view value, Options& o) { return take(flag(value), o.fuse_conv_bias); }},
    {"fuse_nodes", false, "1", kFlag,
     "Make one node of several that belong together: convolutions and what stands between them, with the channels last "
     "inside; attention in halves that is spelled out; a softmax and its mask; a product and its bias; a Gelu; a "
     "residual sum and its norm; x * sigmoid(x) * y; a norm and the product by quantized weights that alone reads it. "
     "With `enable_cuda_graph` also a whole model that computes with its shapes on the device. onnxruntime can't save "
     "such a model: `encore.session` leaves this off for `optimized_model_filepath`, as does `ep.context_enable`.",
     [](std::string_view value, Options& o) { return take(flag(value), o.fuse_nodes); }},
    {"fuse_elementwise", false, "1", kFlag,
     "Make one kernel of elementwise nodes in a region whose outputs have one shape. Profiles tell such nodes as one; "
     "with 0 they tell each.",
     [](std::string_view value, Options& o) { return take(flag(value), o.fuse_elementwise); }},
    {"compile_elementwise", false, "1", "0, 1 or now",
     "Compile the kernels that `fuse_elementwise` makes by NVRTC, where graphs are captured. That takes about a tenth "
     "of "
     "a second for each that is new, in a thread beside. Meanwhile graphs have a kernel that interprets what it is to "
     "do, with results equal to the bit; what is compiled takes its place. With `now` a capture waits, with 0 all is "
     "interpreted, as where there is no NVRTC. `tuning_cache` keeps what was compiled.",
     [](std::string_view value, Options& o) { return compile_when(value, o.compile_elementwise); }},
    {"regions", false, "1", "0, 1 or all",
     "Make one node of all that Encore can run together; the host has less to do for it. Such a region ends at nodes "
     "of "
     "other providers, at sizes that depend on data and, without graphs, at control flow about which data decides. "
     "There are no regions without `fuse_nodes`, nor with `optimized_model_filepath`. With `all` a node that has "
     "nothing "
     "beside it is one, too, which gains nothing but that `auto_graph` can be tried with it.",
     regions},
    {"prefer_nhwc", true, "0", kFlag,
     "Ask onnxruntime to put the channels last in convolutions, pools and batch normalisation, which suits tensor "
     "cores.",
     [](std::string_view value, Options& o) { return take(flag(value), o.prefer_nhwc); }},
    {"prefer_nhwc_layout", false, "0", kFlag, "The same as `prefer_nhwc`.",
     [](std::string_view value, Options& o) { return take(flag(value), o.prefer_nhwc); }, "prefer_nhwc"},
    {"sdpa_kernel", true, "0", "a number from 0 to 1023, the sum of the kernels' bits",
     "Which kernels attention may use, by the bits of onnxruntime's CUDA provider. The bit 8 allows cuDNN's, where it "
     "serves; any others stand for Encore's own, which are always there. 0 is all of them.",
     [](std::string_view value, Options& o) { return take(number(value, 0, 1023), o.sdpa_kernel); }},
    {"enable_skip_layer_norm_strict_mode", true, "0", kFlag,
     "Compute SkipLayerNormalization of float in double. Halves are computed in float in any case.",
     [](std::string_view value, Options& o) { return take(flag(value), o.strict_skip_layer_norm); }},
    {"tunable_op_enable", true, "0", kFlag, "Allow tuning, and use what it finds.",
     [](std::string_view value, Options& o) { return take(flag(value), o.tunable_op); }},
    {"tunable_op_tuning_enable", true, "0", kFlag,
     "Time the best few algorithms for each new matrix product and convolution outside of captures, and remember the "
     "fastest.",
     [](std::string_view value, Options& o) { return take(flag(value), o.tunable_op_tuning); }},
    {"tunable_op_max_tuning_duration_ms", true, "0", "a number of milliseconds",
     "The most time spent on tuning one matrix product. 0: no limit.",
     [](std::string_view value, Options& o) { return take(number(value, 0, INT32_MAX), o.tunable_op_max_ms); }},
    {"tuning_cache", false, "", "the path of a file",
     "Keep in this file what was chosen for convolutions, cuDNN's compiled plans and elementwise kernels, so that the "
     "next process's first run need neither search nor compile. One file may serve several models, devices, versions "
     "of "
     "cuDNN and processes at a time. What is damaged is not used, and the log says so. Who may write the file may have "
     "the GPU run anything.",
     [](std::string_view value, Options& o) {
       o.tuning_cache = value;
       return true;
     }},

    {"log_placement", false, "0", kFlag,
     "Log as warnings each node that is left to another provider, and why. Those of com.microsoft are logged anyway.",
     [](std::string_view value, Options& o) { return take(flag(value), o.log_placement); }},
    {"dump_regions", false, "", "the path of a folder",
     "Write into this folder, for each node that is made of others, what it computes as text: as its nodes were, and "
     "after each pass that rewrote them. A session fails if that cannot be written.",
     [](std::string_view value, Options& o) {
       o.dump_regions = value;
       return true;
     }},
};

}  // namespace

std::span<const OptionRow> option_rows() { return kRows; }

}  // namespace encore::plugin
