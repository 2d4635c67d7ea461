#include "examples/common/deepspeed_file.h"
#include "examples/common/options.h"
#include "tessera/core/error.h"
#include "tessera/core/file.h"

namespace tessera::programs {

DeepSpeedFile DeepSpeedFile::read(const std::string& path) {
  std::string text;
  try {
    text = read_file(path, kMostBytes);
  } catch (const Error& error) {
    fail(ErrorCode::kInvalidArgument, "--deepspeed: ", error.what());
  }
  TrainOptions options;
  FlagSet flags("", "");
  add_train_flags(flags, options, Program::kSquad);
  return parse(std::move(text), path, [&](const std::string& name) { return flags.has(name); });
}

}  // namespace tessera::programs
