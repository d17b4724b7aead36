#include "fuse/padded_run.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "device/memory.h"
#include "fuse/padding_masks.h"
#include "ops/inner_context.h"
#include "ops/shape/strided.h"

namespace encore::fuse {
namespace {

using ops::Shape;

struct Grown {
  const PaddedAxes* axes;
  int64_t before, after;
};

// Of one that is as long in all inputs.
std::optional<int64_t> length_of(const Padding& padding, ops::Context& outer) {
  std::optional<int64_t> length;
  for (size_t i = 0; i < padding.axes.inputs.size(); ++i) {
    const int axis = padding.axes.inputs[i];
    const Tensor* const input = axis < 0 ? nullptr : outer.find_input(int(i));
    if (!input) continue;
    if (axis >= input->shape.rank() || input->shape[axis] != length.value_or(input->shape[axis])) return std::nullopt;
    length = input->shape[axis];
  }
  return length;
}

int64_t padded_length(const Padding& padding, int64_t length) {
  const auto next = std::ranges::lower_bound(padding.lengths, length);
  return length == 0 || next == padding.lengths.end() ? length : *next;
}

// What a mask has for rows that were there, and what it has for others.
void put_mask(const PaddingMask& mask, bool is_there, char* to) {
  if (mask.kind == PaddingMask::rows)
    *to = is_there;
  else
    put_number(mask.type, is_there ? 0 : -std::numeric_limits<double>::infinity(), to);
}

// Copies `count` rows of an axis, each the next one `step` behind, or the same again if that is 0.
void copy_rows(device::StreamRef stream, const Tensor& from, const Tensor& to, int axis, int64_t first, int64_t into,
               int64_t count, int64_t step) {
  if (count == 0 || from.count() == 0) return;
  const std::vector<int64_t> in = ops::strides_of(from.shape), out = ops::strides_of(to.shape);
  ops::StridedCopy copy;
  for (int i = 0; i < from.shape.rank(); ++i)
    if (i == axis)
      copy.add(count, in[size_t(i)] * step, out[size_t(i)]);
    else
      copy.add(from.shape[i], in[size_t(i)], out[size_t(i)]);
  const size_t bytes = device::size_bytes(from.type);
  copy.run(stream, from.as<const char>() + size_t(first * in[size_t(axis)]) * bytes,
           to.as<char>() + size_t(into * out[size_t(axis)]) * bytes, bytes, from.where);
}

class PaddedRun final : public ops::InnerContext {
 public:
  PaddedRun(ops::Context& outer, const std::vector<Padding>& paddings) : InnerContext(outer) {
    for (const Padding& padding : paddings) {
      const auto length = length_of(padding, outer);
      const int64_t padded = length ? padded_length(padding, *length) : 0;
      if (length && padded != *length) dims_.push_back({&padding.axes, *length, padded});
      for (size_t i = 0; const auto& [mask, steps] : padding.axes.masked)
        masks_.push_back(mask_of(padding, mask, padding.tables[i++], length, padded));
    }
    inputs_.resize(size_t(outer.input_count()));
    outputs_.resize(size_t(outer.output_count()));
    for (size_t i = 0; i < inputs_.size(); ++i)
      for (const Grown& dim : dims_)
        if (const int axis = dim.axes->inputs[i]; axis >= 0 && outer.find_input(int(i)))
          inputs_[i] = longer(*find_input(int(i)), axis, dim);
  }

  int input_count() const override { return outer_.input_count() + int(masks_.size()); }
  int output_count() const override { return outer_.output_count(); }
  const Tensor* find_input(int i) override {
    if (i >= outer_.input_count()) return &masks_[size_t(i - outer_.input_count())];
    return inputs_[size_t(i)] ? &*inputs_[size_t(i)] : outer_.find_input(i);
  }
  bool wants_output(int i) const override { return outer_.wants_output(i); }
  Tensor output(int i, const Shape& shape) override {
    std::optional<Output>& made = outputs_[size_t(i)];
    if (made && made->inside.shape == shape) return made->inside;
    Shape cut = shape;
    for (const Grown& dim : dims_)
      if (const int axis = dim.axes->outputs[size_t(i)]; axis >= 0) {
        if (axis >= shape.rank() || shape[axis] % dim.after != 0)
          fail(Code::internal, "an output of ", shape.str(), " has no rows of a dimension of ", dim.after);
        cut = cut.with(axis, shape[axis] / dim.after * dim.before);
      }
    const Tensor outside = outer_.output(i, cut);
    if (cut == shape) return outside;
    Tensor inside = outside;
    inside.shape = shape;
    if (outside.data || wants_output(i)) inside.data = outer_.scratch(inside.bytes());
    made = {inside, outside};
    return inside;
  }

  void cut_outputs() {
    for (const std::optional<Output>& output : outputs_)
      if (output && output->outside.data) cut(*output);
  }

 private:
  struct Output {
    Tensor inside, outside;
  };

  // One row that was there is for any length.
  Tensor mask_of(const Padding& padding, const PaddingMask& mask, const Tensor& table, std::optional<int64_t> length,
                 int64_t padded) {
    const int64_t longest = padding.lengths.back();
    const auto from = [&](int64_t first) { return table.as<char>() + size_t(first) * device::size_bytes(table.type); };
    Tensor made = table;
    if (mask.kind == PaddingMask::growth) {
      made.shape = Shape();
      made.data = from(length && padded != *length ? *length : 0);
      return made;
    }
    if (mask.kind == PaddingMask::length) {
      made.shape = Shape{2};
      made.data = from(length && padded != *length ? 2 * *length : 0);
      return made;
    }
    std::vector<int64_t> dims(size_t(1 + mask.behind), 1);
    dims[0] = length ? padded : 1;
    made.shape = Shape(dims);
    if (length && *length > longest) {
      made.data = outer_.scratch(made.bytes());
      device::fill(stream(), made.data, mask.kind == PaddingMask::rows, made.bytes());
    } else if (length) {
      made.data = from(longest - *length);
    }
    return made;
  }
  Tensor longer(const Tensor& input, int axis, const Grown& dim) {
    Tensor made = input;
    made.shape = input.shape.with(axis, dim.after);
    made.data = outer_.scratch(made.bytes());
    copy_rows(stream(), input, made, axis, 0, 0, dim.before, 1);
    copy_rows(stream(), input, made, axis, dim.before - 1, dim.before, dim.after - dim.before, 0);
    return made;
  }
  void cut(const Output& output) {
    const Tensor& seen = output.outside;
    const std::vector<int64_t> in = ops::strides_of(output.inside.shape), out = ops::strides_of(seen.shape);
    ops::StridedCopy copy;
    for (int axis = 0; axis < seen.shape.rank(); ++axis)
      copy.add(seen.shape[axis], in[size_t(axis)], out[size_t(axis)]);
    if (seen.count() > 0) copy.run(stream(), output.inside.data, seen.data, device::size_bytes(seen.type), seen.where);
  }

  std::vector<Grown> dims_;
  std::vector<Tensor> masks_;
  std::vector<std::optional<Tensor>> inputs_;
  std::vector<std::optional<Output>> outputs_;
};

}  // namespace

void Padding::prepare(ops::Prepack& loader) {
  for (const auto& [mask, steps] : axes.masked) {
    const size_t bytes = device::size_bytes(mask.type), longest = size_t(lengths.back());
    std::vector<char> values;
    if (mask.kind == PaddingMask::growth) {
      values.resize((longest + 1) * bytes);
      for (size_t i = 0; i <= longest; ++i)
        put_number(mask.type, i ? double(padded_length(*this, int64_t(i))) / double(i) : 1, values.data() + i * bytes);
    } else if (mask.kind == PaddingMask::length) {
      values.resize((longest + 1) * 2 * bytes);
      for (int64_t i = 0; i <= int64_t(longest); ++i) {
        const int64_t rows[] = {i, i ? padded_length(*this, i) - i : 0};
        std::memcpy(values.data() + size_t(i) * sizeof rows, rows, sizeof rows);
      }
    } else {
      values.resize(2 * longest * bytes);
      for (size_t i = 0; i < 2 * longest; ++i) put_mask(mask, i < longest, values.data() + i * bytes);
    }
    Tensor table{mask.type, ops::Where::host, Shape{int64_t(values.size() / bytes)}, values.data()};
    table.data = loader.keep_constant(table, false);
    table.where = ops::Where::device;
    tables.push_back(table);
  }
}

void run_padded(const std::vector<Padding>& paddings, ops::Context& outer,
                const std::function<void(ops::Context&, bool is_longer)>& body) {
  const auto becomes_longer = [&](const Padding& padding) {
    const auto length = length_of(padding, outer);
    return length && padded_length(padding, *length) != *length;
  };
  const auto has_masks = [](const Padding& padding) { return !padding.tables.empty(); };
  const bool is_longer = std::ranges::any_of(paddings, becomes_longer);
  if (!is_longer && std::ranges::none_of(paddings, has_masks)) return body(outer, false);
  PaddedRun run(outer, paddings);
  body(run, is_longer);
  run.cut_outputs();
}

}  // namespace encore::fuse
