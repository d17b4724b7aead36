// Products of dimensions, where some are symbols.
#pragma once
#include <map>
#include <optional>
#include <span>

#include "fuse/shape_symbols.h"

namespace encore::fuse {

struct Volume {
  int64_t number = 1;
  Dims symbols = {};  // in their order
  bool operator==(const Volume&) const = default;
};

// By dimension; nothing for one that is unknown.
using Volumes = std::vector<std::optional<Volume>>;
// Symbols that stand for a product of others.
using KnownVolumes = std::map<int64_t, Volume>;

std::optional<Volume> product(const Volume& a, const Volume& b);
std::optional<Volume> product(std::span<const std::optional<Volume>> volumes);
// Nothing if it may leave a rest.
std::optional<Volume> quotient(const Volume& a, const Volume& by);

std::optional<Volume> volume_of(int64_t dim, const KnownVolumes& known);
// Of the dimensions [from, to).
std::optional<Volume> volume_of(const Dims& dims, size_t from, size_t to, const KnownVolumes& known);
// Of what a Reshape asks for: an open dimension, -1, has what the others leave of the whole.
Volumes volumes_of(const Dims& target, const std::optional<Volume>& whole, const KnownVolumes& known);

}  // namespace encore::fuse
