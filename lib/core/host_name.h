// SPDX-License-Identifier: MIT
#pragma once
#include <string>

namespace tessera {

// The system's host name; "localhost" if unknown.
std::string host_name();

}  // namespace tessera
