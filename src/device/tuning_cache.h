// What timing has found, by problem: for later sessions of the process and, in a file, for later processes.
#pragma once
#include <charconv>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace encore::device {

// Keys and values are any bytes. Safe to use from many threads.
class TuningCache {
 public:
  // The process's: one for each file, and one without a file, whose name is empty.
  static std::shared_ptr<TuningCache> of(const std::string& path);
  // Reads the file, if there is one.
  explicit TuningCache(std::string path);
  TuningCache(const TuningCache&) = delete;

  // Why what stands in the file is not used; empty if it is, or if there is no file yet.
  std::string complaint() const;

  std::optional<std::string> find(const std::string& key) const;
  void put(const std::string& key, std::string value);
  size_t size() const;
  std::map<std::string, std::string> entries() const;
  void forget();  // all of it; the file stays

  // Writes what is new, and keeps what other processes have written meanwhile. Readers see the old file or the new one.
  // Says why it could not be written; empty if it was, or had not to be.
  std::string save();

 private:
  using Entries = std::map<std::string, std::string>;
  struct Reading {
    std::string complaint;
    bool foreign = false;  // somebody else's file, which is never written to
  };
  static Reading read(const std::string& path, Entries& into);

  const std::string path_;
  mutable std::mutex mutex_;
  Entries entries_;
  std::string complaint_;
  bool dirty_ = false;
};

// A session's way to what was found: what the process has and, if there is one, what the session's file has. Safe to
// use from many threads.
class SessionTuning {
 public:
  // `warn` is told if the file could not be written; it may be empty.
  SessionTuning(std::shared_ptr<TuningCache> file, std::function<void(const std::string&)> warn);
  ~SessionTuning();  // saves
  SessionTuning(const SessionTuning&) = delete;

  // Decodes to an optional, which is empty if what is kept is no use.
  template <class Decode>
  auto find(const std::string& key, Decode decode) const -> decltype(decode(std::string())) {
    for (TuningCache* cache : {file_.get(), process_.get()})
      if (const auto value = cache ? cache->find(key) : std::nullopt)
        if (auto decoded = decode(*value)) {
          if (file_ && cache != file_.get()) file_->put(key, *value);
          return decoded;
        }
    return std::nullopt;
  }
  void keep(const std::string& key, const std::string& value);
  void share(const std::string& key);  // what the process has of it is in the file then, too
  void save();                         // seldom, as all of the file is written

 private:
  using Clock = std::chrono::steady_clock;
  std::string write() noexcept;  // says why it could not

  const std::shared_ptr<TuningCache> process_ = TuningCache::of(""), file_;
  const std::function<void(const std::string&)> warn_;
  std::mutex mutex_;
  Clock::time_point saved_ = {};
};

// Takes the next number, which a space ends, off the text.
template <class T>
bool take_number(std::string_view& text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto length = size_t(end - text.data());
  if (error != std::errc() || length == text.size() || *end != ' ') return false;
  text.remove_prefix(length + 1);
  return true;
}

}  // namespace encore::device
