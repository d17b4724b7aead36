#include "device/tuning_cache.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "device/error.h"

namespace encore::device {
namespace {

// The file: this line, then entries, each a header, its key and its value.
constexpr std::string_view kFirstLine = "encore tuning cache 2\n", kAnyVersion = "encore tuning cache ";

struct Header {
  uint64_t key_bytes, value_bytes, checksum;
};

uint64_t checksum(std::string_view key, std::string_view value) {
  uint64_t hash = key.size() << 32 ^ value.size();
  for (std::string_view part : {key, value})
    while (!part.empty()) {
      uint64_t word = 0;
      const size_t bytes = std::min(part.size(), sizeof word);
      std::memcpy(&word, part.data(), bytes);
      part.remove_prefix(bytes);
      hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 32;
    }
  return hash;
}

// Takes the next bytes off the text; false if it has not so many.
bool take(std::string_view& text, uint64_t bytes, std::string_view& into) {
  if (bytes > text.size()) return false;
  into = text.substr(0, size_t(bytes));
  text.remove_prefix(size_t(bytes));
  return true;
}

}  // namespace

std::shared_ptr<TuningCache> TuningCache::of(const std::string& path) {
  static std::mutex mutex;
  static auto& caches = *new std::map<std::string, std::shared_ptr<TuningCache>>;
  const std::lock_guard lock(mutex);
  std::shared_ptr<TuningCache>& cache = caches[path];
  if (!cache) cache = std::make_shared<TuningCache>(path);
  return cache;
}

TuningCache::TuningCache(std::string path) : path_(std::move(path)) {
  if (!path_.empty()) complaint_ = read(path_, entries_).complaint;
}

std::string TuningCache::complaint() const {
  const std::lock_guard lock(mutex_);
  return complaint_;
}

std::optional<std::string> TuningCache::find(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return std::nullopt;
  return found->second;
}

void TuningCache::put(const std::string& key, std::string value) {
  const std::lock_guard lock(mutex_);
  std::string& known = entries_[key];
  if (known == value && !value.empty()) return;
  known = std::move(value);
  dirty_ = true;
}

size_t TuningCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

TuningCache::Entries TuningCache::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

void TuningCache::forget() {
  const std::lock_guard lock(mutex_);
  entries_.clear();
  dirty_ = false;
}

std::string TuningCache::save() {
  const std::lock_guard lock(mutex_);
  if (path_.empty() || !dirty_) return {};
  Entries others;
  const Reading now = read(path_, others);  // of a damaged file nothing
  if (now.foreign) return text("what was tuned is not kept: ", now.complaint);
  entries_.merge(others);
  static std::atomic<int> number{0};
  const std::string temporary = text(path_, ".", getpid(), ".", ++number, ".new");
  bool written = false;
  {
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file << kFirstLine;
    for (const auto& [key, value] : entries_) {
      const Header header{key.size(), value.size(), checksum(key, value)};
      file.write(reinterpret_cast<const char*>(&header), sizeof header);
      file << key << value;
    }
    file.close();
    written = !file.fail();
  }
  errno = written ? 0 : errno;
  if (written && std::rename(temporary.c_str(), path_.c_str()) == 0) {
    dirty_ = false;
    complaint_.clear();
    return {};
  }
  const std::string why = errno ? std::strerror(errno) : "it could not be written";
  std::remove(temporary.c_str());
  return text("what was tuned is not kept: '", path_, "': ", why);
}

// All of it or nothing.
TuningCache::Reading TuningCache::read(const std::string& path, Entries& into) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return {};
  if (status.type() != std::filesystem::file_type::regular) return {text("'", path, "' is no file"), true};
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::string content(size_t(std::max<std::streamoff>(file.tellg(), 0)), '\0');
  if (!file.seekg(0) || !file.read(content.data(), std::streamsize(content.size())))
    return {text("'", path, "' can't be read"), true};
  if (content.empty()) return {};
  std::string_view rest(content), part;
  if (!rest.starts_with(kAnyVersion)) return {text("'", path, "' is no tuning cache"), true};
  if (!take(rest, kFirstLine.size(), part) || part != kFirstLine)
    return {text("'", path, "' is the tuning cache of another version")};
  Entries read;
  while (!rest.empty()) {
    Header header;
    std::string_view key, value;
    bool whole = take(rest, sizeof header, part);
    if (whole) std::memcpy(&header, part.data(), sizeof header);
    whole = whole && take(rest, header.key_bytes, key) && take(rest, header.value_bytes, value);
    if (!whole || header.checksum != checksum(key, value)) return {text("'", path, "' is damaged")};
    read.emplace(key, value);
  }
  into.merge(read);
  return {};
}

SessionTuning::SessionTuning(std::shared_ptr<TuningCache> file, std::function<void(const std::string&)> warn)
    : file_(std::move(file)), warn_(std::move(warn)) {}

SessionTuning::~SessionTuning() { write(); }

void SessionTuning::keep(const std::string& key, const std::string& value) {
  process_->put(key, value);
  if (file_) file_->put(key, value);
}

void SessionTuning::share(const std::string& key) {
  if (!file_ || file_->find(key)) return;
  if (const auto value = process_->find(key)) file_->put(key, *value);
}

void SessionTuning::save() {
  constexpr std::chrono::seconds kSeldom(1);
  {
    const std::lock_guard lock(mutex_);
    if (Clock::now() - saved_ < kSeldom) return;
    saved_ = Clock::now();
  }
  if (const std::string failure = write(); !failure.empty() && warn_) warn_(failure);
}

std::string SessionTuning::write() noexcept {
  try {
    if (file_) return file_->save();
  } catch (const std::exception&) {  // no memory for it
  }
  return {};
}

}  // namespace encore::device
