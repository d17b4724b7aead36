// Convolutions of f32, f16 and bf16 through cuDNN's graph API (it scales doubles by a float: f64 is refused). The
// virtual GPU has none: there, and on machines without cuDNN, the ops room lowers convolutions to im2col and a matrix
// product.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/blas.h"
#include "device/stream.h"
#include "device/type.h"

namespace encore::device {

// y = curve(conv(x, w) + bias? + residual?), NC[D]HW and OI[D]HW, one to three spatial dimensions. With `transposed`
// the roles of x and y swap: w is I(O/groups)HW as ONNX has it for ConvTranspose.
struct Convolution {
  enum class Curve { none, relu, silu, gelu, gelu_tanh };
  Type type = Type::f32;
  std::vector<int64_t> x, w, y;  // full dimensions
  std::vector<int64_t> pads_begin, pads_end, strides, dilations;
  int64_t groups = 1;
  bool transposed = false;
  bool channels_last = false;  // in memory, for all three: x and y as N[D]HWC, w as O[D]HWI
  bool has_bias = false, has_residual = false;
  Curve curve = Curve::none;
  bool tf32 = false;

  bool is_alone() const { return !has_bias && !has_residual && curve == Curve::none; }
  bool operator==(const Convolution&) const = default;
};
std::string describe(const Convolution& problem);

// How an engine is chosen for a new problem.
enum class DnnSearch {
  measured,    // by timing cuDNN's candidates
  heuristics,  // as cuDNN's heuristics say
  standard,    // the first of those that do without heuristics
};

class TuningCache;

struct DnnSettings {
  bool wanted = true;  // if not, it is never available
  DnnSearch search = DnnSearch::measured;
  size_t most_workspace_bytes = size_t(1) << 30;
  bool always_fuse = false;    // a convolution and what follows it as one, if cuDNN can; else only if measured faster
  bool deterministic = false;  // only sums that don't differ from run to run, and nothing chosen by timing
  bool lines_are_rows = true;  // one spatial dimension becomes [1, D], else [D, 1]
  bool attention = true;       // attention may use it, too (device/dnn_attention.h)
  // Device memory for timing candidates, free of any stream's work; Error{out_of_memory} leaves candidates out. None
  // given: the driver's.
  std::function<std::shared_ptr<void>(size_t bytes)> memory = {};
  // Called once if convolutions want cuDNN and there is none, and for each problem that it has no engine for.
  std::function<void(const std::string& message)> warn = {};
  // What was chosen in earlier sessions and processes, and where it is kept for later ones. None given: what this
  // process found serves.
  std::shared_ptr<TuningCache> tuning = {};

  bool measures() const { return search == DnnSearch::measured && !deterministic; }
};

// What was chosen for a problem.
struct TunedConvolution {
  bool fused = true;          // with what follows it
  bool deterministic = true;  // among engines whose sums don't differ from run to run
  bool rival_timed = false, rival_won = false;
  int timed = 0;               // candidates
  int64_t candidate = 0;       // of cuDNN's list, the heuristics' favourites first
  float first_us = 0, us = 0;  // the first candidate's, and that of what was chosen; 0: not timed
  std::string engine;          // as cuDNN calls it
  std::string plan;            // as cuDNN serializes it; empty if it doesn't

  bool operator==(const TunedConvolution&) const = default;
  std::string encode() const;
  static std::optional<TunedConvolution> decode(std::string_view text);
};
// Of what is chosen for the problem under these settings; different where the choice may be.
std::string tuning_key(const Convolution& problem, const DnnSettings& settings);

// What both back ends say.
inline constexpr const char* kDnnSwitchedOff = "cuDNN is switched off";
void warn_of_absence(const DnnSettings& settings, const std::string& why);

struct DnnHandle;  // the back end's

class Dnn {
 public:
  explicit Dnn(int device, DnnSettings settings = {});  // opens nothing yet
  ~Dnn();
  Dnn(const Dnn&) = delete;

  const DnnSettings& settings() const;
  DnnHandle& handle();  // for what cuDNN does beside convolutions
  // Whether cuDNN could be opened, which is tried once; if not, `why` says which version was wanted and where it was
  // looked for.
  bool available(std::string* why = nullptr);
  struct Prepared {
    size_t workspace_bytes;
    bool fused;  // if not, cuDNN has the convolution alone: run() leaves bias, residual and curve to the caller
    int timed;   // how many candidates were timed
    std::string_view engine;  // as cuDNN calls it
    bool rival_won = false;   // the caller's own way is faster
  };
  // The problem will be prepared later; what is known when the first one is gets prepared together, by several threads.
  // With -1 images in x and y it is expected with as many as that first one has.
  void expect(const Convolution& problem);
  // What was chosen by timing in this session, or taken over from earlier ones.
  std::vector<TunedProduct> tuned() const;
  // Enqueues another way to do the whole problem on the stream that is prepared for, as often as it is called.
  using Rival = std::function<void()>;
  // Builds (or finds) the plan for this problem; measuring it takes time of the device, but not the stream, unless
  // there is a rival: that is timed on the stream, beside cuDNN's engines.
  // Nothing if cuDNN has no engine for it that the settings allow.
  // During a capture a plan must be there already: Error{capture_forbidden} asks for a warm-up with these shapes.
  // Plans, and so this object, must outlive the graphs that were captured.
  std::optional<Prepared> prepare(StreamRef stream, const Convolution& problem, const Rival& rival = {});
  // Every address must be aligned to 16 bytes.
  void run(StreamRef stream, const Convolution& problem, const void* x, const void* w, const void* bias,
           const void* residual, void* y, void* workspace);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace encore::device
