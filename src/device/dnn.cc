#include "device/dnn.h"

#include "device/error.h"
#include "device/tuning_cache.h"

namespace encore::device {

std::string describe(const Convolution& problem) {
  static constexpr const char* kCurves[] = {"", ", relu", ", silu", ", gelu", ", gelu by tanh"};
  const auto list = [](const std::vector<int64_t>& values) {
    std::string all = "[";
    for (size_t i = 0; i < values.size(); ++i) all += text(i ? "," : "", values[i]);
    return all + "]";
  };
  return text(problem.channels_last ? "channels-last " : "", problem.transposed ? "transposed " : "", "convolution of ",
              name(problem.type), " x=", list(problem.x), " w=", list(problem.w), " y=", list(problem.y),
              " pads=", list(problem.pads_begin), list(problem.pads_end), " strides=", list(problem.strides),
              " dilations=", list(problem.dilations), " groups=", problem.groups, problem.has_bias ? ", bias" : "",
              problem.has_residual ? ", residual" : "", kCurves[size_t(problem.curve)]);
}

std::string tuning_key(const Convolution& problem, const DnnSettings& settings) {
  return text(describe(problem), problem.tf32 ? ", tf32" : "", ", search=", int(settings.search),
              " workspace=", settings.most_workspace_bytes, settings.always_fuse ? " fused" : "",
              settings.deterministic ? " deterministic" : "", settings.lines_are_rows ? " rows" : " columns");
}

// A line of numbers and the engine, and the plan.
std::string TunedConvolution::encode() const {
  return text(int(fused), ' ', int(deterministic), ' ', int(rival_timed), ' ', int(rival_won), ' ', timed, ' ',
              candidate, ' ', first_us, ' ', us, ' ', engine, '\n', plan);
}

std::optional<TunedConvolution> TunedConvolution::decode(std::string_view text) {
  TunedConvolution tuned;
  const auto flag = [&](bool& value) {
    int number = 0;
    const bool is = take_number(text, number) && (number == 0 || number == 1);
    value = number != 0;
    return is;
  };
  if (!flag(tuned.fused) || !flag(tuned.deterministic) || !flag(tuned.rival_timed) || !flag(tuned.rival_won) ||
      !take_number(text, tuned.timed) || !take_number(text, tuned.candidate) || !take_number(text, tuned.first_us) ||
      !take_number(text, tuned.us))
    return std::nullopt;
  const size_t end = text.find('\n');
  if (end == std::string_view::npos || tuned.candidate < 0) return std::nullopt;
  tuned.engine = text.substr(0, end);
  tuned.plan = text.substr(end + 1);
  return tuned;
}

void warn_of_absence(const DnnSettings& settings, const std::string& why) {
  if (settings.warn) settings.warn("convolutions run as matrix products, which is slower: " + why);
}

}  // namespace encore::device
