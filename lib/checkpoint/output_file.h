// SPDX-License-Identifier: MIT
#pragma once
// Files that must be on the disk before others may mention them.
#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/checkpoint/file_system.h"

namespace tessera {

// A new file, written from its beginning to its end. Errors are Error(kDataLoss) with the file's
// name, the byte and the system's reason.
class OutputFile {
 public:
  OutputFile(FileSystem& files, std::string path);  // refuses a file that exists
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void append(const void* bytes, int64_t size);
  int64_t size() const { return size_; }
  void finish();  // durable and closed

 private:
  FileSystem& files_;
  std::string path_;
  int file_;
  int64_t size_ = 0;
  int64_t begun_ = 0, waited_ = 0;  // bytes on their way to the disk, and those that have arrived
};

// Makes the names in a directory durable.
void sync_directory(FileSystem& files, const std::string& path);
void rename_path(FileSystem& files, const std::string& from, const std::string& to);
void make_directory(FileSystem& files, const std::string& path);
// A file, or a directory with its files; nothing when it does not exist.
void remove_path(FileSystem& files, const std::string& path);
// The file appears under its name when it is complete and durable, in the place of an older one.
void replace_file(FileSystem& files, const std::string& path, std::string_view content);

}  // namespace tessera
