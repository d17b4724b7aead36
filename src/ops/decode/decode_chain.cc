#include "ops/decode/decode_chain.h"

#include <algorithm>
#include <utility>

#include "device/label.h"
#include "ops/decode/persistent_decode.h"

namespace encore::ops {
namespace {

const ProductLink* product_of(const DecodeLink& link) { return std::get_if<ProductLink>(&link); }
const AttendLink* attend_of(const DecodeLink& link) { return std::get_if<AttendLink>(&link); }

int64_t y_count(const ProductLink& p) { return p.gated ? p.columns / 2 : p.columns; }

}  // namespace

DecodeChain::~DecodeChain() {
  for (void* block : given_back_) context_.give_back(block);
}

DecodeChain::Extent DecodeChain::made_by(const DecodeLink& link) {
  if (const auto* const p = product_of(link)) return {p->y, device::size_bytes(p->type, y_count(*p))};
  const Attend& a = attend_of(link)->attend;
  return {a.y.data, device::size_bytes(a.type, a.heads * a.value_size)};
}

bool DecodeChain::is_put_off(const void* read) const {
  return std::ranges::any_of(written_, [&](const Extent& extent) { return extent.has(read); });
}

// Whether it takes what the last one made, and nothing else that was put off but the last sum.
bool DecodeChain::continues(const DecodeLink& link) const {
  const DecodeLink& last = links_.back().link;
  const auto is_alike = [&](const LinkPutOff& each) { return each.link.index() == link.index(); };
  if (size_t(std::ranges::count_if(links_, is_alike)) >= (product_of(link) ? kMostDecodeProducts : kMostDecodeAttends))
    return false;
  if (const auto alike = std::ranges::find_if(links_, is_alike);
      alike != links_.end() && !is_one_persistent_decode(alike->link, link))
    return false;
  const Extent made = made_by(last);
  if (const auto* const p = product_of(link)) {
    const bool takes_last = p->x == made.begin && device::size_bytes(p->type, p->depth) == made.bytes;
    return takes_last && (p->skip == sum_ || !is_put_off(p->skip)) && !is_put_off(p->bias) && !is_put_off(p->gamma);
  }
  const auto& [cache, attend, fault] = *attend_of(link);
  if (!product_of(last) || cache.q != made.begin || !made.has(cache.k) || !made.has(cache.v)) return false;
  const void* const others[] = {cache.keys, cache.values,    cache.last_keys, cache.position_ids, cache.cos,
                                cache.sin,  cache.q_weights, cache.k_weights, attend.sinks};
  return std::ranges::none_of(others, [&](const void* read) { return is_put_off(read); });
}

bool DecodeChain::add(DecodeLink link, LaunchAlone alone) {
  if (!suits_persistent_decode(device(), link)) return false;
  auto* const product = std::get_if<ProductLink>(&link);
  if (product && !links_.empty() && product->skip == made_by(links_.back().link).begin)
    std::swap(product->x, product->skip);  // which are added up
  if (!links_.empty() && !continues(link)) launch();
  if (links_.empty() && !product) return false;  // it takes what a product made
  const bool is_first = links_.empty(), takes_sum = product && product->skip && product->skip == sum_;
  written_.push_back(made_by(link));
  if (product) {
    if (product->sum) written_.push_back({sum_ = product->sum, device::size_bytes(product->type, product->depth)});
  } else {
    const CacheExtension& cache = attend_of(link)->cache;
    const size_t bytes = device::size_bytes(cache.type, cache.kv_heads * cache.capacity * cache.size);
    written_.push_back({cache.keys, bytes});
    written_.push_back({cache.values, bytes});
  }
  links_.push_back({.link = std::move(link),
                    .alone = std::move(alone),
                    .label = device::Label::current(),
                    .x_from_memory = is_first,
                    .skip_from_memory = !takes_sum});
  return true;
}

void DecodeChain::forget(const void* value) {
  if (!value) return;
  for (LinkPutOff& each : links_) {
    if (made_by(each.link).begin == value) each.y_to_memory = false;
    if (const auto* const p = product_of(each.link); p && p->sum == value) each.sum_to_memory = false;
  }
}

void DecodeChain::give_back(void* scratch) {
  if (links_.empty()) return context_.give_back(scratch);
  given_back_.push_back(scratch);
}

void DecodeChain::launch() {
  if (links_.empty()) return;
  const std::vector<LinkPutOff> links = std::exchange(links_, {});
  written_.clear(), sum_ = nullptr;
  constexpr size_t kFewest = 4;  // else kernels that begin early do as well
  const bool attends = std::ranges::any_of(links, [](const LinkPutOff& each) { return attend_of(each.link); });
  if (attends && links.size() >= kFewest) {
    const device::Label label(links.front().label);
    run_persistent_decode(context_, links);
  } else {
    const StreamRef stream = context_.stream();
    for (const LinkPutOff& each : links) {
      const device::Label label(each.label);
      each.alone(stream);
    }
  }
  for (void* block : std::exchange(given_back_, {})) context_.give_back(block);
}

}  // namespace encore::ops
