// SPDX-License-Identifier: MIT
#include "lib/checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <utility>

#include "lib/checkpoint/output_file.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "checkpoint-";
constexpr int64_t kManifestMargin = int64_t{1} << 20;

std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  const bool whole = error == std::errc() && end == name.data() + name.size() && step >= 0;
  const bool plain = whole && std::to_string(step) == name;
  return plain ? std::optional(step) : std::nullopt;
}

// Also true for an empty directory, which a killed save leaves.
bool holds_only_a_checkpoint(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(path, error))) return false;
  return std::ranges::all_of(fs::directory_iterator(path, error), [](const auto& entry) {
    const std::string name = entry.path().filename();
    return name == kManifestFile || (name.starts_with("rank-") && name.ends_with(".safetensors"));
  });
}

}  // namespace

std::string checkpoint_path(const std::string& directory, int64_t step) {
  return concat(directory, "/", kPrefix, step);
}

CheckpointDirectory::CheckpointDirectory(FileSystem& files, std::string path, bool locked)
    : files_(files), path_(std::move(path)) {
  if (!locked) lock_.emplace(path_, files_).keep();
  for (const NamedCheckpoint& named : named_checkpoints(path_)) {
    if (named.unfinished && holds_only_a_checkpoint(named.path)) remove_path(files_, named.path);
  }
}

void CheckpointDirectory::set_aside_after(int64_t step) {
  for (const auto& [later, path, unfinished] : named_checkpoints(path_)) {
    if (later <= step) break;
    std::string aside = path + ".old";
    for (int number = 2; fs::exists(aside); ++number) aside = concat(path, ".old", number);
    rename_path(files_, path, aside);
  }
  sync_directory(files_, path_);
}

void CheckpointDirectory::begin(int64_t step, int64_t bytes) {
  const std::string path = checkpoint_path(path_, step);
  check(!fs::exists(path), ErrorCode::kDataLoss, path,
        ": already exists and is not overwritten; resume from it, or choose another directory");
  const int64_t free = files_.free_bytes(path_);
  check(free >= 0, ErrorCode::kDataLoss, path_,
        ": its file system cannot be examined: ", std::strerror(errno));
  const int64_t needed = bytes + kManifestMargin;
  check(free >= needed, ErrorCode::kDataLoss, path_, ": the checkpoint of step ", step, " needs ",
        needed >> 20, " MiB, ", free >> 20,
        " MiB are free; make room, or keep fewer checkpoints with --save_total_limit");
  check(!fs::exists(unfinished(step)) || holds_only_a_checkpoint(unfinished(step)),
        ErrorCode::kDataLoss, unfinished(step),
        ": is in the way and holds other files than a checkpoint's; move it away");
  remove_path(files_, unfinished(step));
  make_directory(files_, unfinished(step));
}

void CheckpointDirectory::commit(const Manifest& manifest) {
  const std::string path = checkpoint_path(path_, manifest.step), temporary = path + kUnfinished;
  for (const SavedFile& file : manifest.files) {
    std::error_code error;
    const auto size = fs::file_size(temporary + "/" + file.name, error);
    check(!error && static_cast<int64_t>(size) == file.bytes, ErrorCode::kDataLoss, temporary, "/",
          file.name, ": not the ", file.bytes,
          " bytes that its rank has written; all ranks must write to the same shared storage");
  }
  const std::string text = manifest.to_json();
  OutputFile file(files_, temporary + "/" + kManifestFile);
  file.append(text.data(), static_cast<int64_t>(text.size()));
  file.finish();
  sync_directory(files_, temporary);
  rename_path(files_, temporary, path);
  sync_directory(files_, path_);
  replace_file(files_, path_ + "/latest", fs::path(path).filename().string() + "\n");
}

void CheckpointDirectory::discard(int64_t step) noexcept {
  try {
    remove_path(files_, unfinished(step));
  } catch (const std::exception&) {  // removed by the next run
  }
}

void CheckpointDirectory::remove_old(int64_t limit, int64_t newest, std::optional<int64_t> kept) {
  std::vector<NamedCheckpoint> complete = named_checkpoints(path_);
  std::erase_if(complete, [](const NamedCheckpoint& checkpoint) {
    return checkpoint.unfinished || !fs::exists(checkpoint.path + "/" + kManifestFile);
  });
  auto count = static_cast<int64_t>(complete.size());
  while (count > limit && !complete.empty()) {
    const auto [step, path, unfinished] = complete.back();
    complete.pop_back();
    if (step == newest || step == kept) continue;
    remove_path(files_, path + "/" + kManifestFile);  // from here on it is not a checkpoint
    sync_directory(files_, path);
    remove_path(files_, path);
    --count;
  }
}

std::vector<NamedCheckpoint> named_checkpoints(const std::string& directory) {
  std::vector<NamedCheckpoint> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    std::string name = entry.path().filename();
    const bool unfinished = name.ends_with(kUnfinished);
    if (unfinished) name.resize(name.size() - std::strlen(kUnfinished));
    if (const auto step = step_of(name)) found.push_back({*step, entry.path(), unfinished});
  }
  std::ranges::sort(found, std::greater<>(), &NamedCheckpoint::step);
  return found;
}

}  // namespace tessera
