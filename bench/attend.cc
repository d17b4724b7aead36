// Times the ways to compute attention of halves, as a captured graph replays them one behind the other.
//
//     ./encore build cuda --target attend_bench && build/cuda/attend_bench [a part of the names] [seconds]
//
// What a way does not suit is left out. Of masks that all queries share, and those of each. Results that differ are
// told of.
#include "ops/attention/dense/attend.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "captured.h"
#include "device/dnn.h"

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
    {"long", 2, 16, 16, 2048, 2048, 64, Mask::keys},
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
  device::Blas& blas() override { fail(Code::internal, "attention takes no products"); }
  device::Dnn& dnn() override { return dnn_; }
  device::FaultRef fault() override { return {}; }
  void read_back(void*, const void*, size_t) override { fail(Code::internal, "nothing is read back here"); }

 private:
  static constexpr size_t kBytes = size_t(1) << 30;
  device::Stream stream_{0};
  device::Dnn dnn_{0};
  Memory<> memory_{int64_t(kBytes / 2)};
  size_t used_ = 0;
};

void run(Captured& bench, const Problem& p) {
  Bare context;
  const auto filled = [&](int64_t values) {
    auto memory = std::make_unique<Memory<>>(values);
    memory->set(context.stream(), random_values(values, 1));
    return memory;
  };
  const int64_t q_values = p.batch * p.heads * p.queries * p.size, k_values = p.batch * p.kv_heads * p.keys * p.size;
  const auto q = filled(q_values), k = filled(k_values), v = filled(k_values), y = filled(q_values);
  const auto mask = filled(p.batch * p.queries * p.keys);
  const auto rows = [&](const std::unique_ptr<Memory<>>& of, int64_t heads, int64_t count) {
    return ops::HeadRows{of->at(), heads * count * p.size, p.size, heads * p.size};
  };
  Attend a;
  a.type = Type::f16;
  a.batch = p.batch, a.heads = p.heads, a.kv_heads = p.kv_heads;
  a.queries = p.queries, a.keys = p.keys, a.head_size = a.value_size = p.size;
  a.q = rows(q, p.heads, p.queries), a.y = rows(y, p.heads, p.queries);
  a.k = rows(k, p.kv_heads, p.keys), a.v = rows(v, p.kv_heads, p.keys);
  a.scale = 1 / std::sqrt(double(p.size));
  if (p.mask == Mask::causal) a.visible.after = 0;
  if (p.mask == Mask::keys || p.mask == Mask::full) {
    a.mask = {.data = mask->at(), .key = 1, .keys = p.keys, .least = -1};
    a.mask.query = p.mask == Mask::full ? p.keys : 0;
    a.mask.batch = p.mask == Mask::full ? p.queries * p.keys : p.keys;
  }
  std::printf("%-56s", name_of(p).c_str());
  std::vector<Half> wanted;
  std::string wrong;
  const auto way = [&](const char* name, auto attend) {
    const auto enqueue = [&] {
      const size_t used = context.used();
      const bool served = attend();
      context.give_back_to(used);
      return served;
    };
    y->set(context.stream(), std::vector<Half>(size_t(q_values)));
    if (!enqueue()) return std::printf(" %8s", ""), 0.;
    const double took = bench.us(context.stream(), kTimes, [&](int) { enqueue(); });
    std::printf(" %8.2f", took);
    const auto got = y->values(context.stream());
    if (wanted.empty()) wanted = got;
    double most = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double apart = std::abs(double(float(got[i])) - double(float(wanted[i])));
      most = apart <= most ? most : apart;  // NaN counts
    }
    if (!(most < 4e-3)) wrong += text(" ", name, " is ", most, " off");
    return took;
  };
  const double own =
      way("short", [&] { return ops::suits_short(context, a) && (ops::attend_short(context, a), true); });
  ops::MaskBias bias;
  if (const ops::Shape shape = ops::dnn_bias_shape(context, a); shape.count() > 0) {
    bias = {shape, context.scratch(size_t(shape.count()) * 2), nullptr};
    bias.blind = static_cast<bool*>(context.scratch(size_t(ops::blind_shape(shape).count())));
  }
  const double library = way("library", [&] {
    Attend with = a;
    with.bias = bias;
    const bool served = ops::attend_dnn(context, with);
    bias.is_made = bias.data;
    return served;
  });
  std::printf(" | %5.2f%s\n", own > 0 ? library / own : 0., wrong.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string only = count > 1 ? arguments[1] : "";
  Captured bench{.seconds = count > 2 ? std::atof(arguments[2]) : 0.01};
  std::printf("%s; microseconds\n%-56s %8s %8s | library / short\n", device::describe(0).name.c_str(), "attention",
              "short", "library");
  for (const Problem& problem : kProblems)
    if (name_of(problem).find(only) != std::string::npos) run(bench, problem);
}
