// SPDX-License-Identifier: MIT
#pragma once
// Reads whole files with pread, so that a file that shrinks meanwhile is an error and not a fault.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tessera/core/not_copied.h"

namespace tessera {

// An open regular file. All errors are Error(kDataLoss) with its path. Reads are thread-safe.
class RegularFile : NotCopied {
 public:
  explicit RegularFile(std::string path);
  ~RegularFile();

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // at the time of opening
  void read(uint64_t begin, void* into, size_t size) const;

 private:
  const std::string path_;
  const int file_;
  uint64_t size_ = 0;
};

// The bytes of a regular file. Throws Error(kDataLoss) naming the file when it is missing,
// irregular, longer than max_bytes, or changes its length during the read.
std::string read_file(const std::string& path, size_t max_bytes = size_t{1} << 32);

// Throws Error(kDataLoss) with the remedy when the text starts as a git-LFS pointer, left where a
// large file was not fetched.
void refuse_lfs_pointer(std::string_view start, const std::string& path);

// Reads a file of any size in order, in pieces of a few MiB. `progress` gets the finished share
// after each.
void for_each_piece(const std::string& path, const std::function<void(std::string_view)>& piece,
                    const std::function<void(double)>& progress = {});

// Directory for files that can be recreated. TESSERA_CACHE_DIR ("none": nowhere), else "tessera" in
// XDG_CACHE_HOME or ~/.cache if writable. "none" when there is no such place.
std::string user_cache_directory();

// Throws Error(kDataLoss) with `where` and the offset of the first byte that is not well-formed
// UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
void check_utf8(std::string_view text, const std::string& where);

// Offset of the first byte that is not well-formed UTF-8, or text.size().
size_t utf8_valid_prefix(std::string_view text);

// Replaces ill-formed UTF-8 by U+FFFD: file names and messages for JSON.
std::string utf8_text(std::string text);

}  // namespace tessera
