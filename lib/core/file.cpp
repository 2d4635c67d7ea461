// SPDX-License-Identifier: MIT
#include "lib/core/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "tessera/core/error.h"

namespace tessera {

// O_NONBLOCK: opening a pipe returns at once, to be rejected.
RegularFile::RegularFile(std::string path)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  check(file_ >= 0, ErrorCode::kDataLoss, path_, ": cannot be opened: ", std::strerror(errno));
  struct stat status {};
  const bool examined = ::fstat(file_, &status) == 0;
  const bool regular = examined && S_ISREG(status.st_mode);
  if (!regular) ::close(file_);
  check(examined, ErrorCode::kDataLoss, path_, ": cannot be examined: ", std::strerror(errno));
  check(regular, ErrorCode::kDataLoss, path_, ": not a regular file");
  size_ = static_cast<uint64_t>(status.st_size);
}

RegularFile::~RegularFile() { ::close(file_); }

void RegularFile::read(uint64_t begin, void* into, size_t size) const {
  for (size_t done = 0; done < size;) {
    const uint64_t at = begin + done;
    const size_t wanted = std::min(size - done, size_t{1} << 30);
    const ssize_t got =
        ::pread(file_, static_cast<char*>(into) + done, wanted, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    check(got >= 0, ErrorCode::kDataLoss, path_, ": byte ", at,
          ": cannot be read: ", std::strerror(errno));
    check(got > 0, ErrorCode::kDataLoss, path_, ": ends at byte ", at, " although it was ", size_,
          " bytes long when it was opened");
    done += static_cast<size_t>(got);
  }
}

void refuse_lfs_pointer(std::string_view start, const std::string& path) {
  check(!start.starts_with("version https://git-lfs"), ErrorCode::kDataLoss, path,
        ": is a git-LFS pointer, not the file itself; fetch it with `git lfs pull` in its "
        "repository, or with `hf download`");
}

std::string read_file(const std::string& path, size_t max_bytes) {
  const RegularFile file(path);
  check(file.size() <= max_bytes, ErrorCode::kDataLoss, path, ": ", file.size(), " bytes, at most ",
        max_bytes, " are accepted here");
  std::string bytes(file.size(), '\0');
  file.read(0, bytes.data(), bytes.size());
  refuse_lfs_pointer(bytes, path);
  return bytes;
}

void for_each_piece(const std::string& path, const std::function<void(std::string_view)>& piece,
                    const std::function<void(double)>& progress) {
  constexpr size_t kPiece = size_t{4} << 20;
  const RegularFile file(path);
  std::string bytes;
  for (uint64_t at = 0; at < file.size(); at += bytes.size()) {
    bytes.resize(std::min<uint64_t>(file.size() - at, kPiece));
    file.read(at, bytes.data(), bytes.size());
    piece(bytes);
    if (progress) {
      progress(static_cast<double>(at + bytes.size()) / static_cast<double>(file.size()));
    }
  }
}

std::string user_cache_directory() {
  if (const char* given = std::getenv("TESSERA_CACHE_DIR")) return given;
  const char* base = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (base == nullptr && home == nullptr) return "none";
  namespace fs = std::filesystem;
  const fs::path folder = base != nullptr ? fs::path(base) : fs::path(home) / ".cache";
  const std::string nearest = fs::exists(folder) ? folder.string() : folder.parent_path().string();
  return access(nearest.c_str(), W_OK) == 0 ? (folder / "tessera").string() : "none";
}

size_t utf8_valid_prefix(std::string_view text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  const size_t size = text.size();
  size_t at = 0;
  while (at < size) {
    const unsigned char lead = bytes[at];
    if (lead < 0x80) {
      ++at;
      continue;
    }
    size_t length = 0;
    unsigned char low = 0x80, high = 0xBF;  // bounds of the second byte
    if (lead >= 0xC2 && lead <= 0xDF) {
      length = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
      length = 3;
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
      length = 4;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (length == 0 || size - at < length) return at;
    if (bytes[at + 1] < low || bytes[at + 1] > high) return at;
    for (size_t i = 2; i < length; ++i) {
      if ((bytes[at + i] & 0xC0) != 0x80) return at;
    }
    at += length;
  }
  return size;
}

void check_utf8(std::string_view text, const std::string& where) {
  const size_t valid = utf8_valid_prefix(text);
  check(valid == text.size(), ErrorCode::kDataLoss, where, ": byte ", valid,
        ": not valid UTF-8; convert the file to UTF-8");
}

std::string utf8_text(std::string text) {
  for (size_t i = utf8_valid_prefix(text); i < text.size(); i = utf8_valid_prefix(text)) {
    text.replace(i, 1, "\xEF\xBF\xBD");
  }
  return text;
}

}  // namespace tessera
