// Concat and Split: rows of several tensors side by side in one, in one launch for up to kParts tensors.
#include <algorithm>

#include "device/divide_small.h"
#include "device/pieces.h"
#include "ops/dispatch.h"
#include "ops/host_vector.h"
#include "ops/registry.h"
#include "ops/shape/joined_cuts.h"
#include "ops/shape/movement.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

constexpr size_t kParts = 16;

struct Part {
  void* data;
  int64_t first, width;   // columns of the joined rows, in elements
  int64_t pitch = width;  // from one of its own rows to the next
};

// The joined rows of parts that lie side by side.
template <class T>
struct JoinedPieces {
  device::SmallDivider by_width;
  Part parts[kParts];
  int count;
  DEVICE_FN device::Piece<T> operator()(int64_t i) const {
    int column;
    const int row = by_width(int(i), column);
    column += int(parts[0].first);
    int p = 0;
    while (p + 1 < count && column >= int(parts[p + 1].first)) ++p;
    const int pitch = int(parts[p].pitch), at = column - int(parts[p].first);
    return {static_cast<const T*>(parts[p].data) + row * pitch + at, int(parts[p].width) - at};
  }
};

// One part of the joined rows.
template <class T>
struct PartPieces {
  const T* joined;  // its first column
  int row_width;
  device::SmallDivider by_width;
  DEVICE_FN device::Piece<T> operator()(int64_t i) const {
    int column;
    const int row = by_width(int(i), column);
    return {joined + row * row_width + column, by_width.divisor() - column};
  }
};
template <class T>
struct FillParts {
  using Fill = device::FillRows<T, PartPieces<T>, int>;
  Fill parts[kParts];
  int first[kParts];  // threads
  int count;
  DEVICE_FN void operator()(int64_t i) const {
    int p = 0;
    while (p + 1 < count && int(i) >= first[p + 1]) ++p;
    parts[p](i - first[p]);
  }
};

template <class T>
void join_parts(StreamRef stream, T* joined, int64_t rows, int64_t row_width, std::span<const Part> parts) {
  JoinedPieces<T> pieces{{}, {}, int(parts.size())};
  std::copy(parts.begin(), parts.end(), pieces.parts);
  const int64_t first = parts.front().first, width = parts.back().first + parts.back().width - first;
  pieces.by_width = device::SmallDivider(int(width));
  device::fill_rows<int>(stream, joined + first, rows, width, row_width,
                         width / pieces.count >= 8 * device::pack_size<T>(), pieces);
}

template <class T>
void split_parts(StreamRef stream, const T* joined, int64_t rows, int64_t row_width, std::span<const Part> parts) {
  FillParts<T> fill{{}, {}, 0};
  int threads = 0;
  for (const Part& part : parts) {
    fill.first[fill.count] = threads;
    fill.parts[fill.count] = device::filled_rows<int>(
        stream, static_cast<T*>(part.data), rows, part.width, part.width, part.width >= 8 * device::pack_size<T>(),
        PartPieces<T>{joined + part.first, int(row_width), device::SmallDivider(int(part.width))});
    threads += fill.parts[fill.count++].threads;
  }
  device::for_each_index(stream, threads, fill);
}

template <bool kSplit>
void move_one_by_one(StreamRef stream, char* joined, int64_t rows, int64_t row_width, std::span<const Part> parts,
                     size_t bytes, Where where) {
  for (const Part& part : parts) {
    char* const inside = joined + size_t(part.first) * bytes;
    StridedCopy copy;
    copy.add(rows, kSplit ? row_width : part.pitch, kSplit ? part.pitch : row_width);
    copy.add(part.width, 1, 1);
    copy.run(stream, kSplit ? inside : part.data, kSplit ? part.data : inside, bytes, where);
  }
}

template <bool kSplit>
void move_parts(StreamRef stream, void* joined, int64_t rows, std::vector<Part> parts, size_t bytes,
                Where where = Where::device) {
  int64_t row_width = 0;
  for (const Part& part : parts) row_width += part.width;
  std::erase_if(parts, [](const Part& part) { return part.width == 0 || !part.data; });
  if (rows == 0 || parts.empty()) return;
  // Wider elements while every boundary allows it.
  const auto even = [&] {
    uintptr_t address = reinterpret_cast<uintptr_t>(joined);
    int64_t columns = row_width;
    for (const Part& part : parts) {
      address |= reinterpret_cast<uintptr_t>(part.data);
      columns |= part.first | part.width | part.pitch;
    }
    return bytes < 16 && columns % 2 == 0 && address % (2 * bytes) == 0;
  };
  while (even()) {
    row_width /= 2;
    bytes *= 2;
    for (Part& part : parts) part = {part.data, part.first / 2, part.width / 2, part.pitch / 2};
  }
  constexpr int64_t kMost = int64_t(1) << 30;  // that kernels count
  const auto is_large = [&](const Part& part) { return rows * part.pitch >= kMost; };
  if (where == Where::host || rows * row_width >= kMost || std::ranges::any_of(parts, is_large))
    return move_one_by_one<kSplit>(stream, static_cast<char*>(joined), rows, row_width, parts, bytes, where);
  const auto lies_beside = [&](size_t p) {
    return kSplit || parts[p].first == parts[p - 1].first + parts[p - 1].width;
  };
  dispatch_size(bytes, [&]<class T>() {
    for (size_t from = 0, to = 1; from < parts.size(); from = to++) {
      while (to < parts.size() && to - from < kParts && lies_beside(to)) ++to;
      const auto some = std::span<const Part>(parts).subspan(from, to - from);
      if constexpr (kSplit)
        split_parts(stream, static_cast<const T*>(joined), rows, row_width, some);
      else
        join_parts(stream, static_cast<T*>(joined), rows, row_width, some);
    }
  });
}

class Concat : public Op {
 public:
  explicit Concat(const NodeInfo& node) : axis_(node.get_int("axis", 1)) {}  // opset 1 had a default
  void run(Context& context) const override {
    const int axis = checked_axis(axis_, context.input(0).shape.rank());
    std::vector<Tensor> parts;
    for (int i = 0; i < context.input_count(); ++i) parts.push_back(context.input(i));
    concatenate(context.stream(), parts, axis, context.output(0, joined_shape(parts, axis)));
  }

 private:
  int64_t axis_;
};

// Of parts: kBegins and kEnds say of each input what it is cut to along the axis.
class JoinedCuts : public Op {
 public:
  explicit JoinedCuts(const NodeInfo& node)
      : axis_(node.get_int("axis", 0)),
        begins_(node.find_ints(kBegins).value_or(std::vector<int64_t>())),
        ends_(node.find_ints(kEnds).value_or(std::vector<int64_t>())) {
    require(int(begins_.size()) == node.input_count() && int(ends_.size()) == node.input_count(), "of ",
            node.input_count(), " inputs ", begins_.size(), " begin and ", ends_.size(), " end somewhere");
  }
  void run(Context& context) const override {
    const int axis = checked_axis(axis_, context.input(0).shape.rank());
    std::vector<Cut> cuts;
    for (int i = 0; i < context.input_count(); ++i) {
      const Tensor& input = context.input(i);
      const int64_t end = ends_[size_t(i)];
      if (end < 0)
        cuts.emplace_back(input, axis);
      else
        cuts.emplace_back(input, axis, begins_[size_t(i)], end);
    }
    concatenate(context.stream(), cuts, axis, context.output(0, joined_shape(cuts, axis)));
  }

 private:
  int64_t axis_;
  std::vector<int64_t> begins_, ends_;
};

class Split : public Op {
 public:
  explicit Split(const NodeInfo& node)
      : axis_(node.get_int("axis", 0)), split_(node.find_ints("split")), equal_(node.find_int("num_outputs")) {}
  void run(Context& context) const override {
    const Tensor& in = context.input(0);
    const int axis = checked_axis(axis_, in.shape.rank());
    const int64_t dim = in.shape[axis];
    const int outputs = context.output_count();
    std::vector<int64_t> sizes;
    if (const Tensor* given = context.find_input(1))
      sizes = host_vector(*given, "split");
    else if (split_)
      sizes = *split_;
    if (sizes.empty()) {
      require(!equal_ || *equal_ == outputs, "num_outputs is ", equal_.value_or(0), " but the node has ", outputs,
              " outputs");
      require(equal_ || dim % outputs == 0, "dimension ", dim, " cannot be split evenly into ", outputs);
      const int64_t each = (dim + outputs - 1) / outputs;  // the last one may be smaller since opset 18
      for (int i = 0; i < outputs; ++i) sizes.push_back(std::clamp<int64_t>(dim - i * each, 0, each));
    }
    require(int(sizes.size()) == outputs, "split has ", sizes.size(), " sizes for ", outputs, " outputs");
    int64_t sum = 0;
    for (int64_t size : sizes) {
      require(size >= 0, "split holds ", size);
      require(!__builtin_add_overflow(sum, size, &sum), "the sizes of split overflow");
    }
    require(sum == dim, "the sizes of split add up to ", sum, ", the dimension is ", dim);
    const int64_t inner = in.shape.count(axis + 1, in.shape.rank());
    std::vector<Part> parts;
    int64_t column = 0;
    for (int i = 0; i < outputs; ++i) {
      const int64_t width = sizes[size_t(i)] * inner;
      void* data = context.wants_output(i) ? context.output(i, in.shape.with(axis, sizes[size_t(i)])).data : nullptr;
      parts.push_back({data, column, width});
      column += width;
    }
    move_parts<true>(context.stream(), in.data, in.shape.count(0, axis), std::move(parts), device::size_bytes(in.type),
                     in.where);
  }

 private:
  int64_t axis_;
  std::optional<std::vector<int64_t>> split_;
  std::optional<int64_t> equal_;
};

}  // namespace

Shape joined_shape(std::span<const Tensor> parts, int axis) {
  const Shape& first = parts.front().shape;
  int64_t total = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Shape& shape = parts[i].shape;
    require(shape.rank() == first.rank() && shape.with(axis, 0) == first.with(axis, 0), "input ", i, " of shape ",
            shape.str(), " cannot be joined to ", first.str(), " along axis ", axis);
    require(!__builtin_add_overflow(total, shape[axis], &total), "the joined dimension overflows");
  }
  return first.with(axis, total);
}

Cut::Cut(const Tensor& whole, int axis) : tensor(whole), pitch(whole.shape.count(axis, whole.shape.rank())) {}
Cut::Cut(const Tensor& wider, int axis, int64_t begin, int64_t end) : Cut(wider, axis) {
  const Shape& shape = wider.shape;
  require(0 <= begin && begin <= end && end <= shape[axis], "an input of shape ", shape.str(), " has no part from ",
          begin, " to ", end, " along axis ", axis);
  tensor.shape = shape.with(axis, end - begin);
  if (wider.data)
    tensor.data = static_cast<char*>(wider.data) +
                  size_t(begin * shape.count(axis + 1, shape.rank())) * device::size_bytes(wider.type);
}

Shape joined_shape(std::span<const Cut> parts, int axis) {
  std::vector<Tensor> tensors;
  for (const Cut& part : parts) tensors.push_back(part.tensor);
  return joined_shape(tensors, axis);
}

void concatenate(StreamRef stream, std::span<const Cut> parts, int axis, const Tensor& joined) {
  const int64_t inner = joined.shape.count(axis + 1, joined.shape.rank());
  std::vector<Part> columns;
  int64_t column = 0;
  for (const Cut& part : parts) {
    columns.push_back({part.tensor.data, column, part.tensor.shape[axis] * inner, part.pitch});
    column += columns.back().width;
  }
  move_parts<false>(stream, joined.data, joined.shape.count(0, axis), std::move(columns),
                    device::size_bytes(joined.type), parts.front().tensor.where);
}

void concatenate(StreamRef stream, std::span<const Tensor> parts, int axis, const Tensor& joined) {
  std::vector<Cut> cuts;
  for (const Tensor& part : parts) cuts.emplace_back(part, axis);
  concatenate(stream, cuts, axis, joined);
}

void concatenate(StreamRef stream, std::span<const void* const> parts, size_t part_bytes, void* out) {
  const auto width = int64_t(part_bytes);
  std::vector<Part> row;
  for (const void* part : parts) row.push_back({const_cast<void*>(part), int64_t(row.size()) * width, width});
  move_parts<false>(stream, out, 1, std::move(row), 1);
}

std::unique_ptr<Op> make_joined_cuts(const NodeInfo& node) { return std::make_unique<JoinedCuts>(node); }

std::vector<OpRow> concat_split_rows() {
  return {
      {.name = "Concat", .since = 1, .types = {in_all(0, kFixedSize)}, .make = make<Concat>, .anywhere = true},
      {.name = "Split",
       .since = 1,
       .types = {in(0, kFixedSize)},
       .make = make<Split>,
       .host_inputs = {1},
       .anywhere = true},
  };
}

}  // namespace encore::ops
