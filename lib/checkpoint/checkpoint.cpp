// SPDX-License-Identifier: MIT
#include "tessera/checkpoint/checkpoint.h"

#include <filesystem>
#include <set>
#include <utility>

#include "lib/checkpoint/agreement.h"
#include "lib/checkpoint/checkpoint_directory.h"
#include "lib/core/file.h"
#include "lib/core/folder_file.h"
#include "lib/core/hash.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string read_manifest(const std::string& path) {
  check(fs::is_directory(path), ErrorCode::kDataLoss, path,
        fs::exists(path) ? ": not a directory" : ": does not exist");
  const std::string file = path + "/" + kManifestFile;
  check(fs::exists(file), ErrorCode::kDataLoss, path, ": not a complete checkpoint: it has no ",
        kManifestFile);
  return read_file(file_in(path, kManifestFile));
}

}  // namespace

Checkpoint::Checkpoint(std::string path)
    : path_(std::move(path)),
      manifest_(Manifest::parse(read_manifest(path_), path_ + "/" + kManifestFile)) {
  std::set<std::string> expected;
  for (const SavedFile& file : manifest_.files) {
    std::error_code error;
    const std::string where = path_ + "/" + file.name;
    check(fs::is_regular_file(fs::symlink_status(where, error)), ErrorCode::kDataLoss, where,
          ": is missing, or no regular file");
    const auto size = static_cast<int64_t>(fs::file_size(where, error));
    check(!error && size == file.bytes, ErrorCode::kDataLoss, where, ": ", size,
          " bytes, the manifest says ", file.bytes, size < file.bytes ? "; it is cut short" : "");
    expected.insert(file.name);
  }
  for (const auto& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename();
    check(!name.ends_with(".safetensors") || expected.contains(name), ErrorCode::kDataLoss,
          entry.path().string(), ": does not belong to this checkpoint; move it away");
  }
}

Checkpoint open_checkpoint(Communicator& world, const std::string& path) {
  std::optional<Checkpoint> opened;
  CommunicatorChannel ranks(world);
  const std::vector<std::string> seals = on_all_ranks(ranks, [&] {
    opened.emplace(path);
    const std::string text = opened->manifest().to_json();
    return xxh3_128(text.data(), text.size()).hex();
  });
  for (size_t rank = 1; rank < seals.size(); ++rank) {
    check(seals[rank] == seals[0], ErrorCode::kDataLoss, path, ": rank ", rank,
          " sees another checkpoint there than rank 0; all ranks must read the same storage");
  }
  return *std::move(opened);
}

}  // namespace tessera
