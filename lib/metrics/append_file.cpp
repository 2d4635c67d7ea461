// SPDX-License-Identifier: MIT
#include "lib/metrics/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/core/error.h"

namespace tessera::metrics {

AppendFile::AppendFile(std::string path)
    : path_(std::move(path)),
      file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  check(file_ >= 0, ErrorCode::kDataLoss, path_, ": cannot be opened for writing (",
        std::strerror(errno), "); check the folder, its permissions and the free space");
}

AppendFile::~AppendFile() { ::close(file_); }

void AppendFile::write(std::string_view record) {
  check(!torn_, ErrorCode::kDataLoss, path_, ": write failed; the file ends in half a record");
  size_t done = 0;
  while (done < record.size()) {
    const ssize_t put = ::write(file_, record.data() + done, record.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put == 0) errno = ENOSPC;
    if (put <= 0) break;
    done += static_cast<size_t>(put);
  }
  if (done == record.size()) return;
  const int reason = errno;
  struct stat status {};
  const bool undone =
      done == 0 || (::fstat(file_, &status) == 0 &&
                    ::ftruncate(file_, status.st_size - static_cast<off_t>(done)) == 0);
  torn_ = !undone;
  fail(ErrorCode::kDataLoss, path_, ": write failed (", std::strerror(reason),
       "); check the free space");
}

}  // namespace tessera::metrics
