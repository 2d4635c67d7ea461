// SPDX-License-Identifier: MIT
#include "lib/comm/control/launch_group.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "lib/core/hash.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

std::string hash_of(const std::string& text) { return hex64(xxh3_64(text.data(), text.size())); }

}  // namespace

LaunchGroup launch_group_of_process(const std::string& host) {
  std::ifstream stream("/proc/self/cmdline", std::ios::binary);
  const std::string command{std::istreambuf_iterator<char>(stream), {}};
  std::error_code none;
  const std::filesystem::path folder = std::filesystem::current_path(none);
  return {hash_of(host), hash_of(concat(::getsid(0), '\n', folder.string(), '\n', command))};
}

}  // namespace tessera
