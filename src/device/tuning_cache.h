// What timing has found, by problem: for later sessions of the process and, in a file, for later processes.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

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

}  // namespace encore::device
