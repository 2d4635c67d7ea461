#include "examples/common/tool.h"

#include <filesystem>
#include <new>
#include <ostream>

#include "tessera/core/error.h"

namespace tessera::programs {

int run_tool(const std::string& program, std::ostream& out, std::ostream& err,
             const std::function<int()>& fn) {
  const auto stop = [&](ErrorCode code, const std::string& message) {
    out.flush();
    err << program << ": " << message << "\n";
    return exit_code(code);
  };
  try {
    const int status = fn();
    check(bool(out.flush()), ErrorCode::kDataLoss, "standard output: cannot be written");
    return status;
  } catch (const Error& error) {
    return stop(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return stop(ErrorCode::kResourceExhausted, "out of memory");
  } catch (const std::filesystem::filesystem_error& error) {
    return stop(ErrorCode::kDataLoss, error.what());
  } catch (const std::exception& error) {
    const std::string what = error.what();  // LibTorch's go on with its stack
    return stop(ErrorCode::kInternal, what.substr(0, what.find('\n')));
  }
}

}  // namespace tessera::programs
