// SPDX-License-Identifier: MIT
#pragma once
#include <string>

namespace tessera {

// This program's answer to --version.
std::string version_text(const std::string& program);

}  // namespace tessera
