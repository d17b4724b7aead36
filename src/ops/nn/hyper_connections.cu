// HyperConnectionPreMix, HyperConnectionPostMix and EngramGate: models whose hidden state is several branches.
#include <cmath>

#include "device/divide.h"
#include "ops/elementwise/any_floats.h"
#include "ops/elementwise/digits.h"
#include "ops/reduce/team.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::Pack;
using HalvesAndFloat = TypeList<float, Half, BFloat16>;

// A factor for each branch, or for each of its values.
struct Gates {
  AnyFloats values;
  bool of_branches;
  template <int kPack>
  DEVICE_FN Pack<float, kPack> of(int64_t branch, int64_t width, int64_t first) const {
    if (!of_branches) return values.pack<kPack>(branch * width + first);
    Pack<float, kPack> out;
    const float gate = values.at(branch);
    UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = gate;
    return out;
  }
};

template <int kPack>
struct Floats {
  float at[kPack] = {};
  template <class T>
  DEVICE_FN static Floats read(const T* from) {
    const auto pack = device::load_pack<kPack>(from, true);
    Floats out;
    UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = float(pack.at[j]);
    return out;
  }
  template <class T>
  DEVICE_FN void write(T* to) const {
    Pack<T, kPack> pack;
    UNROLL for (int j = 0; j < kPack; ++j) pack.at[j] = T(at[j]);
    device::store_pack(to, pack, true);
  }
  DEVICE_FN void add(const Pack<float, kPack>& factors, const Floats& values) {
    UNROLL for (int j = 0; j < kPack; ++j) at[j] += factors.at[j] * values.at[j];
  }
  DEVICE_FN void add(float factor, const Floats& values) {
    UNROLL for (int j = 0; j < kPack; ++j) at[j] += factor * values.at[j];
  }
};

// Threads have a pack of a row's values in all branches: kBranches, or if that is 0 as many as there are.
template <class T, int kPack, int kBranches>
struct JoinBranches {
  const T* x;
  T* y;
  Gates gates;
  Divider by_packs;
  int64_t branches, width;
  float scale;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack;
    const int64_t row = by_packs(i, pack), first = pack * kPack;
    Floats<kPack> all;
    if constexpr (kBranches != 0) {
      Floats<kPack> kept[kBranches];
      const int64_t from = row * kBranches;
      UNROLL for (int c = 0; c < kBranches; ++c) kept[c] = Floats<kPack>::read(x + (from + c) * width + first);
      UNROLL for (int c = 0; c < kBranches; ++c) all.add(gates.of<kPack>(from + c, width, first), kept[c]);
    } else {
      for (int64_t c = row * branches; c < (row + 1) * branches; ++c)
        all.add(gates.of<kPack>(c, width, first), Floats<kPack>::read(x + c * width + first));
    }
    UNROLL for (int j = 0; j < kPack; ++j) all.at[j] *= scale;
    all.write(y + row * width + first);
  }
};

template <class T, int kPack, int kBranches>
struct MixBranches {
  const T *x, *block;
  T* y;
  Gates gates;
  AnyFloats mix;  // of each row [from, to]; without data: each stays
  Divider by_packs;
  int64_t branches, width;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack;
    const int64_t row = by_packs(i, pack), first = pack * kPack, count = kBranches ? kBranches : branches;
    const auto added = Floats<kPack>::read(block + row * width + first);
    const T* from = x + row * count * width + first;
    T* to = y + row * count * width + first;
    Floats<kPack> kept[kBranches ? kBranches : 1];
    UNROLL for (int c = 0; c < kBranches; ++c) kept[c] = Floats<kPack>::read(from + c * width);
    const auto make = [&](int64_t k) {
      Floats<kPack> out;
      if (!mix.data) {
        out = Floats<kPack>::read(from + k * width);
      } else if constexpr (kBranches != 0) {
        UNROLL for (int c = 0; c < kBranches; ++c) out.add(mix.at((row * count + c) * count + k), kept[c]);
      } else {
        for (int64_t c = 0; c < count; ++c)
          out.add(mix.at((row * count + c) * count + k), Floats<kPack>::read(from + c * width));
      }
      out.add(gates.of<kPack>(row * count + k, width, first), added);
      out.write(to + k * width);
    };
    if constexpr (kBranches != 0) {
      UNROLL for (int k = 0; k < kBranches; ++k) make(k);
    } else {
      for (int64_t k = 0; k < count; ++k) make(k);
    }
  }
};

// Whether gates of this shape are for branches, each, or for all of their values.
bool are_of_branches(const Shape& gates, const Shape& streams, const Branches& shape, bool may_be_flat,
                     const char* what) {
  std::vector<int64_t> dims(streams.dims().begin(), streams.dims().begin() + shape.lead);
  if (may_be_flat && gates == streams) return shape.width == 1;
  dims.push_back(shape.count);
  if (gates == Shape(dims)) return true;
  dims.push_back(1);
  if (gates == Shape(dims)) return true;
  dims.back() = shape.width;
  require(gates == Shape(dims), what, " ", gates.str(), " does not fit ", shape.count, " branches of ", shape.width,
          " in streams ", streams.str());
  return false;
}

template <class T, int kPack>
bool is_wide(int64_t width, std::initializer_list<const void*> values, const Gates& gates) {
  bool wide = width % kPack == 0 && (gates.of_branches || gates.values.has_packs<kPack>());
  for (const void* data : values) wide &= device::is_pack_aligned<kPack>(static_cast<const T*>(data));
  return wide;
}

class PreMix : public Op {
 public:
  explicit PreMix(const NodeInfo& node)
      : branches_(node.get_int("num_branches", 0)), scale_(node.get_float("reduction_scale", 1.f)) {
    require(branches_ >= 0, "num_branches is ", branches_, "; it must not be negative");
  }
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &mix = context.input(1);
    const Branches shape = branches_of(x.shape, branches_, "streams");
    const Gates gates{{mix.data, mix.type}, are_of_branches(mix.shape, x.shape, shape, branches_ > 0, "pre_mix")};
    std::vector<int64_t> dims(x.shape.dims().begin(), x.shape.dims().begin() + shape.lead);
    dims.push_back(shape.width);
    const Tensor y = context.output(0, Shape(dims));
    if (y.count() == 0) return;
    dispatch(HalvesAndFloat{}, x.type, [&]<class T>() {
      const auto launch = [&]<int kPack, int kBranches>() {
        const int64_t packs = y.count() / kPack;
        device::for_each_index(
            context.stream(), packs,
            JoinBranches<T, kPack, kBranches>{x.as<const T>(), y.as<T>(), gates, Divider(shape.width / kPack, packs),
                                              shape.count, shape.width, scale_});
      };
      constexpr int kWide = device::pack_size<T>();
      const bool wide = is_wide<T, kWide>(shape.width, {x.data, y.data}, gates);
      if (wide && shape.count == 4)
        launch.template operator()<kWide, 4>();
      else if (wide)
        launch.template operator()<kWide, 0>();
      else
        launch.template operator()<1, 0>();
    });
  }

 private:
  int64_t branches_;
  float scale_;
};

class PostMix : public Op {
 public:
  explicit PostMix(const NodeInfo& node) : branches_(node.get_int("num_branches", 0)) {
    require(branches_ >= 0, "num_branches is ", branches_, "; it must not be negative");
  }
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &block = context.input(1), &post = context.input(2);
    const Tensor* mix = context.find_input(3);
    const Branches shape = branches_of(x.shape, branches_, "streams");
    const Gates gates{{post.data, post.type}, are_of_branches(post.shape, x.shape, shape, false, "post_mix")};
    std::vector<int64_t> dims(x.shape.dims().begin(), x.shape.dims().begin() + shape.lead);
    dims.push_back(shape.width);
    require(block.shape == Shape(dims), "block_output ", block.shape.str(), " does not fit branches of ", shape.width,
            " in streams ", x.shape.str());
    if (mix) {
      dims.back() = shape.count;
      dims.push_back(shape.count);
      require(mix->shape == Shape(dims), "stream_mix ", mix->shape.str(), " does not fit ", shape.count,
              " branches in streams ", x.shape.str());
      require(mix->type == post.type, "stream_mix has type ", device::name(mix->type), ", post_mix ",
              device::name(post.type));
    }
    const Tensor y = context.output(0, x.shape);
    if (y.count() == 0) return;
    const AnyFloats matrix = mix ? AnyFloats{mix->data, mix->type} : AnyFloats{};
    dispatch(HalvesAndFloat{}, x.type, [&]<class T>() {
      const auto launch = [&]<int kPack, int kBranches>() {
        const int64_t packs = block.count() / kPack;
        device::for_each_index(
            context.stream(), packs,
            MixBranches<T, kPack, kBranches>{x.as<const T>(), block.as<const T>(), y.as<T>(), gates, matrix,
                                             Divider(shape.width / kPack, packs), shape.count, shape.width});
      };
      constexpr int kWide = device::pack_size<T>();
      const bool wide = is_wide<T, kWide>(shape.width, {x.data, block.data, y.data}, gates);
      if (wide && mix && shape.count == 4)
        launch.template operator()<kWide, 4>();
      else if (wide)
        launch.template operator()<kWide, 0>();
      else
        launch.template operator()<1, 0>();
    });
  }

 private:
  int64_t branches_;
};

struct GateSums {
  float keys, queries, products, values;  // of squares, but for the products
};
struct AddGateSums {
  DEVICE_FN GateSums operator()(const GateSums& a, const GateSums& b) const {
    return {a.keys + b.keys, a.queries + b.queries, a.products + b.products, a.values + b.values};
  }
};

// A block has a token's branch.
template <class T, int kPack>
struct GateValues {
  using Block = device::Block<device::NoShared>;
  const T *key, *query, *value, *key_scale, *query_scale, *normed_scale;
  T *y, *normed;  // normed: null if nobody wants it
  Divider by_branches;
  int64_t width;
  float epsilon;

  DEVICE_FN void operator()(Block& b, const device::NoShared&) const {
    const int64_t row = b.index();
    int64_t branch;
    const T* values = value + by_branches(row, branch) * width;
    const GateSums sums = b.reduce(
        GateSums{0, 0, 0, 0},
        [&](int t) {
          GateSums own{0, 0, 0, 0};
          for (int64_t i = int64_t(t) * kPack; i < width; i += int64_t(b.size()) * kPack) {
            const auto k = Floats<kPack>::read(key + row * width + i), q = Floats<kPack>::read(query + row * width + i);
            const auto ks = Floats<kPack>::read(key_scale + branch * width + i),
                       qs = Floats<kPack>::read(query_scale + branch * width + i);
            const auto v = Floats<kPack>::read(values + i);
            UNROLL for (int j = 0; j < kPack; ++j) {
              own.keys += k.at[j] * k.at[j];
              own.queries += q.at[j] * q.at[j];
              own.products += k.at[j] * ks.at[j] * (q.at[j] * qs.at[j]);
              own.values += v.at[j] * v.at[j];
            }
          }
          return own;
        },
        AddGateSums());
    b.threads([&](int t, device::NoShared&) {
      const float count = float(width);
      const float dot = sums.products / std::sqrt(sums.keys / count + epsilon) /
                        std::sqrt(sums.queries / count + epsilon) / std::sqrt(count);
      const float size = std::sqrt(std::fabs(dot) < 1e-6f ? 1e-6f : std::fabs(dot));
      const float gate = sigmoid_for<float>(dot > 0 ? size : dot < 0 ? -size : dot);
      const float over_root = 1.f / std::sqrt(gate * gate * (sums.values / count) + epsilon);
      for (int64_t i = int64_t(t) * kPack; i < width; i += int64_t(b.size()) * kPack) {
        auto v = Floats<kPack>::read(values + i);
        UNROLL for (int j = 0; j < kPack; ++j) v.at[j] *= gate;
        v.write(y + row * width + i);
        if (!normed) continue;
        const auto scale = Floats<kPack>::read(normed_scale + branch * width + i);
        UNROLL for (int j = 0; j < kPack; ++j) v.at[j] *= over_root * scale.at[j];
        v.write(normed + row * width + i);
      }
    });
  }
};

class EngramGate : public Op {
 public:
  explicit EngramGate(const NodeInfo& node) : epsilon_(node.get_float("epsilon", 1e-5f)) {
    require(!node.has_output(1) || node.has_input(5), "output gated_value_normed wants input conv_norm_scale");
  }
  void run(Context& context) const override {
    const Tensor &key = context.input(0), &query = context.input(1), &value = context.input(2);
    const Tensor* normed_scale = context.find_input(5);
    require(key.shape.rank() == 4, "key ", key.shape.str(), " must have four dimensions");
    const int64_t branches = key.shape[2], width = key.shape[3];
    require(query.shape == key.shape, "query ", query.shape.str(), " must have the shape of key ", key.shape.str());
    require(value.shape == Shape{key.shape[0], key.shape[1], width}, "value ", value.shape.str(), " does not fit key ",
            key.shape.str());
    const auto check = [&](const Tensor& scale, const char* what) {
      require(scale.shape == Shape{branches, width}, what, " ", scale.shape.str(), " must be [", branches, ",", width,
              "], as key ", key.shape.str());
    };
    check(context.input(3), "key_norm_scale");
    check(context.input(4), "query_norm_scale");
    if (normed_scale) check(*normed_scale, "conv_norm_scale");
    const Tensor y = context.output(0, key.shape);
    const Tensor normed = normed_scale && context.wants_output(1) ? context.output(1, key.shape) : Tensor();
    if (y.count() == 0) return;
    const int64_t rows = y.count() / width;
    dispatch(HalvesAndFloat{}, key.type, [&]<class T>() {
      const auto at = [](const Tensor& tensor) { return tensor.as<const T>(); };
      const auto launch = [&]<int kPack>() {
        const int64_t packs = width / kPack;
        const int threads = int(std::min<int64_t>((packs + 31) / 32 * 32, 512));
        device::block_kernel<device::NoShared>(
            context.stream(), {rows, threads},
            GateValues<T, kPack>{at(key), at(query), at(value), at(context.input(3)), at(context.input(4)),
                                 normed_scale ? at(*normed_scale) : nullptr, y.as<T>(), normed.as<T>(),
                                 Divider(branches, rows), width, epsilon_});
      };
      constexpr int kWide = device::pack_size<T>();
      bool wide = width % kWide == 0 && device::is_pack_aligned<kWide>(y.as<T>()) &&
                  device::is_pack_aligned<kWide>(normed.as<T>());
      for (int input = 0; input < 5 + (normed_scale ? 1 : 0); ++input)
        wide &= device::is_pack_aligned<kWide>(at(context.input(input)));
      if (wide)
        launch.template operator()<kWide>();
      else
        launch.template operator()<1>();
    });
  }

 private:
  float epsilon_;
};

}  // namespace

std::vector<OpRow> hyper_connections_rows() {
  const std::vector<TypeRule> types = {in_all(0, kHalves | Types{Type::f32})};
  const auto row = [&](const char* name, MakeOp make_op) {
    return OpRow{.domain = kMicrosoft, .name = name, .since = 1, .types = types, .make = make_op};
  };
  return {row("HyperConnectionPreMix", make<PreMix>), row("HyperConnectionPostMix", make<PostMix>),
          row("EngramGate", make<EngramGate>)};
}

}  // namespace encore::ops
