// TfIdfVectorizer: how often each n-gram of a pool occurs in each row. Strings stay on the CPU.
#include <algorithm>

#include "device/divide.h"
#include "device/launch.h"
#include "device/memory.h"
#include "device/transform.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/keep_list.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;

constexpr int kLongestGram = 16;
constexpr int64_t kMostWeighedColumns = int64_t(1) << 24;

// The n-grams of one length, in ascending order.
struct Grams {
  const int64_t* tokens;
  const int64_t* columns;
  int64_t count;
};

// One place of a row with one distance between tokens: all n-grams that start there.
template <class T>
struct CountGrams {
  const T* x;
  float* counts;
  int64_t width, columns;
  Divider by_width, by_distance;
  int shortest, longest;
  Grams grams[kLongestGram];  // of length i + 1

  DEVICE_FN void operator()(int64_t i) const {
    int64_t start, skipped;
    const int64_t row = by_distance(by_width(i, start), skipped);
    const T* const from = x + row * width;
    for (int length = shortest; length <= longest; ++length) {
      if (length == 1 && skipped > 0) continue;  // the same again
      if (start + (skipped + 1) * (length - 1) >= width) return;
      const int64_t found = find(grams[length - 1], length, from + start, skipped + 1);
      if (found >= 0) device::atomic_add(counts + row * columns + found, 1.f);
    }
  }

 private:
  DEVICE_FN static int64_t find(const Grams& grams, int length, const T* x, int64_t distance) {
    int64_t low = 0, high = grams.count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      const int64_t* const tokens = grams.tokens + middle * length;
      int at = 0;
      while (at < length && tokens[at] == int64_t(x[at * distance])) ++at;
      if (at == length) return grams.columns[middle];
      if (tokens[at] < int64_t(x[at * distance]))
        low = middle + 1;
      else
        high = middle;
    }
    return -1;
  }
};

struct Weigh {
  float* y;
  const float* weights;  // of the columns; null for ones
  Divider by_columns;
  bool once;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t column;
    by_columns(i, column);
    if (y[i] == 0) return;  // whatever the weight
    y[i] = (once ? 1 : y[i]) * (weights ? weights[column] : 1);
  }
};

std::vector<int64_t> ints_of(const NodeInfo& node, const char* attribute) {
  auto found = node.find_ints(attribute);
  require(found.has_value(), attribute, " is missing");
  return std::move(*found);
}

class TfIdfVectorizer : public Op {
 public:
  explicit TfIdfVectorizer(const NodeInfo& node)
      : shortest_(node.get_int("min_gram_length", 0)),
        longest_(node.get_int("max_gram_length", 0)),
        skips_(node.get_int("max_skip_count", 0)) {
    require(shortest_ >= 1 && shortest_ <= longest_, "min_gram_length is ", shortest_, " and max_gram_length ",
            longest_);
    if (longest_ > kLongestGram) fail(Code::not_supported, "max_gram_length ", longest_, " exceeds ", kLongestGram);
    require(skips_ >= 0 && skips_ < (int64_t{1} << 31), "max_skip_count is ", skips_);
    read_mode(node);
    read_pool(node);
  }
  void prepare(Prepack& prepack) override {
    const int64_t* tokens = keep_list(prepack, tokens_);
    const int64_t* columns = keep_list(prepack, gram_columns_);
    for (int i = 0; i < kLongestGram; ++i) {
      grams_[i].tokens = tokens;
      grams_[i].columns = columns;
      tokens += grams_[i].count * (i + 1);
      columns += grams_[i].count;
    }
    kept_weights_ = keep_list(prepack, weights_);
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank();
    require(rank == 1 || rank == 2, "the input has shape ", x.shape.str(), "; one or two dimensions are wanted");
    const int64_t rows = rank == 2 ? x.shape[0] : 1, width = x.shape[rank - 1];
    const Tensor y = context.output(0, rank == 2 ? Shape{rows, columns_} : Shape{columns_});
    if (y.count() == 0) return;
    device::fill(context.stream(), y.data, 0, y.bytes());
    const int64_t distances = std::min(skips_, std::max<int64_t>(width - 1, 0)) + 1;
    const int64_t count = checked_product(x.count(), distances);
    dispatch(TypeList<int32_t, int64_t>{}, x.type, [&]<class T> {
      CountGrams<T> kernel{x.as<const T>(),           y.as<float>(),  width,         columns_, Divider(width, count),
                           Divider(distances, count), int(shortest_), int(longest_), {}};
      std::copy(grams_, grams_ + kLongestGram, kernel.grams);
      device::for_each_index(context.stream(), count, kernel);
    });
    if (!weighs_ && !once_) return;
    device::for_each_index(
        context.stream(), y.count(),
        Weigh{y.as<float>(), weighs_ ? kept_weights_ : nullptr, Divider(columns_, y.count()), once_});
  }

 private:
  void read_mode(const NodeInfo& node) {
    enum class Mode { tf, idf, tf_idf };
    const Mode mode =
        read_choice<Mode>(node, "mode", "", {{"TF", Mode::tf}, {"IDF", Mode::idf}, {"TFIDF", Mode::tf_idf}});
    once_ = mode == Mode::idf;
    weighs_ = mode != Mode::tf && node.find_floats("weights").has_value();
  }
  void read_pool(const NodeInfo& node) {
    const auto starts = ints_of(node, "ngram_counts"), indexes = ints_of(node, "ngram_indexes");
    const auto pool = ints_of(node, "pool_int64s");
    require(!indexes.empty(), "ngram_indexes is empty");
    for (const int64_t index : indexes) require(index >= 0 && index < INT32_MAX, "ngram_indexes has ", index);
    columns_ = *std::max_element(indexes.begin(), indexes.end()) + 1;
    require(int64_t(starts.size()) >= longest_, "ngram_counts has ", starts.size(), " values; max_gram_length is ",
            longest_);
    size_t gram = 0;  // of the whole pool
    for (size_t i = 0; i < starts.size(); ++i) {
      const int64_t from = starts[i], to = i + 1 < starts.size() ? starts[i + 1] : int64_t(pool.size());
      const int64_t length = int64_t(i) + 1;
      require(from >= 0 && from <= to && to <= int64_t(pool.size()) && (to - from) % length == 0,
              "ngram_counts puts the ", length, "-grams at ", from, " to ", to, " of ", pool.size(), " tokens");
      const size_t count = size_t((to - from) / length);
      require(gram + count <= indexes.size(), "ngram_indexes has ", indexes.size(),
              " values; the pool has more n-grams");
      if (length >= shortest_ && length <= longest_)
        add_grams(pool.data() + from, length, indexes.data() + gram, count);
      gram += count;
    }
    if (!weighs_) return;
    const auto weights = *node.find_floats("weights");
    require(weights.size() == indexes.size(), "there are ", weights.size(), " weights for ", indexes.size(),
            " n-grams");
    if (columns_ > kMostWeighedColumns)
      fail(Code::not_supported, "ngram_indexes has ", columns_ - 1, "; with weights it may be ",
           kMostWeighedColumns - 1, " at most");
    // What was counted in a column is multiplied by one weight.
    std::vector<size_t> grams(size_t(columns_), weights.size());
    weights_.assign(size_t(columns_), 0);
    for (size_t i = 0; i < weights.size(); ++i) {
      size_t& other = grams[size_t(indexes[i])];
      if (other < i && !(weights[other] == weights[i]))
        fail(Code::not_supported, "n-grams ", other, " and ", i, " are counted in one column, ", indexes[i],
             ", and have different weights, ", weights[other], " and ", weights[i]);
      other = i;
      weights_[size_t(indexes[i])] = weights[i];
    }
  }
  void add_grams(const int64_t* tokens, int64_t length, const int64_t* columns, size_t count) {
    std::vector<size_t> order(count);
    for (size_t i = 0; i < count; ++i) order[i] = i;
    const auto less = [&](size_t a, size_t b) {
      const int64_t *x = tokens + int64_t(a) * length, *y = tokens + int64_t(b) * length;
      return std::lexicographical_compare(x, x + length, y, y + length);
    };
    std::sort(order.begin(), order.end(), less);
    for (size_t i = 0; i < count; ++i) {
      require(i == 0 || less(order[i - 1], order[i]), "the pool has a ", length, "-gram twice");
      const int64_t* const gram = tokens + int64_t(order[i]) * length;
      tokens_.insert(tokens_.end(), gram, gram + length);
      gram_columns_.push_back(columns[order[i]]);
    }
    grams_[length - 1].count = int64_t(count);
  }

  int64_t shortest_, longest_, skips_, columns_ = 0;
  bool once_ = false, weighs_ = false;
  std::vector<int64_t> tokens_, gram_columns_;
  std::vector<float> weights_;
  Grams grams_[kLongestGram] = {};
  const float* kept_weights_ = nullptr;
};

}  // namespace

std::vector<OpRow> tf_idf_rows() {
  return {{.name = "TfIdfVectorizer", .since = 9, .types = {in(0, kIndices)}, .make = make<TfIdfVectorizer>}};
}

}  // namespace encore::ops
