// SPDX-License-Identifier: MIT
#include "lib/core/host_name.h"

#include <unistd.h>

namespace tessera {

std::string host_name() {
  char name[256] = "localhost";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace tessera
