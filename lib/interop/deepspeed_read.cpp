// SPDX-License-Identifier: MIT
#include "lib/core/file.h"
#include "lib/interop/deepspeed_file.h"
#include "lib/interop/foreign_flags.h"
#include "lib/settings/train_flags.h"
#include "tessera/core/error.h"

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
  add_train_flags(flags, options, Program::kSquad, find_foreign);
  return parse(std::move(text), path, [&](const std::string& name) { return flags.has(name); });
}

}  // namespace tessera::programs
