// SPDX-License-Identifier: MIT
#pragma once
// Files that must be durable before others refer to them.
#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/checkpoint/file_system.h"

namespace tessera {

// A new file, written sequentially. Errors are Error(kDataLoss) with file name, byte and the
// system's reason.
class OutputFile {
 public:
  OutputFile(FileSystem& files, std::string path);  // throws if the file exists
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void append(const void* bytes, int64_t size);
  int64_t size() const { return size_; }
  void finish();  // makes it durable and closes it

 private:
  FileSystem& files_;
  std::string path_;
  int file_;
  int64_t size_ = 0;
  int64_t begun_ = 0, waited_ = 0;  // bytes with writeback started, and with writeback finished
};

// Makes the names in a directory durable.
void sync_directory(FileSystem& files, const std::string& path);
void rename_path(FileSystem& files, const std::string& from, const std::string& to);
void make_directory(FileSystem& files, const std::string& path);
// Removes a file, or a directory with its files; no effect if missing.
void remove_path(FileSystem& files, const std::string& path);
// Writes the content durably under a temporary name, then renames it over `path`.
void replace_file(FileSystem& files, const std::string& path, std::string_view content);

}  // namespace tessera
