#pragma once
// The main function of the fine-tuning programs.
#include <string>

#include "examples/common/options.h"

namespace tessera::programs {

// Returns the exit code.
int run_finetune(Program program, const std::string& name, const std::string& summary, int argc,
                 char** argv);

}  // namespace tessera::programs
