// Times products of small models, as a captured graph replays them one behind the other, each with weights of its own:
// by the library, as it is and tuned, with a kernel for the activation, and by tiles in each of their ways.
//
//     ./encore build cuda --target tile_gemm_bench && build/cuda/tile_gemm_bench [a part of the names] [seconds]
//
// Of each shape of tiles the best way is told, with the blocks that share a tile, and last the one that is taken, if it
// is not the library's. Ways whose results are not the library's are told of. Convolutions are those of channels last,
// of which cuDNN's best engine is timed. Those of halves come first, then those of floats, as TF32.
#include "ops/matmul/tile_gemm.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "captured.h"
#include "device/dnn.h"
#include "device/tensor_map.h"
#include "ops/nn/convolve_tiles.h"

namespace {

using namespace encore;
using namespace encore::bench;
using device::Type;
using ops::Activation;
using Kind = Activation::Kind;

struct Problem {
  const char* model;
  int64_t rows, depth, columns;
  Kind activation = Kind::none;
  bool transposed = false, adds = false;  // a residual
};
constexpr Problem kProblems[] = {
    {"bert_base", 128, 768, 768},
    {"bert_base", 128, 768, 768, Kind::none, false, true},
    {"bert_base", 128, 768, 2304},
    {"bert_base", 128, 768, 3072, Kind::gelu},
    {"bert_base", 128, 3072, 768, Kind::none, false, true},
    {"bert_base", 16, 768, 3072, Kind::gelu},
    {"bert_base", 16, 3072, 768, Kind::none, false, true},
    {"resnet50", 3136, 64, 256, Kind::relu, true, true},
    {"resnet50", 3136, 256, 64, Kind::relu, true},
    {"resnet50", 784, 128, 512, Kind::relu, true, true},
    {"resnet50", 784, 512, 128, Kind::relu, true},
    {"resnet50", 196, 256, 1024, Kind::relu, true, true},
    {"resnet50", 196, 1024, 256, Kind::relu, true},
    {"resnet50", 49, 512, 2048, Kind::relu, true, true},
    {"resnet50", 49, 2048, 512, Kind::relu, true},
    {"bert_base", 512, 768, 3072, Kind::gelu},
    {"bert_base", 2048, 768, 3072, Kind::gelu},
    {"bert_base", 512, 3072, 768, Kind::none, false, true},
    {"vit", 197, 768, 768, Kind::none, true, true},
    {"vit", 197, 768, 2304},
    {"vit", 197, 768, 3072, Kind::gelu},
    {"vit", 197, 3072, 768, Kind::none, false, true},
    {"qwen3", 256, 1024, 4096},
    {"qwen3", 256, 2048, 1024, Kind::none, false, true},
    {"qwen3", 256, 1024, 6144},
    {"qwen3", 256, 3072, 1024, Kind::none, false, true},
    {"vit", 1, 768, 1000, Kind::none, true},
    {"bert_base", 1, 768, 768},
    {"bert_base", 2, 768, 768},
    {"resnet50", 1, 2048, 1000, Kind::none, true},
    {"resnet50", 4, 2048, 1000, Kind::none, true},
    {"mobilenet_v3", 1, 960, 1280, Kind::none, true},
    {"efficientnet_b0", 1, 320, 512, Kind::none, true},
    {"convnext_tiny", 3136, 96, 384, Kind::gelu},
    {"convnext_tiny", 3136, 384, 96, Kind::none, false, true},
    {"convnext_tiny", 784, 192, 768, Kind::gelu},
    {"convnext_tiny", 784, 768, 192, Kind::none, false, true},
    {"convnext_tiny", 196, 384, 1536, Kind::gelu},
    {"convnext_tiny", 196, 1536, 384, Kind::none, false, true},
    {"convnext_tiny", 49, 768, 3072, Kind::gelu},
    {"convnext_tiny", 49, 3072, 768, Kind::none, false, true},
    {"swin_t", 784, 192, 576},
    {"swin_t", 196, 384, 1152},
    {"swin_t", 196, 384, 384},
    {"swin_t", 49, 768, 2304},
    {"mobilenet_v3", 3136, 64, 24, Kind::none, true},
    {"mobilenet_v3", 784, 72, 40, Kind::none, true},
    {"mobilenet_v3", 784, 40, 120, Kind::relu, true},
    {"mobilenet_v3", 784, 40, 240, Kind::hard_swish, true},
    {"mobilenet_v3", 196, 240, 80, Kind::none, true, true},
    {"mobilenet_v3", 196, 80, 480, Kind::hard_swish, true},
    {"mobilenet_v3", 196, 112, 672, Kind::hard_swish, true},
    {"mobilenet_v3", 49, 672, 160, Kind::none, true, true},
    {"mobilenet_v3", 49, 160, 960, Kind::hard_swish, true},
    {"efficientnet_b0", 196, 672, 112, Kind::none, true, true},
    {"efficientnet_b0", 49, 192, 1152, Kind::silu, true},
    {"efficientnet_b0", 49, 1152, 320, Kind::none, true},
    {"whisper_tiny", 1500, 384, 384},
    {"whisper_tiny", 1500, 384, 1536, Kind::gelu},
    {"whisper_tiny", 1500, 1536, 384, Kind::none, false, true},
    {"whisper_tiny", 4, 384, 1536, Kind::gelu},
};

// Of pictures as high as wide.
struct PictureProblem {
  const char* model;
  int images, size, in_channels, out_channels, stride = 1;
  Kind activation = Kind::relu;
  bool adds = false;
  int taps = 3;  // to a side
};
constexpr PictureProblem kPictures[] = {
    {"resnet50", 1, 224, 3, 64, 2, Kind::relu, false, 7},
    {"mobilenet_v3", 1, 224, 3, 16, 2, Kind::hard_swish},
    {"efficientnet_b0", 1, 224, 3, 32, 2, Kind::silu},
    {"vgg", 1, 224, 3, 64},
    {"swin_t", 1, 224, 3, 96, 4, Kind::none, false, 4},
    {"vit_b16", 1, 224, 3, 768, 16, Kind::none, false, 16},
    {"resnet50", 1, 56, 64, 64},
    {"resnet50", 1, 56, 128, 128, 2},
    {"resnet50", 1, 28, 128, 128},
    {"resnet50", 1, 28, 256, 256, 2},
    {"resnet50", 1, 14, 256, 256},
    {"resnet50", 1, 14, 512, 512, 2},
    {"resnet50", 1, 7, 512, 512},
    {"resnet50", 4, 14, 256, 256},
    {"resnet50", 4, 7, 512, 512},
    {"resnet50", 8, 28, 128, 128},
    {"resnet50", 8, 7, 512, 512},
    {"resnet18", 1, 56, 64, 64, 1, Kind::relu, true},
    {"resnet18", 1, 14, 256, 256, 1, Kind::relu, true},
    {"densenet", 1, 56, 128, 32, 1, Kind::none},
    {"densenet", 1, 28, 128, 32, 1, Kind::none},
    {"densenet", 1, 14, 128, 32, 1, Kind::none},
    {"densenet", 1, 7, 128, 32, 1, Kind::none},
    {"mobilevit", 1, 32, 96, 96, 1, Kind::silu},
    {"mobilevit", 1, 32, 192, 96, 1, Kind::silu},
    {"mobilevit", 1, 16, 128, 128, 1, Kind::silu},
    {"mobilevit", 1, 8, 160, 160, 1, Kind::silu},
    {"efficientnet_v2", 1, 56, 48, 192, 2, Kind::silu},
    {"vgg", 1, 224, 64, 64},
    {"vgg", 1, 56, 256, 256},
    {"vgg", 1, 14, 512, 512},
    {"segformer", 1, 64, 64, 160, 2, Kind::none},
};
constexpr int kProducts = 40;  // of a graph

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::relu: return " relu";
    case Kind::hard_swish: return " hard_swish";
    case Kind::silu: return " silu";
    case Kind::gelu: return " gelu";
    default: return "";
  }
}
template <class T>
const char* of_type() {
  return std::is_same_v<T, float> ? " f32" : "";
}
template <class T>
std::string name_of(const Problem& p) {
  return std::string(p.model) + " " + std::to_string(p.rows) + " x " + std::to_string(p.depth) + " x " +
         std::to_string(p.columns) + (p.transposed ? " transposed" : "") + name_of(p.activation) +
         (p.adds ? " residual" : "") + of_type<T>();
}
template <class T>
std::string name_of(const PictureProblem& p) {
  return std::string(p.model) + " " + std::to_string(p.images) + " x " + std::to_string(p.size) + "^2 x " +
         std::to_string(p.in_channels) + " to " + std::to_string(p.out_channels) +
         (p.taps == 3 ? "" : " of " + std::to_string(p.taps) + "^2") +
         (p.stride == 1 ? "" : " by " + std::to_string(p.stride)) + name_of(p.activation) +
         (p.adds ? " residual" : "") + of_type<T>();
}

class Scratch final : public device::Workspace {
 public:
  void* at_least(size_t bytes) override {
    if (bytes > kBytes) std::abort();
    return memory_.at();
  }

 private:
  static constexpr size_t kBytes = size_t(256) << 20;
  Memory<> memory_{kBytes / 2};
};

struct Bench {
  device::Stream stream{0};
  Captured captured;

  // Microseconds of one of the products that enqueue(i) enqueues.
  template <class F>
  double us(F enqueue) {
    enqueue(0);  // what is found out once, is found out here
    return captured.us(stream, kProducts, enqueue);
  }
};

template <class T>
double difference(const std::vector<T>& a, const std::vector<T>& b) {
  double most = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double apart = std::abs(double(float(a[i])) - double(float(b[i])));
    most = apart <= most ? most : apart;  // NaN counts
    largest = std::max(largest, std::abs(double(float(b[i]))));
  }
  return most / largest;
}

std::string name_of(ops::TileShape shape) {
  const auto [rows, columns, depth_bytes] = ops::kTileSizes[int(shape)];
  return std::to_string(rows) + "x" + std::to_string(columns) + "x" + std::to_string(depth_bytes / 2);
}

// enqueue(i, way) makes c, which the library made last.
template <class T, class F>
void compare_ways(Bench& bench, int shapes, const ops::TileGemmWay& taken, const Memory<T>& c, F enqueue) {
  const auto wanted = c.values(bench.stream);
  double by_way = 0;
  std::string wrong;
  for (int i = 0; i < shapes; ++i) {
    double best = 1e9;
    int best_parts = 0;
    for (int parts = 1; parts <= ops::kMostTileParts; parts *= 2) {
      const ops::TileGemmWay way{parts, ops::TileShape(i)};
      const double us = bench.us([&](int n) { enqueue(n, way); });
      if (us < best) best = us, best_parts = parts;
      if (way == taken) by_way = us;
      const double apart = difference(c.values(bench.stream), wanted);
      if (!(apart < 4e-3))
        wrong += " " + name_of(way.shape) + " in " + std::to_string(parts) + " is " + std::to_string(apart) + " off";
    }
    std::printf(" %8.2f in %d", best, best_parts);
  }
  if (taken.parts > 0) std::printf(" | %6.2f by %s in %d", by_way, name_of(taken.shape).c_str(), taken.parts);
  std::printf("%s\n", wrong.c_str());
  std::fflush(stdout);
}

template <class T>
void run(Bench& bench, const Problem& p, device::Blas& blas, device::Blas& tuned, Scratch& scratch) {
  constexpr Type kType = device::kTypeOf<T>;
  device::Gemm gemm{.type = kType, .output = kType, .m = p.rows, .n = p.columns, .k = p.depth};
  gemm.tf32 = kType == Type::f32;
  gemm.transpose_b = p.transposed;
  gemm.lda = p.depth, gemm.ldb = p.transposed ? p.depth : p.columns, gemm.ldc = p.columns;
  gemm.beta = p.adds ? 1 : 0;
  gemm.has_bias = gemm.constant_b = true;
  const Activation activation{p.activation};

  const Memory<T> a(p.rows * p.depth), bias(p.columns), addend(p.rows * p.columns), c(p.rows * p.columns);
  a.set(bench.stream, random_values<T>(p.rows * p.depth, 1));
  bias.set(bench.stream, random_values<T>(p.columns, 1));
  addend.set(bench.stream, random_values<T>(p.rows * p.columns, 1));
  const auto weights = random_values<T>(p.depth * p.columns, 3 / std::sqrt(float(p.depth)));
  std::vector<std::unique_ptr<Memory<T>>> b;
  for (int i = 0; i < kProducts; ++i) {
    b.push_back(std::make_unique<Memory<T>>(p.depth * p.columns));
    b.back()->set(bench.stream, weights);
  }
  const auto data = [&](int i) {
    return ops::ProductData{a.at(), b[size_t(i)]->at(), bias.at(), c.at(), p.adds ? addend.at() : nullptr};
  };
  device::Gemm whole = gemm;
  if (p.activation == Kind::relu) whole.epilogue = device::Epilogue::relu;
  const auto by = [&](device::Blas& library) {
    return bench.us([&](int i) {
      const ops::ProductData of = data(i);
      library.gemm(bench.stream, whole, of.a, of.b, of.c, of.bias, scratch, of.addend);
      if (p.activation != Kind::relu) ops::activate(bench.stream, gemm.output, p.rows * p.columns, activation, of.c);
    });
  };
  std::printf("%-52s %8.2f", name_of<T>(p).c_str(), by(blas));
  std::printf(" %8.2f |", by(tuned));
  compare_ways(bench, ops::tile_shapes(kType, device::has_warpgroups(0)),
               ops::tile_gemm_way(gemm, data(0), activation, 0), c,
               [&](int i, ops::TileGemmWay way) { tile_gemm(bench.stream, gemm, data(i), activation, way); });
}

// Rows of places that have few channels each: with zeros behind these, and up to so many values a row.
template <class T>
std::vector<T> filled_up(const std::vector<T>& values, int64_t channels, int64_t places, int64_t row) {
  std::vector<T> made(values.size() / size_t(channels * places) * size_t(row), T(0.f));
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t place = int64_t(i) / channels, channel = int64_t(i) % channels;
    made[size_t(place / places * row + place % places * ops::kFilledChannels + channel)] = values[i];
  }
  return made;
}

template <class T>
void run(Bench& bench, const PictureProblem& p, device::Dnn& dnn, Scratch& scratch) {
  const int before = (p.taps - 1) / 2, out = (p.size + 2 * before - p.taps) / p.stride + 1;
  constexpr Type kType = device::kTypeOf<T>;
  constexpr bool kTf32 = kType == Type::f32;
  ops::ConvProblem problem{kType, ops::Layout::channels_last, {}, p.images, p.in_channels, p.out_channels, 1, kTf32};
  for (const int d : {1, 2}) {
    problem.window.in[d] = p.size, problem.window.out[d] = out, problem.window.kernel[d] = p.taps;
    problem.window.stride[d] = p.stride, problem.window.before[d] = problem.window.after[d] = before;
  }
  const int64_t x_values = int64_t(p.images) * p.size * p.size * p.in_channels,
                depth = int64_t(p.taps) * p.taps * p.in_channels;
  const int64_t y_values = int64_t(p.images) * out * out * p.out_channels;
  const Memory<T> x(x_values), bias(p.out_channels), residual(y_values), y(y_values);
  x.set(bench.stream, random_values<T>(x_values, 1));
  bias.set(bench.stream, random_values<T>(p.out_channels, 1));
  residual.set(bench.stream, random_values<T>(y_values, 1));
  const auto weights = random_values<T>(depth * p.out_channels, 3 / std::sqrt(float(depth)));
  std::vector<std::unique_ptr<Memory<T>>> w;
  for (int i = 0; i < kProducts; ++i) {
    w.push_back(std::make_unique<Memory<T>>(depth * p.out_channels));
    w.back()->set(bench.stream, weights);
  }
  const void* const added = p.adds ? residual.at() : nullptr;
  const bool few = p.in_channels <= ops::kFilledChannels;
  const int64_t taps = int64_t(p.taps) * p.taps;
  std::vector<T> filled[2];
  if (few) {
    filled[0] = filled_up(x.values(bench.stream), p.in_channels, 1, ops::kFilledChannels);
    filled[1] = filled_up(weights, p.in_channels, taps, ops::filled_depth(taps));
  }
  const Memory<T> filled_x(int64_t(filled[0].size() + 1)), filled_w(int64_t(filled[1].size() + 1));
  const auto data = [&](int i) { return ops::ConvData{x.at(), w[size_t(i)]->at(), bias.at(), y.at(), true}; };
  const auto data_of_tiles = [&](int i) {
    ops::ConvData own = data(i);
    if (few) own.x = filled_x.at(), own.w = filled_w.at(), own.is_filled = true;
    return own;
  };
  if (few) filled_x.set(bench.stream, filled[0]), filled_w.set(bench.stream, filled[1]);

  const bool whole = p.activation == Kind::none || p.activation == Kind::relu;
  device::Convolution convolution{.type = kType,
                                  .x = {p.images, p.in_channels, p.size, p.size},
                                  .w = {p.out_channels, p.in_channels, p.taps, p.taps},
                                  .y = {p.images, p.out_channels, out, out},
                                  .pads_begin = {before, before},
                                  .pads_end = {before, before},
                                  .strides = {p.stride, p.stride},
                                  .dilations = {1, 1}};
  convolution.channels_last = true;
  convolution.tf32 = kTf32;
  convolution.has_bias = whole, convolution.has_residual = whole && p.adds;
  if (p.activation == Kind::relu) convolution.curve = device::Convolution::Curve::relu;
  const auto prepared = dnn.prepare(bench.stream, convolution);
  const double library = !prepared ? 0 : bench.us([&](int i) {
    dnn.run(bench.stream, convolution, x.at(), w[size_t(i)]->at(), bias.at(), added, y.at(),
            scratch.at_least(prepared->workspace_bytes));
    if (!whole || !prepared->fused)
      ops::finish(bench.stream, problem, int64_t(out) * out, {bias.at(), added, {p.activation}}, y.at());
  });
  std::printf("%-52s %8.2f %8s |", name_of<T>(p).c_str(), library, "");
  if (!ops::suits_tiles(problem, data_of_tiles(0), added)) return void(std::printf(" does not suit\n"));
  compare_ways(bench, ops::tile_shapes(kType, false),
               ops::tile_convolution_way(problem, {p.activation}, ops::tile_room(0)), y,
               [&](int i, ops::TileGemmWay way) {
                 convolve_tiles(bench.stream, problem, data_of_tiles(i), {nullptr, added, {p.activation}}, way);
               });
}

}  // namespace

int main(int count, char** arguments) {
  const std::string only = count > 1 ? arguments[1] : "";
  Bench bench{.captured = {.seconds = count > 2 ? std::atof(arguments[2]) : 0.01}};
  device::Blas blas(0), tuned(0, {.tune = true});
  Scratch scratch;
  std::printf("%s, %d multiprocessors; microseconds\n%-52s %8s %8s |", device::describe(0).name.c_str(),
              device::multiprocessors(0), "product", "library", "tuned");
  for (int i = 0; i < ops::kTileShapes; ++i) std::printf(" %13s", name_of(ops::TileShape(i)).c_str());
  std::printf(" | taken\n");
  device::Dnn dnn(0);
  const auto all = [&]<class T> {
    const auto is_wanted = [&](const auto& problem) { return name_of<T>(problem).find(only) != std::string::npos; };
    for (const Problem& problem : kProblems)
      if (is_wanted(problem) && (problem.transposed || !std::is_same_v<T, float>))
        run<T>(bench, problem, blas, tuned, scratch);
    for (const PictureProblem& problem : kPictures)
      if (is_wanted(problem)) run<T>(bench, problem, dnn, scratch);
  };
  all.operator()<device::Half>();
  all.operator()<float>();
}
