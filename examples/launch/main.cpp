// SPDX-License-Identifier: MIT
// tessera-launch -n 4 --max-restarts 3 tessera-finetune-squad --strategy zero3 ...
#include <string>
#include <vector>

#include "lib/tools/launch/launch.h"

int main(int argc, char** argv) { return tessera::programs::run_launch({argv + 1, argv + argc}); }
