#include "plugin/options/library_settings.h"

namespace encore::plugin {

device::BlasSettings blas_settings(const Options& options) {
  return {.tune = options.tunable_op_tuning, .max_tuning_ms = options.tunable_op_max_ms};
}

device::DnnSettings dnn_settings(const Options& options) {
  using device::DnnSearch;
  constexpr int kDnnAttention = 8;  // the bit of sdpa_kernel
  const bool measures = options.conv_search == ConvSearch::exhaustive || options.tunable_op_tuning;
  return {.wanted = options.enable_cudnn,
          .search = measures                                      ? DnnSearch::measured
                    : options.conv_search == ConvSearch::standard ? DnnSearch::standard
                                                                  : DnnSearch::heuristics,
          .most_workspace_bytes = size_t(options.conv_max_workspace ? 1024 : 32) << 20,
          .always_fuse = options.fuse_conv_bias,
          .deterministic = options.deterministic,
          .lines_are_rows = options.conv1d_pad_to_nc1d,
          .attention = options.sdpa_kernel == 0 || (options.sdpa_kernel & kDnnAttention) != 0};
}

}  // namespace encore::plugin
