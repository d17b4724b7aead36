// How cuDNN's plans for convolutions are found. What is dear is to build them, for cuDNN compiles some: several threads
// do that, each with a handle of its own. Timed they are one after another.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/cuda/dnn_handle.h"
#include "device/cuda/dnn_plan.h"

namespace encore::device {

struct ConvolutionSearch {
  const Convolution* problem;
  std::optional<TunedConvolution> known;  // by an earlier search
  // What is found:
  std::unique_ptr<ConvolutionPlan> plan;  // null: cuDNN has no engine
  bool taken_over = false;                // as it was known
  std::string reasons;                    // of those that would not do
};

// The convolution and what follows it as one, or alone: whichever is faster if measured, else as the settings say; the
// other where cuDNN has no such engine. If all else fails, one whose sums may differ from run to run. The library is
// open, and this thread has the handle. They are timed on the stream, best that of the run that waits for them: once
// kernels were launched on some more streams, each kernel of all graphs of the process begins later
// (bench/streams.py).
void find_plans(DnnHandle& dnn, std::vector<ConvolutionSearch>& searches, StreamRef stream);

// Whether ENCORE_CONV_SEARCH asks for what searches do on stderr.
bool tells_searches();

// Of what follows a convolution that is done alone: a launch, and reading and writing y. For choosing, not for show.
double time_of_rest_us(const Convolution& problem);
// What no kernel does it in.
double least_time_us(const Convolution& problem);

}  // namespace encore::device
