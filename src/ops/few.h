// A vector that takes no memory while it has few values, as those of shapes are, which runs make anew.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <vector>

namespace encore::ops {

template <class T, size_t kFew = 8>
class Few {
 public:
  using value_type = T;
  using const_iterator = const T*;

  Few() = default;
  Few(std::initializer_list<T> values) { append(std::span(values.begin(), values.size())); }
  Few(const std::vector<T>& values) { append(values); }
  explicit Few(size_t count) {
    for (size_t i = 0; i < count; ++i) push_back({});
  }

  void push_back(const T& value) {
    if (size_ < kFew) {
      few_[size_] = value;
    } else {
      if (many_.empty()) many_.assign(few_.begin(), few_.end());
      many_.push_back(value);
    }
    ++size_;
  }
  void append(std::span<const T> values) {
    if (size_ + values.size() <= kFew) {
      std::copy(values.begin(), values.end(), few_.begin() + size_);
      size_ += values.size();
    } else {
      for (const T& value : values) push_back(value);
    }
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() { return many_.empty() ? few_.data() : many_.data(); }
  T* end() { return begin() + size_; }
  const T* begin() const { return many_.empty() ? few_.data() : many_.data(); }
  const T* end() const { return begin() + size_; }
  T* data() { return begin(); }
  const T* data() const { return begin(); }
  T& operator[](size_t i) { return begin()[i]; }
  const T& operator[](size_t i) const { return begin()[i]; }
  const T& front() const { return *begin(); }
  T& back() { return end()[-1]; }
  const T& back() const { return end()[-1]; }

 private:
  std::array<T, kFew> few_{};
  std::vector<T> many_;  // all of them, if there are more than kFew
  size_t size_ = 0;
};

}  // namespace encore::ops
