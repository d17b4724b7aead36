#include "device/tuning_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "device/dnn.h"

namespace encore::device {
namespace {

namespace fs = std::filesystem;

class TuningCacheTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }

  std::string content() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& bytes) const { std::ofstream(path, std::ios::binary) << bytes; }
  void save_two() const {
    TuningCache cache(path);
    cache.put("one", "1");
    cache.put(std::string("t\0wo\n", 5), std::string(1000, '\0'));
    ASSERT_EQ(cache.save(), "");
  }

  const fs::path folder = fs::temp_directory_path() / ("encore_tuning_" + std::to_string(getpid()));
  const std::string path = folder / "cache";
};

TEST_F(TuningCacheTest, KeepsWhatWasPut) {
  EXPECT_EQ(TuningCache(path).complaint(), "") << "there is no file yet";
  save_two();
  const TuningCache again(path);
  EXPECT_EQ(again.complaint(), "");
  EXPECT_EQ(again.size(), 2u);
  EXPECT_EQ(again.find("one"), "1");
  EXPECT_EQ(again.find(std::string("t\0wo\n", 5)), std::string(1000, '\0'));
  EXPECT_FALSE(again.find("three"));
}

TEST_F(TuningCacheTest, LeavesNothingBesideTheFile) {
  save_two();
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST_F(TuningCacheTest, EveryDamageIsTold) {
  save_two();
  const std::string good = content();
  for (size_t length = 1; length < good.size(); length += length < 80 ? 1 : 97) {
    write(good.substr(0, length));
    const TuningCache cache(path);
    const bool ends_well = cache.size() > 0 || length == good.find('\n') + 1;  // an entry's end, or the first line's
    EXPECT_EQ(cache.complaint().empty(), ends_well) << length << " bytes: " << cache.complaint();
    EXPECT_LT(cache.size(), 2u);
  }
  for (size_t at = 0; at < good.size(); at += at < 80 ? 1 : 97) {
    std::string bad = good;
    bad[at] = char(bad[at] ^ 0x41);
    write(bad);
    const TuningCache cache(path);
    EXPECT_NE(cache.complaint().find(path), std::string::npos) << "byte " << at;
    EXPECT_EQ(cache.size(), 0u) << "byte " << at;
  }
}

TEST_F(TuningCacheTest, DamageIsReplacedByTheNextSave) {
  save_two();
  write(content().substr(0, 60));
  TuningCache cache(path);
  EXPECT_NE(cache.complaint(), "");
  cache.put("three", "3");
  EXPECT_EQ(cache.save(), "");
  EXPECT_EQ(cache.complaint(), "");
  EXPECT_EQ(TuningCache(path).find("three"), "3");
}

TEST_F(TuningCacheTest, SomebodyElsesFileStaysAsItIs) {
  write("a model that somebody needs");
  TuningCache cache(path);
  EXPECT_NE(cache.complaint().find("no tuning cache"), std::string::npos) << cache.complaint();
  cache.put("one", "1");
  EXPECT_NE(cache.save().find(path), std::string::npos);
  EXPECT_EQ(content(), "a model that somebody needs");
}

TEST_F(TuningCacheTest, AFolderThatIsNotThereIsTold) {
  TuningCache cache(folder / "none" / "cache");
  EXPECT_EQ(cache.complaint(), "");
  cache.put("one", "1");
  EXPECT_NE(cache.save().find("none/cache"), std::string::npos);
}

TEST_F(TuningCacheTest, KeepsWhatOthersWroteMeanwhile) {
  TuningCache first(path), second(path);
  first.put("one", "1");
  second.put("two", "2");
  second.put("one", "another");
  EXPECT_EQ(first.save(), "");
  EXPECT_EQ(second.save(), "");
  const TuningCache both(path);
  EXPECT_EQ(both.find("one"), "another");
  EXPECT_EQ(both.find("two"), "2");
}

TEST_F(TuningCacheTest, ReadersBesideWritersSeeWholeFiles) {
  save_two();
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 3; ++writer)
    writers.emplace_back([&, writer] {
      for (int i = 0; i < 20; ++i) {
        TuningCache cache(path);
        cache.put(std::to_string(writer), std::string(5000, char('a' + i)));
        EXPECT_EQ(cache.save(), "");
      }
    });
  for (int i = 0; i < 50; ++i) {
    const TuningCache cache(path);
    EXPECT_EQ(cache.complaint(), "");
    EXPECT_EQ(cache.find("one"), "1");
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST_F(TuningCacheTest, ASaveWithNothingNewWritesNothing) {
  save_two();
  fs::remove(path);
  TuningCache cache(path);
  EXPECT_EQ(cache.save(), "");
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(TuningCacheTest, TheProcessHasOneForEachFile) {
  EXPECT_EQ(TuningCache::of(path), TuningCache::of(path));
  EXPECT_NE(TuningCache::of(path), TuningCache::of(""));
  TuningCache nameless("");
  nameless.put("one", "1");
  EXPECT_EQ(nameless.save(), "");
}

TEST(TunedConvolutionTest, IsReadAsItWasWritten) {
  const TunedConvolution tuned{.fused = false,
                               .deterministic = true,
                               .rival_timed = true,
                               .rival_won = true,
                               .timed = 12,
                               .candidate = 7,
                               .first_us = 6.5f,
                               .us = 5.25f,
                               .engine = "Conv_eng1_k2=3",
                               .plan = std::string("{\"a\": 1}\n\0", 10)};
  EXPECT_EQ(TunedConvolution::decode(tuned.encode()), tuned);
  TunedConvolution untimed;
  untimed.engine = "x";
  EXPECT_EQ(TunedConvolution::decode(untimed.encode()), untimed);
}

TEST(TunedConvolutionTest, NonsenseIsNone) {
  const std::string good = TunedConvolution{.engine = "x"}.encode();
  for (const std::string& bad :
       {std::string(), std::string("\n"), std::string("1 2 3"), good.substr(0, good.find('\n')), "a" + good,
        std::string("1 0 0 0 1 99999999999999999999 0 0 x\n")})
    EXPECT_FALSE(TunedConvolution::decode(bad)) << bad;
}

TEST(TunedConvolutionTest, ProblemsThatDifferHaveKeysThatDiffer) {
  const Convolution problem{.type = Type::f16,
                            .x = {1, 4, 8, 8},
                            .w = {4, 4, 3, 3},
                            .y = {1, 4, 8, 8},
                            .pads_begin = {1, 1},
                            .pads_end = {1, 1},
                            .strides = {1, 1},
                            .dilations = {1, 1}};
  std::vector<std::string> keys{tuning_key(problem, {})};
  const auto with = [&](auto change) {
    Convolution other = problem;
    DnnSettings settings;
    change(other, settings);
    keys.push_back(tuning_key(other, settings));
  };
  with([](Convolution& p, DnnSettings&) { p.type = Type::f32; });
  with([](Convolution& p, DnnSettings&) { p.tf32 = true; });
  with([](Convolution& p, DnnSettings&) { p.x[0] = 2; });
  with([](Convolution& p, DnnSettings&) { p.groups = 2; });
  with([](Convolution& p, DnnSettings&) { p.transposed = true; });
  with([](Convolution& p, DnnSettings&) { p.channels_last = true; });
  with([](Convolution& p, DnnSettings&) { p.has_bias = true; });
  with([](Convolution& p, DnnSettings&) { p.has_residual = true; });
  with([](Convolution& p, DnnSettings&) { p.curve = Convolution::Curve::relu; });
  with([](Convolution& p, DnnSettings&) { p.pads_end[0] = 0; });
  with([](Convolution& p, DnnSettings&) { p.strides[1] = 2; });
  with([](Convolution& p, DnnSettings&) { p.dilations[1] = 2; });
  with([](Convolution&, DnnSettings& s) { s.search = DnnSearch::heuristics; });
  with([](Convolution&, DnnSettings& s) { s.deterministic = true; });
  with([](Convolution&, DnnSettings& s) { s.most_workspace_bytes = 1; });
  with([](Convolution&, DnnSettings& s) { s.always_fuse = true; });
  with([](Convolution&, DnnSettings& s) { s.lines_are_rows = false; });
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::adjacent_find(keys.begin(), keys.end()), keys.end());
}

}  // namespace
}  // namespace encore::device
