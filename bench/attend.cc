// Times the ways to compute attention, as a captured graph replays them one behind the other: of halves, and of floats
// as TF32.
//
//     ./encore build cuda --target attend_bench && build/cuda/attend_bench [a part of the names] [seconds]
//
// What a way does not suit is left out. Of masks that all queries share, and those of each. Results that differ are
// told of. Of floats the products come first; the last columns tell which way of the kernel is taken, if it is, and
// what it is thought to take.
#include "ops/attention/dense/attend.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "captured.h"
#include "device/dnn.h"
#include "ops/attention/dense/attend_products.h"
#include "ops/attention/dense/attend_tf32.h"

namespace {

using namespace encore;
using namespace encore::bench;
using device::Half;
using device::Type;
using ops::Attend;

constexpr int kTimes = 20;  // in a graph

enum class Mask { none, keys, full, causal };
struct Problem {
  const char* model;
  int64_t batch, heads, kv_heads, queries, keys, size;
  Mask mask = Mask::none;
};
constexpr Problem kProblems[] = {
    {"bert_base", 1, 12, 12, 128, 128, 64, Mask::keys},    {"bert_base", 1, 12, 12, 512, 512, 64, Mask::keys},
    {"bert_base", 2, 12, 12, 128, 128, 64, Mask::keys},    {"bert_base", 3, 12, 12, 128, 128, 64, Mask::keys},
    {"bert_base", 4, 12, 12, 128, 128, 64, Mask::keys},    {"bert_base", 8, 12, 12, 128, 128, 64, Mask::keys},
    {"bert_base", 16, 12, 12, 128, 128, 64, Mask::none},   {"bert_base", 16, 12, 12, 128, 128, 64, Mask::keys},
    {"bert_base", 16, 12, 12, 128, 128, 64, Mask::full},   {"bert_base", 64, 12, 12, 128, 128, 64, Mask::keys},
    {"bert_base", 16, 12, 12, 384, 384, 64, Mask::keys},   {"bert_base", 8, 12, 12, 512, 512, 64, Mask::keys},
    {"bert_large", 16, 16, 16, 512, 512, 64, Mask::keys},  {"minilm", 32, 12, 12, 256, 256, 32, Mask::keys},
    {"vit", 1, 12, 12, 197, 197, 64, Mask::none},          {"vit", 8, 12, 12, 197, 197, 64, Mask::none},
    {"vit", 32, 12, 12, 197, 197, 64, Mask::none},         {"clip", 1, 16, 16, 577, 577, 64, Mask::none},
    {"whisper_tiny", 1, 6, 6, 1500, 1500, 64, Mask::none}, {"wav2vec2", 1, 12, 12, 199, 199, 64, Mask::none},
    {"qwen3", 1, 16, 8, 256, 256, 128, Mask::causal},      {"qwen3", 1, 16, 8, 64, 64, 128, Mask::causal},
    {"qwen3", 4, 16, 8, 256, 256, 128, Mask::causal},      {"llama_1b", 1, 32, 8, 512, 512, 64, Mask::causal},
    {"llama_8b", 1, 32, 8, 1024, 1024, 128, Mask::causal}, {"llama_8b", 1, 32, 8, 1024, 1024, 128, Mask::full},
    {"long", 2, 16, 16, 2048, 2048, 64, Mask::keys},       {"vit", 16, 12, 12, 197, 197, 64, Mask::none},
    {"vit_huge", 1, 16, 16, 257, 257, 80, Mask::none},     {"wav2vec2", 1, 12, 12, 1499, 1499, 64, Mask::none},
    {"whisper_tiny", 1, 6, 6, 4, 1500, 64, Mask::none},    {"long", 1, 8, 8, 4096, 4096, 64, Mask::none},
};
std::string name_of(const Problem& p) {
  constexpr const char* kMasks[] = {"", " keys masked", " masked", " causal"};
  return text(p.model, " ", p.batch, " x ", p.heads, "/", p.kv_heads, " x ", p.queries, " x ", p.keys, " x ", p.size,
              kMasks[int(p.mask)]);
}

// Runs without a node. Its scratch is there before anything is captured.
class Bare final : public ops::Context {
 public:
  int input_count() const override { return 0; }
  int output_count() const override { return 0; }
  const ops::Tensor* find_input(int) override { return nullptr; }
  ops::Tensor output(int, const ops::Shape&) override { return {}; }
  bool wants_output(int) const override { return false; }
  device::StreamRef stream() const override { return stream_; }
  void* scratch(size_t bytes) override {
    if (bytes > kBytes - used_) fail(Code::internal, "attention takes more scratch than there is");
    return static_cast<char*>(memory_.at()) + std::exchange(used_, used_ + (bytes + 255) / 256 * 256);
  }
  size_t used() const { return used_; }
  void give_back_to(size_t used) { used_ = used; }
  device::Blas& blas() override { return blas_; }
  device::Dnn& dnn() override { return dnn_; }
  device::FaultRef fault() override { return {}; }
  void read_back(void*, const void*, size_t) override { fail(Code::internal, "nothing is read back here"); }

 private:
  static constexpr size_t kBytes = size_t(1) << 30;
  device::Stream stream_{0};
  device::Dnn dnn_{0};
  device::Blas blas_{0};
  Memory<> memory_{int64_t(kBytes / 2)};
  size_t used_ = 0;
};

// A problem with all that it reads and writes, whose ways are timed one after the other.
template <class T>
class Ways {
 public:
  Ways(Captured& bench, const Problem& p) : bench_(bench) {
    const int64_t q_values = p.batch * p.heads * p.queries * p.size, k_values = p.batch * p.kv_heads * p.keys * p.size;
    q_ = filled(q_values), k_ = filled(k_values), v_ = filled(k_values), y_ = filled(q_values);
    mask_ = filled(p.batch * p.queries * p.keys);
    const auto rows = [&](const std::unique_ptr<Memory<T>>& of, int64_t heads, int64_t count) {
      return ops::HeadRows{of->at(), heads * count * p.size, p.size, heads * p.size};
    };
    attend.type = device::kTypeOf<T>, attend.tf32 = true;
    attend.batch = p.batch, attend.heads = p.heads, attend.kv_heads = p.kv_heads;
    attend.queries = p.queries, attend.keys = p.keys, attend.head_size = attend.value_size = p.size;
    attend.q = rows(q_, p.heads, p.queries), attend.y = rows(y_, p.heads, p.queries);
    attend.k = rows(k_, p.kv_heads, p.keys), attend.v = rows(v_, p.kv_heads, p.keys);
    attend.scale = 1 / std::sqrt(double(p.size));
    if (p.mask == Mask::causal) attend.visible.after = 0;
    if (p.mask == Mask::keys || p.mask == Mask::full) {
      attend.mask = {.data = mask_->at(), .key = 1, .keys = p.keys, .least = -1};
      attend.mask.query = p.mask == Mask::full ? p.keys : 0;
      attend.mask.batch = p.mask == Mask::full ? p.queries * p.keys : p.keys;
    }
    std::printf("%-56s", (name_of(p) + (attend.type == Type::f32 ? " f32" : "")).c_str());
  }
  // Its microseconds; zero, if it does not serve.
  double time(const char* name, auto run) {
    const auto enqueue = [&] {
      const size_t used = context.used();
      const bool served = run();
      context.give_back_to(used);
      return served;
    };
    const int64_t values = int64_t(y_->values(context.stream()).size());
    y_->set(context.stream(), std::vector<T>(size_t(values)));
    if (!enqueue()) return std::printf(" %8s", ""), 0.;
    const double took = bench_.us(context.stream(), kTimes, [&](int) { enqueue(); });
    std::printf(" %8.2f", took);
    const auto got = y_->values(context.stream());
    if (wanted_.empty()) wanted_ = got;
    double most = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double apart = std::abs(double(float(got[i])) - double(float(wanted_[i])));
      most = apart <= most ? most : apart;  // NaN counts
    }
    if (!(most < 4e-3)) wrong_ += text(" ", name, " is ", most, " off");
    return took;
  }
  void end(const std::string& last) const {
    std::printf(" | %s%s\n", last.c_str(), wrong_.c_str());
    std::fflush(stdout);
  }
  // A mask of floats for all that the problem hides, as products want it.
  std::optional<ops::Tensor> mask_of_products(const Problem& p) {
    const auto tensor = [](const ops::Shape& shape, void* data) {
      return ops::Tensor{Type::f32, ops::Where::device, shape, data};
    };
    if (p.mask == Mask::none) return std::nullopt;
    if (p.mask == Mask::keys) return tensor({p.batch, 1, 1, p.keys}, mask_->at());
    if (p.mask == Mask::full) return tensor({p.batch, 1, p.queries, p.keys}, mask_->at());
    std::vector<T> causal(size_t(p.queries * p.keys));
    for (int64_t i = 0; i < p.queries; ++i)
      for (int64_t j = i + 1; j < p.keys; ++j)
        causal[size_t(i * p.keys + j)] = T(-std::numeric_limits<float>::infinity());
    causal_ = std::make_unique<Memory<T>>(p.queries * p.keys);
    causal_->set(context.stream(), causal);
    return tensor({1, 1, p.queries, p.keys}, causal_->at());
  }

  Bare context;
  Attend attend;

 private:
  std::unique_ptr<Memory<T>> filled(int64_t values) {
    auto memory = std::make_unique<Memory<T>>(values);
    memory->set(context.stream(), random_values<T>(values, 1));
    return memory;
  }

  Captured& bench_;
  std::unique_ptr<Memory<T>> q_, k_, v_, y_, mask_, causal_;
  std::vector<T> wanted_;
  std::string wrong_;
};

void run_halves(Captured& bench, const Problem& p) {
  Ways<Half> ways(bench, p);
  Bare& context = ways.context;
  const Attend& a = ways.attend;
  const double own =
      ways.time("short", [&] { return ops::suits_short(context, a) && (ops::attend_short(context, a), true); });
  ops::MaskBias bias;
  if (const ops::Shape shape = ops::dnn_bias_shape(context, a); shape.count() > 0) {
    bias = {shape, context.scratch(size_t(shape.count()) * 2), nullptr};
    bias.blind = static_cast<bool*>(context.scratch(size_t(ops::blind_shape(shape).count())));
  }
  const double library = ways.time("library", [&] {
    Attend with = a;
    with.bias = bias;
    const bool served = ops::attend_dnn(context, with);
    bias.is_made = bias.data;
    return served;
  });
  char quotient[16];
  std::snprintf(quotient, sizeof quotient, "%5.2f", own > 0 ? library / own : 0.);
  ways.end(quotient);
}

constexpr const char* kWayNames[] = {"few", "some", "many"};
static_assert(std::size(kWayNames) == ops::kTf32Ways);

void run_floats(Captured& bench, const Problem& p) {
  Ways<float> ways(bench, p);
  Bare& context = ways.context;
  const Attend& a = ways.attend;
  const auto matrices = [](const ops::HeadRows& rows) {
    return ops::HeadMatrices{rows.data, rows.batch, rows.head, rows.row};
  };
  const ops::ProductAttention products{.batch = a.batch,
                                       .heads = a.heads,
                                       .kv_heads = a.kv_heads,
                                       .queries = a.queries,
                                       .keys = a.keys,
                                       .head_size = a.head_size,
                                       .value_size = a.value_size,
                                       .q = matrices(a.q),
                                       .k = matrices(a.k),
                                       .v = matrices(a.v),
                                       .y = matrices(a.y),
                                       .scale = a.scale,
                                       .mask = ways.mask_of_products(p),
                                       .tf32 = true};
  ways.time("products", [&] { return ops::attend_by_products(context, products), true; });
  const bool fits = ops::fits_tf32(a);
  for (int i = 0; i < ops::kTf32Ways; ++i)
    ways.time(kWayNames[i], [&] {
      return fits && ops::has_room_for_tf32(context, a, ops::Tf32Way(i)) &&
             (ops::attend_tf32(context, a, ops::Tf32Way(i), ops::Blind::no_number), true);
    });
  if (!fits) return ways.end("products");
  const ops::Tf32Estimate taken = ops::estimate_tf32(context, a);
  char last[48];
  std::snprintf(last, sizeof last, "%-8s %8.2f",
                ops::beats_products(context, a) ? kWayNames[int(taken.way)] : "products", taken.us);
  ways.end(last);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string only = count > 1 ? arguments[1] : "";
  Captured bench{.seconds = count > 2 ? std::atof(arguments[2]) : 0.01};
  std::printf("%s; microseconds\n%-56s %8s %8s | library / short\n", device::describe(0).name.c_str(), "attention",
              "short", "library");
  const auto is_wanted = [&](const std::string& name) { return name.find(only) != std::string::npos; };
  for (const Problem& problem : kProblems)
    if (is_wanted(name_of(problem))) run_halves(bench, problem);
  std::printf("%-56s %8s", "", "products");
  for (const char* const name : kWayNames) std::printf(" %8s", name);
  std::printf(" | taken\n");
  for (const Problem& problem : kProblems)
    if (is_wanted(name_of(problem) + " f32")) run_floats(bench, problem);
}
