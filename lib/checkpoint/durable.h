// SPDX-License-Identifier: MIT
#pragma once
// Files and directories that must be on the disk. Errors are Error(kDataLoss) with the path.
#include <string>
#include <system_error>

namespace tessera {

// Waits until the file, or the names in the directory, are on the disk.
void make_durable(const std::string& path);
// "<path>: cannot be <what>: <reason>" where there is an error.
void require_done(const std::error_code& error, const std::string& path, const char* what);

}  // namespace tessera
