#include "plugin/options.h"

#include <gtest/gtest.h>

#include "device/error.h"
#include "plugin/factory.h"

namespace encore::plugin {
namespace {

using Config = std::map<std::string, std::string>;
constexpr const char* kName = "CudaPluginExecutionProvider";

std::string refusal(const Config& config) {
  try {
    parse_options(kName, config);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_input);
    return error.what();
  }
  return "accepted";
}

TEST(Options, DefaultsAreWhatTheTableSays) {
  const Options made = parse_options(kName, {});
  Options parsed;
  for (const OptionRow& row : option_rows()) EXPECT_TRUE(row.parse(row.otherwise, parsed)) << row.key;
  EXPECT_EQ(made.device_id, parsed.device_id);
  EXPECT_EQ(made.enable_cuda_graph, parsed.enable_cuda_graph);
  EXPECT_EQ(made.min_num_runs_before_cuda_graph_capture, parsed.min_num_runs_before_cuda_graph_capture);
  EXPECT_EQ(made.graph_on_error, parsed.graph_on_error);
  EXPECT_EQ(made.use_tf32, parsed.use_tf32);
  EXPECT_EQ(made.enable_cudnn, parsed.enable_cudnn);
  EXPECT_EQ(made.gpu_mem_limit, parsed.gpu_mem_limit);
  EXPECT_EQ(made.grow_by_doubling, parsed.grow_by_doubling);
  EXPECT_EQ(made.log_placement, parsed.log_placement);
}

TEST(Options, AreReadUnderEachPrefixAndBare) {
  const Options options = parse_options(kName, {{"ep.cudapluginexecutionprovider.device_id", "3"},
                                                {"ep.cuda.graph_on_error", "eager"},
                                                {"enable_cuda_graph", "True"},
                                                {"gpu_mem_limit", "1048576"}});
  EXPECT_EQ(options.device_id, 3);
  EXPECT_EQ(options.graph_on_error, graph::OnError::eager);
  EXPECT_TRUE(options.enable_cuda_graph);
  EXPECT_EQ(options.gpu_mem_limit, 1048576u);
}

TEST(Options, OfTheSessionAreNotJudged) {
  EXPECT_EQ(refusal({{"session.disable_prepacking", "1"}, {"graph_on_eror", "x"}, {"ep.context_enable", "1"}}),
            "accepted");
  // Only what OrtCUDAProviderOptionsV2 knows is read without a prefix.
  EXPECT_EQ(parse_options(kName, {{"log_placement", "1"}}).log_placement, false);
}

TEST(Options, UnknownOnesNameTheNearest) {
  EXPECT_EQ(refusal({{"ep.cuda.enable_cuda_grph", "1"}}),
            "unknown provider option 'ep.cuda.enable_cuda_grph'; did you mean 'ep.cuda.enable_cuda_graph'?");
  EXPECT_EQ(refusal({{"ep.cudapluginexecutionprovider.tf32", "1"}}),
            "unknown provider option 'ep.cudapluginexecutionprovider.tf32'; did you mean "
            "'ep.cudapluginexecutionprovider.use_tf32'?");
}

TEST(Options, BadValuesAreNamedWithWhatIsAllowed) {
  const std::pair<const char*, const char*> cases[] = {{"device_id", "-1"},
                                                       {"device_id", ""},
                                                       {"device_id", "0x1"},
                                                       {"use_tf32", "2"},
                                                       {"enable_cuda_graph", "on"},
                                                       {"graph_on_error", "Fail"},
                                                       {"gpu_mem_limit", "0"},
                                                       {"gpu_mem_limit", "1GB"},
                                                       {"gpu_mem_limit", "18446744073709551616"},
                                                       {"arena_extend_strategy", "double"},
                                                       {"min_num_runs_before_cuda_graph_capture", "0"},
                                                       {"min_num_runs_before_cuda_graph_capture", "7"}};
  for (const auto& [key, value] : cases) {
    const std::string full = std::string("ep.cuda.") + key;
    const std::string told = refusal({{full, value}});
    EXPECT_TRUE(told.starts_with("provider option '" + full + "' is '" + value + "'; it must be ")) << told;
  }
}

TEST(Options, ContradictionsNameBoth) {
  EXPECT_EQ(refusal({{"ep.cuda.use_tf32", "0"}, {"use_tf32", "1"}}),
            "provider option 'use_tf32' is '1', but 'ep.cuda.use_tf32' is '0'; give one of them");
  EXPECT_EQ(refusal({{"ep.cuda.use_tf32", "0"}, {"use_tf32", "0"}}), "accepted");
}

TEST(Options, TheCudaNameHasBothPrefixes) {
  for (const char* prefix : {"ep.cudaexecutionprovider.", "ep.cuda."})
    EXPECT_TRUE(parse_options("CUDAExecutionProvider", {{prefix + std::string("log_placement"), "1"}}).log_placement);
}

TEST(EpName, IsTheRegistrationNameIfItIsOneOfAProvider) {
  EXPECT_EQ(ep_name_for("CudaPluginExecutionProvider"), "CudaPluginExecutionProvider");
  EXPECT_EQ(ep_name_for("CUDAExecutionProvider"), "CUDAExecutionProvider");
  EXPECT_EQ(ep_name_for("encore"), "CUDAExecutionProvider");
  EXPECT_EQ(ep_name_for(""), "CUDAExecutionProvider");
}

}  // namespace
}  // namespace encore::plugin
