#include "device/dnn.h"

#include "device/error.h"

namespace encore::device {

std::string describe(const Convolution& problem) {
  const auto list = [](const std::vector<int64_t>& values) {
    std::string all = "[";
    for (size_t i = 0; i < values.size(); ++i) all += text(i ? "," : "", values[i]);
    return all + "]";
  };
  return text(problem.channels_last ? "channels-last " : "", problem.transposed ? "transposed " : "", "convolution of ",
              name(problem.type), " x=", list(problem.x), " w=", list(problem.w), " y=", list(problem.y),
              " pads=", list(problem.pads_begin), list(problem.pads_end), " strides=", list(problem.strides),
              " dilations=", list(problem.dilations), " groups=", problem.groups, problem.has_bias ? ", bias" : "",
              problem.has_residual ? ", residual" : "", problem.relu ? ", relu" : "");
}

void warn_of_absence(const DnnSettings& settings, const std::string& why) {
  if (settings.warn) settings.warn("convolutions run as matrix products, which is slower: " + why);
}

}  // namespace encore::device
