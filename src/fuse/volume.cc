#include "fuse/volume.h"

#include <algorithm>

namespace encore::fuse {

std::optional<Volume> product(const Volume& a, const Volume& b) {
  Volume all = a;
  if (__builtin_mul_overflow(a.number, b.number, &all.number)) return std::nullopt;
  all.symbols.insert(all.symbols.end(), b.symbols.begin(), b.symbols.end());
  std::ranges::sort(all.symbols);
  return all;
}

std::optional<Volume> product(std::span<const std::optional<Volume>> volumes) {
  std::optional<Volume> all = Volume();
  for (const auto& volume : volumes) all = all && volume ? product(*all, *volume) : std::nullopt;
  return all;
}

std::optional<Volume> quotient(const Volume& a, const Volume& by) {
  if (by.number == 0 || a.number % by.number != 0 || !std::ranges::includes(a.symbols, by.symbols)) return std::nullopt;
  Volume left{a.number / by.number};
  std::ranges::set_difference(a.symbols, by.symbols, std::back_inserter(left.symbols));
  return left;
}

std::optional<Volume> volume_of(int64_t dim, const KnownVolumes& known) {
  if (dim == -1) return std::nullopt;
  if (dim >= 0) return Volume{dim};
  const auto found = known.find(dim);
  return found == known.end() ? Volume{1, {dim}} : found->second;
}

std::optional<Volume> volume_of(const Dims& dims, size_t from, size_t to, const KnownVolumes& known) {
  Volumes volumes;
  for (size_t i = from; i < to; ++i) volumes.push_back(volume_of(dims[i], known));
  return product(volumes);
}

Volumes volumes_of(const Dims& target, const std::optional<Volume>& whole, const KnownVolumes& known) {
  Volumes made;
  for (int64_t dim : target) made.push_back(volume_of(dim, known));
  const auto open = std::ranges::find(target, -1);
  if (open == target.end() || !whole) return made;
  std::optional<Volume>& left = made[size_t(open - target.begin())];
  left = Volume();
  const auto others = product(made);
  left = others ? quotient(*whole, *others) : std::nullopt;
  return made;
}

}  // namespace encore::fuse
