// SPDX-License-Identifier: MIT
#include "lib/checkpoint/output_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWriteBehind = int64_t{16} << 20;
// Limit of unwritten dirty pages: a system full of them stops every writing process, the run's logs
// included.
constexpr int64_t kMostUnwritten = int64_t{256} << 20;

void require(bool done, const std::string& path, const char* what) {
  const int reason = errno;
  check(done, ErrorCode::kDataLoss, path, ": cannot be ", what, ": ", std::strerror(reason));
}

}  // namespace

OutputFile::OutputFile(FileSystem& files, std::string path)
    : files_(files), path_(std::move(path)), file_(files.open(path_, O_WRONLY | O_CREAT | O_EXCL)) {
  require(file_ >= 0, path_, "created");
}

OutputFile::~OutputFile() {
  if (file_ >= 0) files_.close(file_);
}

void OutputFile::append(const void* bytes, int64_t size) {
  const int64_t begin = size_;
  for (int64_t done = 0; done < size;) {
    const int64_t wanted = std::min(size - done, kWriteBehind);
    const int64_t put = files_.write(file_, static_cast<const char*>(bytes) + done,
                                     static_cast<size_t>(wanted), begin + done);
    if (put < 0 && errno == EINTR) continue;
    if (put == 0) errno = ENOSPC;
    const int reason = errno;
    check(put > 0, ErrorCode::kDataLoss, path_, ": cannot be written at byte ", begin + done, ": ",
          std::strerror(reason));
    done += put;
  }
  size_ += size;
  if (size_ - begun_ < kWriteBehind) return;
  // Starts writeback while further bytes are produced. A hint, whose result is ignored.
  ::sync_file_range(file_, begun_, size_ - begun_, SYNC_FILE_RANGE_WRITE);
  begun_ = size_;
  if (const int64_t behind = size_ - kMostUnwritten; behind > waited_) {
    ::sync_file_range(
        file_, waited_, behind - waited_,
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    waited_ = behind;
  }
}

void OutputFile::finish() {
  require(files_.sync(file_) == 0, path_, "made durable");
  require(files_.close(std::exchange(file_, -1)) == 0, path_, "closed");
}

void sync_directory(FileSystem& files, const std::string& path) {
  const int directory = files.open(path, O_RDONLY | O_DIRECTORY);
  require(directory >= 0, path, "opened");
  const bool synced = files.sync(directory) == 0;
  const int reason = errno;
  files.close(directory);
  errno = reason;
  require(synced, path, "made durable");
}

void rename_path(FileSystem& files, const std::string& from, const std::string& to) {
  require(files.rename(from, to) == 0, from, "renamed");
}

void make_directory(FileSystem& files, const std::string& path) {
  require(files.make_directory(path) == 0, path, "created");
}

void remove_path(FileSystem& files, const std::string& path) {
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error))) {
    for (const auto& entry : fs::directory_iterator(path, error)) {
      remove_path(files, entry.path());
    }
  }
  require(files.remove(path) == 0 || errno == ENOENT, path, "removed");
}

void replace_file(FileSystem& files, const std::string& path, std::string_view content) {
  const std::string temporary = path + ".tessera.tmp";
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(temporary, error))) {
    remove_path(files, temporary);  // left by a killed run
  }
  OutputFile file(files, temporary);
  file.append(content.data(), static_cast<int64_t>(content.size()));
  file.finish();
  rename_path(files, temporary, path);
  sync_directory(files, fs::path(path).parent_path());
}

}  // namespace tessera
