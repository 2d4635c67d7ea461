// SPDX-License-Identifier: MIT
#pragma once
// Whole files as bytes, read with pread so that a file that shrinks meanwhile is an error and not a
// fault.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tessera/core/not_copied.h"

namespace tessera {

// An open regular file. Every error is Error(kDataLoss) with its path. Any thread may read.
class RegularFile : NotCopied {
 public:
  explicit RegularFile(std::string path);
  ~RegularFile();

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // when it was opened
  void read(uint64_t begin, void* into, size_t size) const;

 private:
  const std::string path_;
  const int file_;
  uint64_t size_ = 0;
};

// The bytes of a regular file. Throws Error(kDataLoss) naming the file when it is missing, not a
// regular file, longer than max_bytes, or changes its length while it is read.
std::string read_file(const std::string& path, size_t max_bytes = size_t{1} << 32);

// Throws Error(kDataLoss) with the remedy for the first bytes of a pointer that git-LFS leaves
// where a large file was not fetched.
void refuse_lfs_pointer(std::string_view start, const std::string& path);

// The same file in pieces of at most a few MiB, in order, whatever its size. `progress` gets the
// share that is done after each.
void for_each_piece(const std::string& path, const std::function<void(std::string_view)>& piece,
                    const std::function<void(double)>& progress = {});

// Where programs keep what can be made again: TESSERA_CACHE_DIR ("none": nowhere), else "tessera"
// in XDG_CACHE_HOME or ~/.cache where that can be written. "none" when there is no such place.
std::string user_cache_directory();

// Throws Error(kDataLoss) with `where` and the offset of the first byte that is not well-formed
// UTF-8 (no overlong forms, no surrogates, nothing above U+10FFFF).
void check_utf8(std::string_view text, const std::string& where);

// Offset of the first byte that is not well-formed UTF-8, or text.size().
size_t utf8_valid_prefix(std::string_view text);

// Bytes that are not well-formed UTF-8 become U+FFFD: names of files and messages, for JSON.
std::string utf8_text(std::string text);

}  // namespace tessera
