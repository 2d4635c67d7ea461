// SPDX-License-Identifier: MIT
#pragma once
#include <string>

namespace tessera {

// What --version answers, of this program.
std::string version_text(const std::string& program);

}  // namespace tessera
