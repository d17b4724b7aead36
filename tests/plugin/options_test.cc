#include "plugin/options/options.h"

#include <gtest/gtest.h>

#include "device/error.h"
#include "plugin/factory.h"
#include "plugin/options/library_settings.h"

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
  for (const OptionRow& row : option_rows()) {
    Options parsed = made;
    EXPECT_TRUE(row.parse(row.otherwise, parsed)) << row.key;
    EXPECT_EQ(made, parsed) << row.key;
  }
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

TEST(Options, ALimitMayBeNone) {
  EXPECT_EQ(parse_options(kName, {{"gpu_mem_limit", "unlimited"}}), parse_options(kName, {}));
  EXPECT_EQ(parse_options(kName, {{"ep.cuda.auto_graph_mem_limit", "half"}}), parse_options(kName, {}));
  EXPECT_EQ(parse_options(kName, {{"ep.cuda.auto_graph_mem_limit", "4096"}}).auto_graph_mem_limit, 4096u);
}

TEST(Options, OfTheSessionAreNotJudged) {
  EXPECT_EQ(refusal({{"session.disable_prepacking", "1"}, {"graph_on_eror", "x"}, {"ep.context_enable", "1"}}),
            "accepted");
}

// Only what OrtCUDAProviderOptionsV2 knows is read without a prefix.
TEST(Options, UnderKeysThatNobodyReadsAreRefused) {
  for (const std::string key :
       {"log_placement", "ep.CUDA.log_placement", "EP.CudaPluginExecutionProvider.log_placement",
        "ep.encore.log_placement", "encore.log_placement"})
    EXPECT_EQ(refusal({{key, "1"}}), "unknown provider option '" + key + "'; did you mean 'ep.cuda.log_placement'?");
}

TEST(Options, UnknownOnesNameTheNearest) {
  EXPECT_EQ(refusal({{"ep.cuda.enable_cuda_grph", "1"}}),
            "unknown provider option 'ep.cuda.enable_cuda_grph'; did you mean 'ep.cuda.enable_cuda_graph'?");
  EXPECT_EQ(refusal({{"ep.cudapluginexecutionprovider.tf32", "1"}}),
            "unknown provider option 'ep.cudapluginexecutionprovider.tf32'; did you mean "
            "'ep.cudapluginexecutionprovider.use_tf32'?");
  // A key without a dot is answered by one without, which may be a keyword in Python.
  EXPECT_EQ(refusal({{"ep.cuda.max_mem", "1"}}),
            "unknown provider option 'ep.cuda.max_mem'; did you mean 'ep.cuda.gpu_mem_limit'?");
  EXPECT_EQ(refusal({{"ep.cuda.arena.maxmem", "1"}}),
            "unknown provider option 'ep.cuda.arena.maxmem'; did you mean 'ep.cuda.arena.max_mem'?");
  EXPECT_EQ(refusal({{"ep.cuda.sess_options", "1"}}),
            "unknown provider option 'ep.cuda.sess_options'; docs/options.md has all that there are");
}

TEST(Options, BadValuesAreNamedWithWhatIsAllowed) {
  const std::pair<const char*, const char*> cases[] = {{"device_id", "-1"},
                                                       {"device_id", ""},
                                                       {"device_id", "0x1"},
                                                       {"use_tf32", "2"},
                                                       {"cudnn_conv_algo_search", "FASTEST"},
                                                       {"arena.max_dead_bytes_per_chunk", "-2"},
                                                       {"tunable_op_max_tuning_duration_ms", "-1"},
                                                       {"enable_cuda_graph", "on"},
                                                       {"compile_elementwise", "later"},
                                                       {"regions", "lone"},
                                                       {"graph_on_error", "Fail"},
                                                       {"gpu_mem_limit", "0"},
                                                       {"gpu_mem_limit", "1GB"},
                                                       {"auto_graph_mem_limit", "0"},
                                                       {"auto_graph_mem_limit", "unlimited"},
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

TEST(Options, AddressesAreDecimalOrHexadecimal) {
  for (const char* value : {"65536", "0x10000", "0X10000"}) {
    const Options options = parse_options(kName, {{"user_compute_stream", value}});
    EXPECT_EQ(options.user_compute_stream, reinterpret_cast<void*>(0x10000));
    EXPECT_TRUE(options.has_user_compute_stream);
  }
  for (const char* value : {"", "0x", "stream", "-1", "0x1g", "99999999999999999999"})
    EXPECT_TRUE(refusal({{"user_compute_stream", value}}).ends_with("an address, decimal or with 0x")) << value;
}

TEST(Options, FlagsAreNumbersOrWords) {
  for (const char* value : {"1", "true", "True"})
    EXPECT_TRUE(parse_options(kName, {{"prefer_nhwc", value}}).prefer_nhwc) << value;
  for (const char* value : {"0", "false", "False"})
    EXPECT_FALSE(parse_options(kName, {{"use_tf32", value}}).use_tf32) << value;
}

TEST(Options, ProgramsAreCompiledBesideAtOnceOrNever) {
  using enum device::CompilerSettings::When;
  for (const auto& [value, when] : {std::pair("0", never), std::pair("1", in_background), std::pair("now", at_once)})
    EXPECT_EQ(parse_options(kName, {{"ep.cuda.compile_elementwise", value}}).compile_elementwise, when);
}

TEST(Options, RegionsAreOfSeveralNodesOrOfEach) {
  for (const auto& [value, has, has_lone] :
       {std::tuple("0", false, false), std::tuple("1", true, false), std::tuple("all", true, true)}) {
    const Options options = parse_options(kName, {{"ep.cuda.regions", value}, {"ep.cuda.auto_graph", "0"}});
    EXPECT_EQ(options.has_regions(), has) << value;
    EXPECT_EQ(options.lone_regions, has_lone) << value;
  }
}

TEST(LibrarySettings, FollowTheOptions) {
  EXPECT_FALSE(blas_settings({}).tune);
  const device::DnnSettings by_default = dnn_settings({});
  EXPECT_TRUE(by_default.wanted);
  EXPECT_EQ(by_default.search, device::DnnSearch::measured);
  EXPECT_EQ(by_default.most_workspace_bytes, size_t(1) << 30);
  EXPECT_FALSE(by_default.always_fuse || by_default.deterministic || by_default.lines_are_rows);

  const auto of = [](const Config& config) { return parse_options(kName, config); };
  const Options tuned = of({{"tunable_op_enable", "1"},
                            {"tunable_op_tuning_enable", "1"},
                            {"tunable_op_max_tuning_duration_ms", "7"},
                            {"cudnn_conv_algo_search", "HEURISTIC"}});
  EXPECT_TRUE(blas_settings(tuned).tune);
  EXPECT_EQ(blas_settings(tuned).max_tuning_ms, 7);
  EXPECT_EQ(dnn_settings(tuned).search, device::DnnSearch::measured) << "convolutions are tuned too";
  EXPECT_EQ(dnn_settings(of({{"cudnn_conv_algo_search", "HEURISTIC"}})).search, device::DnnSearch::heuristics);
  EXPECT_EQ(dnn_settings(of({{"cudnn_conv_algo_search", "DEFAULT"}})).search, device::DnnSearch::standard);
  EXPECT_EQ(dnn_settings(of({{"cudnn_conv_use_max_workspace", "0"}})).most_workspace_bytes, size_t(32) << 20);
  EXPECT_TRUE(dnn_settings(of({{"fuse_conv_bias", "1"}})).always_fuse);
  EXPECT_TRUE(dnn_settings(of({{"ep.cuda.deterministic", "1"}})).deterministic);
  EXPECT_TRUE(dnn_settings(of({{"cudnn_conv1d_pad_to_nc1d", "1"}})).lines_are_rows);
  EXPECT_FALSE(dnn_settings(of({{"ep.cuda.enable_cudnn", "0"}})).wanted);
  EXPECT_TRUE(by_default.attention);
  for (const auto& [kernels, attention] :
       {std::pair{"0", true}, {"8", true}, {"24", true}, {"1", false}, {"16", false}})
    EXPECT_EQ(dnn_settings(of({{"sdpa_kernel", kernels}})).attention, attention) << kernels;
}

TEST(Options, SpellingsOfOneOptionAgree) {
  EXPECT_EQ(parse_options(kName, {{"ep.cuda.arena.max_mem", "4096"}}).gpu_mem_limit, 4096u);
  EXPECT_FALSE(parse_options(kName, {{"ep.cuda.arena.extend_strategy", "1"}}).grow_by_doubling);
  EXPECT_TRUE(parse_options(kName, {{"ep.cuda.prefer_nhwc_layout", "1"}}).prefer_nhwc);
  EXPECT_EQ(refusal({{"ep.cuda.arena.max_mem", "4096"}, {"gpu_mem_limit", "8192"}}),
            "provider option 'gpu_mem_limit' is '8192', but 'ep.cuda.arena.max_mem' is '4096'; give one of them");
}

TEST(Options, WhatExcludesEachOtherIsRefused) {
  const std::string p = "ep.cuda.";
  const std::pair<Config, const char*> cases[] = {
      {{{"has_user_compute_stream", "1"}}, "'user_compute_stream' gives no stream"},
      {{{"has_user_compute_stream", "1"}, {"user_compute_stream", "0"}}, "gives no stream"},
      {{{"has_user_compute_stream", "0"}, {"user_compute_stream", "0x10"}}, "leave one of them out"},
      {{{"gpu_external_alloc", "16"}}, "without 'gpu_external_free'"},
      {{{"gpu_external_free", "16"}}, "without 'gpu_external_alloc'"},
      {{{"gpu_external_empty_cache", "16"}}, "without 'gpu_external_alloc'"},
      {{{"gpu_external_alloc", "16"}, {"gpu_external_free", "16"}, {"user_compute_stream", "16"}}, "'user_compute_s"},
      {{{"gpu_external_alloc", "16"}, {"gpu_external_free", "16"}, {"gpu_mem_limit", "16"}}, "'gpu_mem_limit'"},
      {{{"gpu_external_alloc", "16"}, {"gpu_external_free", "16"}, {p + "arena.use_cuda_mempool", "1"}}, "mempool"},
      {{{p + "use_arena", "0"}, {p + "arena.use_cuda_mempool", "1"}}, "'use_arena=0'"},
      {{{p + "arena.cuda_mempool_release_threshold", "1"}}, "needs 'arena.use_cuda_mempool=1'"},
      {{{"tunable_op_tuning_enable", "1"}}, "needs 'tunable_op_enable=1'"},
      {{{"tunable_op_tuning_enable", "1"}, {"tunable_op_enable", "1"}, {p + "deterministic", "1"}}, "deterministic"},
  };
  for (const auto& [config, told] : cases) EXPECT_NE(refusal(config).find(told), std::string::npos) << refusal(config);
  EXPECT_EQ(refusal({{"gpu_external_alloc", "16"}, {"gpu_external_free", "16"}}), "accepted");
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
