// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// What writing a checkpoint asks of the file system, in one place, so that tests can make any of
/// these calls fail.
#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera {

/// Every call does what the system's does: -1 and errno when it fails. Any thread.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual int open(const std::string& path, int flags);  ///< new files get the mode 0644
  /// As pwrite(): bytes written at this offset.
  virtual int64_t write(int file, const void* bytes, size_t size, int64_t at);
  virtual int sync(int file);                                          ///< as fsync()
  virtual int close(int file);                                         ///< as close()
  virtual int rename(const std::string& from, const std::string& to);  ///< as rename()
  virtual int make_directory(const std::string& path);  ///< as mkdir(), with the mode 0755
  virtual int remove(const std::string& path);          ///< a file or an empty directory
  virtual int64_t free_bytes(const std::string& path);  ///< of its file system, for this user

  static FileSystem& system();  ///< that of the operating system; lives as long as the process
};

}  // namespace tessera
