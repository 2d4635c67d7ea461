// SPDX-License-Identifier: MIT
#pragma once
// Durable writes (fsync). Errors are Error(kDataLoss) with the path.
#include <string>
#include <system_error>

namespace tessera {

// Waits until the file's content, or the directory's names, are on the disk.
void make_durable(const std::string& path);
// Throws "<path>: cannot be <what>: <reason>" if there is an error.
void require_done(const std::error_code& error, const std::string& path, const char* what);

}  // namespace tessera
