// Constants of fusion's own making.
#pragma once
#include <memory>
#include <vector>

#include "ops/tensor.h"

namespace encore::fuse {

struct OwnTensor {
  std::vector<char> bytes;
  ops::Tensor view;
};

std::shared_ptr<OwnTensor> own(ops::Type type, const ops::Shape& shape);  // zeros
std::shared_ptr<OwnTensor> own(ops::Type type, const ops::Shape& shape, const void* data);
std::shared_ptr<OwnTensor> own_ints(const std::vector<int64_t>& list);
// Each rounded to a float, and then to the type; zeros if there are none.
std::shared_ptr<OwnTensor> own_numbers(ops::Type type, const ops::Shape& shape, const std::vector<double>& numbers);
// Likewise; nothing if one of them is beyond the type's numbers then.
std::shared_ptr<OwnTensor> own_finite_numbers(ops::Type type, const ops::Shape& shape,
                                              const std::vector<double>& numbers);

// Likewise, of halves or floats. Nothing if more is lost in some row, which is all of a place along the first
// dimension, than its numbers lose by their type anyway, as where they come near zero.
std::shared_ptr<OwnTensor> own_rows(ops::Type type, const ops::Shape& shape, const std::vector<double>& numbers);

// What a constant of halves or floats holds; nothing of others.
std::vector<double> numbers_of(const ops::Tensor& constant);

// A constant of halves or floats, each column multiplied by its factor. Nothing if more is lost in some column than so.
std::shared_ptr<OwnTensor> scaled_columns(const ops::Tensor& constant, const std::vector<double>& factors);

}  // namespace encore::fuse
