// SPDX-License-Identifier: MIT
#include "lib/core/folder_file.h"

#include <algorithm>
#include <filesystem>

#include "tessera/core/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

bool lies_in(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

}  // namespace

std::string leads_out_of(const std::string& folder, const std::string& path) {
  std::error_code error;
  const fs::path target = fs::canonical(path, error);
  if (error) return "";  // the error is reported by whoever opens it
  const fs::path home = fs::canonical(folder.empty() ? "." : folder, error);
  if (error || lies_in(target, home)) return error ? target.string() : "";
  for (fs::path snapshot = home; snapshot.has_relative_path(); snapshot = snapshot.parent_path()) {
    const fs::path snapshots = snapshot.parent_path();
    const fs::path blobs = snapshots.parent_path() / "blobs";
    if (snapshots.filename() == "snapshots" && target.parent_path() == blobs) return "";
  }
  return target.string();
}

std::string file_in(const std::string& folder, const std::string& name) {
  const std::string path = fs::path(folder) / name;
  const std::string target = leads_out_of(folder, path);
  check(target.empty(), ErrorCode::kDataLoss, path, ": is a link out of the folder, to ", target,
        "; if you trust it, put a copy of the file in its place");
  return path;
}

}  // namespace tessera
