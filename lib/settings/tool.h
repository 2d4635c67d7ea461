// SPDX-License-Identifier: MIT
#pragma once
// What programs without ranks have in common.
#include <functional>
#include <iosfwd>
#include <string>

namespace tessera::programs {

// Runs fn and returns what it returns. An exception becomes one line "<program>: <message>" on
// `err` and the exit code of its kind; `out` is flushed first.
int run_tool(const std::string& program, std::ostream& out, std::ostream& err,
             const std::function<int()>& fn);

}  // namespace tessera::programs
