// SPDX-License-Identifier: MIT
#include "lib/interop/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "lib/core/file.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;

// Found as by huggingface_hub; empty without a home directory.
fs::path hub_cache() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string folder = variable(name); !folder.empty()) return folder;
  }
  if (const std::string home = variable("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  const std::string cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (!cache.empty()) return fs::path(cache) / "huggingface/hub";
  return home.empty() ? fs::path() : fs::path(home) / ".cache/huggingface/hub";
}

}  // namespace

bool looks_like_hub_name(const std::string& name) {
  const bool characters = std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '/' || c == '-' || c == '_' || c == '.';
  });
  return characters && !name.empty() && !name.starts_with('.') && !name.starts_with('/') &&
         !name.ends_with('/') && std::ranges::count(name, '/') <= 1;
}

std::string find_in_hub_cache(const std::string& name) {
  std::error_code ignored;
  if (!looks_like_hub_name(name) || fs::exists(name, ignored)) return name;
  std::string folder = "models--" + name;
  if (const size_t slash = folder.find('/'); slash != folder.npos) folder.replace(slash, 1, "--");
  const fs::path model = hub_cache() / folder, branch = model / "refs/main";
  if (!fs::is_regular_file(branch, ignored)) return name;
  std::string commit = read_file(branch, 4096);
  while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back())) != 0) {
    commit.pop_back();
  }
  const bool plain = !commit.empty() && commit.find_first_of("/.") == commit.npos;
  const fs::path snapshot = model / "snapshots" / commit;
  return plain && fs::is_directory(snapshot, ignored) ? snapshot.string() : name;
}

std::string how_to_fetch(const std::string& name) {
  if (!looks_like_hub_name(name)) return "";
  return concat(". If it is a model's name on the Hub, it is not in the cache ",
                hub_cache().string(), "; fetch it first: hf download ", name,
                " (earlier versions: huggingface-cli download ", name, ")");
}

}  // namespace tessera::programs
