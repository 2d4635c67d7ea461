// SPDX-License-Identifier: MIT
#pragma once

namespace tessera {

// Whether --version is the only argument; then it is answered on standard output. Every main asks
// first.
bool answered_version(const char* program, int argc, char** argv);

}  // namespace tessera
