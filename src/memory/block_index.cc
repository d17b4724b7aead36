#include "memory/block_index.h"

#include <algorithm>
#include <bit>

namespace encore::memory {

int BlockIndex::bin_of(size_t bytes) {
  const size_t units = bytes / kAlignment;
  if (units < 8) return int(units);
  const int log2 = std::bit_width(units) - 1;
  return (log2 - 2) * 8 + int(units >> (log2 - 3) & 7);
}

int BlockIndex::next_filled(int bin) const {
  if (bin >= kBins) return kBins;
  uint64_t word = filled_[size_t(bin / 64)] & ~uint64_t(0) << bin % 64;
  for (size_t w = size_t(bin / 64);;) {
    if (word) return int(w) * 64 + std::countr_zero(word);
    if (++w == filled_.size()) return kBins;
    word = filled_[w];
  }
}

void BlockIndex::list(Block* block) {
  const size_t bin = size_t(bin_of(block->bytes));
  block->used = false;
  block->previous = nullptr;
  block->next = bins_[bin];
  if (block->next) block->next->previous = block;
  bins_[bin] = block;
  filled_[bin / 64] |= uint64_t(1) << bin % 64;
  free_bytes_ += block->bytes;
}

void BlockIndex::unlist(Block* block) {
  const size_t bin = size_t(bin_of(block->bytes));
  if (block->next) block->next->previous = block->previous;
  (block->previous ? block->previous->next : bins_[bin]) = block->next;
  if (!bins_[bin]) filled_[bin / 64] &= ~(uint64_t(1) << bin % 64);
  free_bytes_ -= block->bytes;
}

Block* BlockIndex::make_block() {
  if (!spare_) return &blocks_.emplace_back();
  Block* block = spare_;
  spare_ = block->next;
  *block = {};
  return block;
}

void BlockIndex::drop(Block* block) {
  block->next = spare_;
  spare_ = block;
}

void BlockIndex::add(char* chunk, size_t bytes) {
  Block* block = make_block();
  block->address = chunk;
  block->bytes = bytes;
  list(block);
}

Block* BlockIndex::take(size_t bytes, size_t dead_bytes) {
  // Only in the first bin may blocks be too small.
  Block* best = nullptr;
  for (int bin = next_filled(bin_of(bytes)); bin < kBins && !best; bin = next_filled(bin + 1))
    for (Block* block = bins_[size_t(bin)]; block && !(best && best->bytes == bytes); block = block->next)
      if (block->bytes >= bytes && (!best || block->bytes < best->bytes)) best = block;
  if (!best) return nullptr;

  const size_t left = best->bytes - bytes;
  Block* rest = left > (left < bytes ? dead_bytes : 0) ? make_block() : nullptr;
  unlist(best);
  best->used = true;
  if (rest) {
    rest->address = best->address + bytes;
    rest->bytes = best->bytes - bytes;
    rest->before = best;
    rest->after = best->after;
    if (rest->after) rest->after->before = rest;
    best->after = rest;
    best->bytes = bytes;
    list(rest);
  }
  return best;
}

void BlockIndex::put(Block* block) {
  const auto absorb_next = [this](Block* into) {
    Block* gone = into->after;
    into->bytes += gone->bytes;
    into->after = gone->after;
    if (into->after) into->after->before = into;
    drop(gone);
  };
  if (block->after && !block->after->used) {
    unlist(block->after);
    absorb_next(block);
  }
  if (block->before && !block->before->used) {
    block = block->before;
    unlist(block);
    absorb_next(block);
  }
  list(block);
}

size_t BlockIndex::remove_empty(const std::function<bool(char* chunk, size_t bytes)>& take) {
  size_t removed = 0;
  for (int bin = next_filled(0); bin < kBins; bin = next_filled(bin + 1)) {
    for (Block *block = bins_[size_t(bin)], *next; block; block = next) {
      next = block->next;
      if (!is_empty_chunk(*block) || !take(block->address, block->bytes)) continue;
      unlist(block);
      removed += block->bytes;
      drop(block);
    }
  }
  return removed;
}

bool BlockIndex::has_empty_chunk() const {
  for (int bin = next_filled(0); bin < kBins; bin = next_filled(bin + 1))
    for (const Block* block = bins_[size_t(bin)]; block; block = block->next)
      if (is_empty_chunk(*block)) return true;
  return false;
}

size_t BlockIndex::largest_free_bytes() const {
  size_t largest = 0;
  for (int bin = next_filled(0); bin < kBins; bin = next_filled(bin + 1))
    for (const Block* block = bins_[size_t(bin)]; block; block = block->next) largest = std::max(largest, block->bytes);
  return largest;
}

}  // namespace encore::memory
