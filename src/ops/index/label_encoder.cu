// LabelEncoder: a table of keys and values, searched for every element. Strings stay on the CPU.
#include <algorithm>
#include <cstring>

#include "device/launch.h"
#include "device/memory.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

constexpr const char* kMl = "ai.onnx.ml";
constexpr Types kLabels{Type::i16, Type::i32, Type::i64, Type::f32, Type::f64};
using LabelList = TypeList<int16_t, int32_t, int64_t, float, double>;

// A number as bits that are equal, and ordered somehow, exactly if the keys are equal: 0 is -0, and NaN is NaN.
template <class T>
BOTH_FN int64_t code_of(T key) {
  if constexpr (!std::is_floating_point_v<T>) return int64_t(key);
  if (key != key) return INT64_MAX;
  const double wide = key == T(0) ? 0 : double(key);
  int64_t bits;
  memcpy(&bits, &wide, sizeof(bits));
  return bits;
}

template <class Key, class Value>
struct LookUp {
  const Key* x;
  Value* y;
  const int64_t* codes;  // ascending
  const Value* values;   // of the codes, and then the one for all other keys
  int64_t count;
  DEVICE_FN void operator()(int64_t i) const {
    const int64_t wanted = code_of(x[i]);
    int64_t low = 0, high = count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (codes[middle] < wanted)
        low = middle + 1;
      else
        high = middle;
    }
    y[i] = values[low < count && codes[low] == wanted ? low : count];
  }
};

class LabelEncoder : public Op {
 public:
  explicit LabelEncoder(const NodeInfo& node) : value_bytes_(device::size_bytes(node.output_type(0))) {
    std::vector<int64_t> codes;
    dispatch(LabelList{}, node.input_type(0), [&]<class T> {
      for (const T key : listed<T>(node, "keys")) codes.push_back(code_of(key));
    });
    std::vector<unsigned char> values;
    dispatch(LabelList{}, node.output_type(0), [&]<class T> {
      std::vector<T> all = listed<T>(node, "values");
      require(all.size() == codes.size(), "there are ", codes.size(), " keys and ", all.size(), " values");
      all.push_back(otherwise<T>(node));
      values.resize(all.size() * sizeof(T));
      std::memcpy(values.data(), all.data(), values.size());
    });
    std::vector<size_t> order(codes.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    // Of equal keys the first counts, as in the CPU EP for most types.
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return codes[a] < codes[b]; });
    const auto same = [&](size_t a, size_t b) { return codes[a] == codes[b]; };
    order.erase(std::unique(order.begin(), order.end(), same), order.end());
    for (const size_t from : order) {
      codes_.push_back(codes[from]);
      append(&values[from * value_bytes_]);
    }
    append(&values[codes.size() * value_bytes_]);
  }
  void prepare(Prepack& prepack) override {
    const size_t code_bytes = codes_.size() * sizeof(int64_t);
    auto* const kept = static_cast<unsigned char*>(prepack.keep(code_bytes + values_.size()));
    if (code_bytes) device::copy(prepack.stream(), kept, codes_.data(), code_bytes);
    device::copy(prepack.stream(), kept + code_bytes, values_.data(), values_.size());
    kept_codes_ = reinterpret_cast<const int64_t*>(kept);
    kept_values_ = kept + code_bytes;
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor y = context.output(0, x.shape);
    dispatch(LabelList{}, x.type, [&]<class Key> {
      const auto look_up = [&]<class Value>(Value*) {
        device::for_each_index(context.stream(), x.count(),
                               LookUp<Key, Value>{x.as<const Key>(), y.as<Value>(), kept_codes_,
                                                  static_cast<const Value*>(kept_values_), int64_t(codes_.size())});
      };
      if (value_bytes_ == 2) return look_up(static_cast<uint16_t*>(nullptr));
      if (value_bytes_ == 4) return look_up(static_cast<uint32_t*>(nullptr));
      look_up(static_cast<uint64_t*>(nullptr));
    });
  }

 private:
  // The attribute that starts with `what` and fits the type.
  template <class T>
  static std::vector<T> listed(const NodeInfo& node, const std::string& what) {
    if constexpr (std::is_same_v<T, int64_t>) {
      if (const auto found = node.find_ints((what + "_int64s").c_str())) return *found;
    }
    if constexpr (std::is_same_v<T, float>) {
      if (const auto found = node.find_floats((what + "_floats").c_str())) return *found;
    }
    const Tensor* const tensor = node.find_tensor((what + "_tensor").c_str());
    require(tensor, what, " of type ", device::name(device::kTypeOf<T>), " are missing");
    require(tensor->type == device::kTypeOf<T>, what, "_tensor is of type ", device::name(tensor->type), ", not ",
            device::name(device::kTypeOf<T>));
    return {tensor->as<const T>(), tensor->as<const T>() + tensor->count()};
  }
  template <class T>
  static T otherwise(const NodeInfo& node) {
    if (const Tensor* const given = node.find_tensor("default_tensor")) {
      require(given->type == device::kTypeOf<T> && given->count() == 1, "default_tensor must be one ",
              device::name(device::kTypeOf<T>));
      return *given->as<const T>();
    }
    if constexpr (std::is_same_v<T, int64_t>) return node.get_int("default_int64", -1);
    if constexpr (std::is_same_v<T, float>) return node.get_float("default_float", -0.f);
    return std::is_floating_point_v<T> ? T(-0.) : T(-1);
  }
  void append(const unsigned char* value) { values_.insert(values_.end(), value, value + value_bytes_); }

  size_t value_bytes_;
  std::vector<int64_t> codes_;
  std::vector<unsigned char> values_;
  const int64_t* kept_codes_ = nullptr;
  const void* kept_values_ = nullptr;
};

}  // namespace

std::vector<OpRow> label_encoder_rows() {
  return {{.domain = kMl,
           .name = "LabelEncoder",
           .since = 2,
           .types = {in(0, kLabels), out(0, kLabels)},
           .make = make<LabelEncoder>}};
}

}  // namespace encore::ops
