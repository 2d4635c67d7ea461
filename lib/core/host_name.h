// SPDX-License-Identifier: MIT
#pragma once
#include <string>

namespace tessera {

// As the system has it; "localhost" where it does not say.
std::string host_name();

}  // namespace tessera
