// SPDX-License-Identifier: MIT
#include "lib/checkpoint/unfinished_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "lib/checkpoint/durable.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMark = ".tessera-unfinished";

std::string mark_in(const std::string& directory) { return directory + "/" + kMark; }

// True if it is empty or has the mark, so that nothing is lost.
bool is_own(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(path, error))) return false;
  return fs::is_empty(path, error) || fs::is_regular_file(fs::symlink_status(mark_in(path), error));
}

}  // namespace

UnfinishedDirectory::UnfinishedDirectory(std::string directory)
    : directory_(std::move(directory)), path_(directory_ + ".tessera.tmp") {
  std::error_code error;
  if (fs::exists(fs::symlink_status(path_, error))) {
    check(is_own(path_), ErrorCode::kInvalidArgument, path_,
          ": is in the way and was not made by this program; move it away");
    const int left = ::open(mark_in(path_).c_str(), O_RDONLY | O_CLOEXEC);
    const bool busy = left >= 0 && ::flock(left, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (left >= 0) ::close(left);
    check(!busy, ErrorCode::kDataLoss, path_,
          ": another process writes it; wait for it, or choose another directory");
    fs::remove_all(path_, error);  // left by a killed process
    require_done(error, path_, "removed");
  }
  fs::create_directories(path_, error);
  require_done(error, path_, "created");
  mark_ = ::open(mark_in(path_).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  const int reason = errno;
  if (mark_ < 0) fs::remove(path_, error);
  check(mark_ >= 0, ErrorCode::kDataLoss, mark_in(path_),
        ": cannot be created: ", std::strerror(reason));
  ::flock(mark_, LOCK_EX | LOCK_NB);  // some network file systems have no locks
}

UnfinishedDirectory::~UnfinishedDirectory() {
  if (mark_ < 0) return;
  ::close(mark_);
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void UnfinishedDirectory::commit(bool replaces) {
  make_durable(path_);
  std::error_code error;
  if (replaces && fs::exists(directory_)) {
    replace();
  } else {
    fs::rename(path_, directory_, error);
    require_done(error, path_, "renamed");
  }
  ::close(std::exchange(mark_, -1));
  fs::remove(mark_in(directory_), error);
  const std::string parent = fs::path(directory_).parent_path().string();
  make_durable(parent.empty() ? "." : parent);
}

void UnfinishedDirectory::replace() {
  std::error_code error;
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, directory_.c_str(), RENAME_EXCHANGE) != 0) {
    // Fallback without an atomic exchange: the old directory keeps a name until the new one has its
    // own.
    const std::string old = directory_ + ".tessera.old";
    fs::rename(directory_, old, error);
    require_done(error, directory_, "renamed");
    fs::rename(path_, directory_, error);
    if (error) {
      std::error_code ignored;
      fs::rename(old, directory_, ignored);
    }
    require_done(error, path_, "renamed");
    fs::rename(old, path_, error);
    require_done(error, old, "renamed");
  }
  fs::remove_all(path_, error);
  require_done(error, path_, "removed");
}

}  // namespace tessera
