// SPDX-License-Identifier: MIT
#include "lib/ops/algorithm_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <sstream>
#include <thread>

#include "lib/core/hash.h"
#include "lib/core/number_text.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera::ops {
namespace {

constexpr const char* kTitle = "tessera plans 2";
constexpr uint64_t kMostBytes = uint64_t{64} << 20;

struct File {
  int number;
  ~File() {
    if (number >= 0) ::close(number);
  }
};

std::string with_checksum(const std::string& text) {
  return concat(text, " ", hex64(xxh3_64(text.data(), text.size())), "\n");
}

// The line without its checksum and line end; empty for a wrong checksum.
std::optional<std::string> checked(std::string_view line) {
  const size_t end = line.rfind(' ');
  if (end == line.npos) return std::nullopt;
  std::string text(line.substr(0, end));
  if (with_checksum(text) != concat(line, "\n")) return std::nullopt;
  return text;
}

// Tries to lock the file. Others hold it for one line only, but a stopped process must not stop
// this one.
bool locked(int file) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(1);
  while (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    if ((errno != EWOULDBLOCK && errno != EINTR) || Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

}  // namespace

AlgorithmCache::AlgorithmCache(std::string path, std::string owner)
    : path_(std::move(path)), owner_(std::move(owner)), shared_(!path_.empty()) {
  if (!shared_) return;
  const File file{::open(path_.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.number < 0 || catch_up(file.number) > 0) return;
  if (::lseek(file.number, 0, SEEK_END) > 0 && log_rank() <= 0) {
    log(LogLevel::kWarning, "algorithms of earlier runs are not read: ", path_, ": not of ", owner_,
        "; they are made again");
  }
}

bool AlgorithmCache::take_line(std::string_view line) {
  const auto text = checked(line);
  if (!text) return false;
  if (read_until_ == 0) return *text == concat(kTitle, ", ", owner_);
  std::istringstream words = reader_of(*text);
  size_t count = 0;
  words >> count;
  Kind kind(std::min<size_t>(count, 64));
  for (int64_t& number : kind) words >> number;
  int64_t size = 0;
  Algorithm algorithm{};
  words >> size >> std::hex;
  for (uint64_t& word : algorithm) words >> word;
  if (words.fail()) return false;
  algorithms_.try_emplace({std::move(kind), size}, algorithm);
  return true;
}

uint64_t AlgorithmCache::catch_up(int file) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return 0;
  const auto size = static_cast<uint64_t>(status.st_size);
  if (status.st_ino != inode_ || size < read_until_) read_until_ = 0, inode_ = status.st_ino;
  if (size > kMostBytes || size == read_until_) return read_until_;
  std::string text(size - read_until_, '\0');
  const ssize_t got = ::pread(file, text.data(), text.size(), static_cast<off_t>(read_until_));
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  std::string_view left = text;
  for (size_t end; (end = left.find('\n')) != left.npos; left.remove_prefix(end + 1)) {
    if (!take_line(left.substr(0, end))) break;
    read_until_ += end + 1;
  }
  return read_until_;
}

std::optional<AlgorithmCache::Algorithm> AlgorithmCache::find(const Kind& kind,
                                                              int64_t size) const {
  const std::lock_guard lock(mutex_);
  const auto found = algorithms_.find({kind, size});
  if (found == algorithms_.end()) return std::nullopt;
  return found->second;
}

std::vector<std::pair<int64_t, AlgorithmCache::Algorithm>> AlgorithmCache::nearest(
    const Kind& kind, int64_t size) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<int64_t, Algorithm>> all;
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  for (auto at = algorithms_.lower_bound({kind, kLeast});
       at != algorithms_.end() && at->first.first == kind; ++at) {
    all.emplace_back(at->first.second, at->second);
  }
  std::ranges::stable_sort(all, {},
                           [&](const auto& sized) { return std::abs(sized.first - size); });
  return all;
}

AlgorithmCache::Algorithm AlgorithmCache::settle(const Kind& kind, int64_t size,
                                                 const Algorithm& algorithm) {
  const std::lock_guard lock(mutex_);
  const Algorithms::value_type own{{kind, size}, algorithm};
  if (!algorithms_.contains(own.first) && shared_) share(own);
  return algorithms_.insert(own).first->second;
}

void AlgorithmCache::share(const Algorithms::value_type& own) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
  const File file{::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)};
  shared_ = file.number >= 0 && locked(file.number);
  if (!shared_) return;
  const uint64_t end = catch_up(file.number);
  if (algorithms_.contains(own.first)) return;
  std::ostringstream line;
  line.imbue(std::locale::classic());
  line << own.first.first.size();
  for (const int64_t number : own.first.first) line << ' ' << number;
  line << ' ' << own.first.second << std::hex;
  for (const uint64_t word : own.second) line << ' ' << word;
  const std::string text =
      (end == 0 ? with_checksum(concat(kTitle, ", ", owner_)) : "") + with_checksum(line.str());
  if (end + text.size() > kMostBytes || ::ftruncate(file.number, static_cast<off_t>(end)) != 0) {
    return;
  }
  if (::pwrite(file.number, text.data(), text.size(), static_cast<off_t>(end)) ==
      static_cast<ssize_t>(text.size())) {
    read_until_ = end + text.size();
  }
}

}  // namespace tessera::ops
