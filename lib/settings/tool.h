// SPDX-License-Identifier: MIT
#pragma once
// Common parts of programs without ranks.
#include <functional>
#include <iosfwd>
#include <string>

namespace tessera::programs {

// Returns fn's result. An exception becomes one line "<program>: <message>" on `err` and its exit
// code; `out` is flushed first.
int run_tool(const std::string& program, std::ostream& out, std::ostream& err,
             const std::function<int()>& fn);

}  // namespace tessera::programs
