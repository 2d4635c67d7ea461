// SPDX-License-Identifier: MIT
#include "lib/checkpoint/durable.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tessera/core/error.h"

namespace tessera {

void make_durable(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = descriptor >= 0 && ::fsync(descriptor) == 0;
  const int saved = errno;
  if (descriptor >= 0) ::close(descriptor);
  check(synced, ErrorCode::kDataLoss, path, ": cannot be made durable: ", std::strerror(saved));
}

void require_done(const std::error_code& error, const std::string& path, const char* what) {
  check(!error, ErrorCode::kDataLoss, path, ": cannot be ", what, ": ", error.message());
}

}  // namespace tessera
