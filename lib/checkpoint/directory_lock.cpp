// SPDX-License-Identifier: MIT
#include "lib/checkpoint/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "lib/core/host_name.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Text for the message of whoever finds the lock taken.
std::string own_name() { return concat("process ", ::getpid(), " on ", host_name(), "\n"); }

std::string name_in(int file) {
  std::array<char, 300> text{};
  const ssize_t length = ::pread(file, text.data(), text.size() - 1, 0);
  const std::string_view whole(text.data(), static_cast<size_t>(std::max<ssize_t>(length, 0)));
  const std::string_view line = whole.substr(0, whole.find('\n'));
  return line.empty() ? "unknown" : std::string(line);
}

bool same_file(int file, const std::string& path) {
  struct stat opened {
  }, named{};
  return ::fstat(file, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

std::vector<std::string> missing(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::path path = fs::absolute(directory).lexically_normal();
       !path.empty() && !fs::exists(path, error) && path != path.parent_path();
       path = path.parent_path()) {
    if (path.has_filename()) paths.push_back(path);
  }
  std::ranges::reverse(paths);
  return paths;
}

}  // namespace

DirectoryLock::DirectoryLock(std::string directory, FileSystem& files)
    : files_(files),
      directory_(std::move(directory)),
      path_(directory_ + "/" + kFile),
      made_(missing(directory_)) {
  try {
    do {
      open();
    } while (!lock());
  } catch (...) {
    remove_unused();
    throw;
  }
}

DirectoryLock::~DirectoryLock() {
  if (!kept_) {
    files_.remove(path_);
    remove_unused();
  }
  files_.close(file_);
}

void DirectoryLock::open() {
  constexpr int kMostTries = 100;  // a job that ends unused may delete the directory each time
  for (int tries = 0; file_ < 0 && tries < kMostTries; ++tries) {
    std::error_code error;
    fs::create_directories(directory_, error);
    check(!error, ErrorCode::kDataLoss, directory_, ": cannot be created: ", error.message());
    file_ = files_.open(path_, O_RDWR | O_CREAT);
    if (file_ < 0 && errno != ENOENT) break;
  }
  check(file_ >= 0, ErrorCode::kDataLoss, path_, ": cannot be opened: ", std::strerror(errno));
}

bool DirectoryLock::lock() {
  const int opened = std::exchange(file_, -1);
  const auto give_up = [&](const auto&... message) {
    files_.close(opened);
    fail(ErrorCode::kDataLoss, message...);
  };
  if (::flock(opened, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    if (reason == EWOULDBLOCK) {
      give_up(directory_, ": another job writes here (", name_in(opened),
              "); wait for it, or choose another directory");
    }
    log(LogLevel::kWarning, path_, ": cannot be locked (", std::strerror(reason),
        // Some network file systems lack locks.
        "); a second job that writes here would not be noticed");
  } else if (!same_file(opened, path_)) {
    files_.close(opened);
    return false;
  }
  const std::string text = own_name();
  if (::ftruncate(opened, 0) != 0 || files_.write(opened, text.data(), text.size(), 0) < 0) {
    const int reason = errno;
    files_.remove(path_);
    give_up(path_, ": cannot be written: ", std::strerror(reason));
  }
  file_ = opened;
  return true;
}

void DirectoryLock::remove_unused() {
  for (auto path = made_.rbegin(); path != made_.rend(); ++path) {
    if (::rmdir(path->c_str()) != 0) return;  // others have put files there
  }
}

}  // namespace tessera
