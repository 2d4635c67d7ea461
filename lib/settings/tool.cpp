// SPDX-License-Identifier: MIT
#include "lib/settings/tool.h"

#include <filesystem>
#include <iostream>
#include <ostream>

#include "lib/core/failure.h"
#include "lib/core/printable.h"
#include "lib/core/terminal.h"
#include "tessera/core/error.h"

namespace tessera::programs {

int run_tool(const std::string& program, std::ostream& out, std::ostream& err,
             const std::function<int()>& fn) {
  const auto stop = [&](ErrorCode code, const std::string& message) {
    out.flush();
    const size_t width = &err == &std::cerr ? columns_of_terminal(stderr) : 0;
    err << wrapped_lines(concat(program, ": ", message, "\n"), 2, width);
    return exit_code(code);
  };
  exit_when_out_of_memory();
  // Escapes names and texts from files. Programs read JSON, which has no such characters.
  const PrintableStream shown_out(out), shown_err(err);
  try {
    const int status = fn();
    check(bool(out.flush()), ErrorCode::kDataLoss, "standard output: cannot be written");
    return status;
  } catch (const std::filesystem::filesystem_error& error) {
    return stop(ErrorCode::kDataLoss, error.what());
  } catch (...) {
    const Failure failure = current_failure();
    return stop(failure.code, failure.message.substr(0, failure.message.find('\n')));
  }
}

}  // namespace tessera::programs
