// SPDX-License-Identifier: MIT
#include "lib/compare/inputs.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "lib/core/file.h"
#include "lib/core/hash.h"
#include "lib/interop/foreign_flags.h"
#include "lib/interop/hub_cache.h"
#include "lib/settings/table.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLarge = uint64_t{64} << 20;
constexpr int kMostDepth = 1;  // additional_chat_templates/ and similar

std::string hash_of(const std::string& text) { return xxh3_128(text.data(), text.size()).hex(); }

std::string sampled_tensors(const std::string& path) {
  constexpr int64_t kBytes = 256;
  const SafetensorsFile file(path);
  std::string all;
  for (const SafetensorsEntry& entry : file.header().entries) {
    all += concat(entry.name, '\0', entry.dtype, '\0', entry.begin, '\0', entry.end, '\0',
                  file.read_beginning(entry.name, kBytes), '\0');
  }
  return hash_of(all);
}

std::string sampled_bytes(const std::string& path) {
  constexpr uint64_t kPieces = 64, kBytes = 64 << 10;
  const RegularFile file(path);
  std::string all = std::to_string(file.size()), piece(kBytes, '\0');
  for (uint64_t i = 0; i < kPieces; ++i) {
    file.read((file.size() - kBytes) / (kPieces - 1) * i, piece.data(), piece.size());
    all += piece;
  }
  return hash_of(all);
}

std::string file_digest(const std::string& path) {
  std::error_code error;
  if (fs::file_size(path, error) <= kLarge || error) return hash_file(path).hex();
  return path.ends_with(".safetensors") ? sampled_tensors(path) : sampled_bytes(path);
}

void collect(const fs::path& folder, int depth, std::set<std::string>& paths) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with('.')) continue;
    if (entry.is_regular_file(error)) paths.insert(entry.path());
    if (entry.is_directory(error) && depth < kMostDepth) collect(entry.path(), depth + 1, paths);
  }
}

bool is_input(const std::string& flag) {
  const settings::Setting* setting = settings::find(flag);
  return setting == nullptr || (setting->facts.choices.empty() && !setting->more.writes);
}

}  // namespace

std::string input_digest(const std::string& path) {
  if (fs::is_regular_file(path)) return file_digest(path);
  std::set<std::string> files;
  collect(path, 0, files);
  std::string all;
  for (const std::string& file : files) {
    all += concat(fs::path(file).lexically_relative(path).string(), '\0', file_digest(file), '\0');
  }
  return hash_of(all);
}

const std::string& RunInputs::digest(const std::string& path) {
  std::string& known = digests_[path];
  if (known.empty()) known = input_digest(path);
  return known;
}

std::string RunInputs::of(const std::vector<std::string>& flags, Program program) {
  TrainOptions options;
  FlagSet set("", "");
  add_train_flags(set, options, program, find_foreign);
  set.parse(flags);
  std::string all = set.values_text();
  for (const std::string& name : set.names()) {
    if (!is_input(name)) continue;
    std::string path = set.text(name);
    std::error_code error;
    if (path.empty()) continue;
    if (!fs::exists(path, error)) path = find_in_hub_cache(path);
    if (fs::exists(path, error)) all += concat("\n", name, " ", digest(path));
  }
  return hash_of(all);
}

}  // namespace tessera::programs
