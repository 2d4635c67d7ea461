// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// File system interface for writing checkpoints, in which tests can make any call fail.
#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera {

/// File system calls of checkpoint writers, with the system's results: -1 and errno on failure.
/// Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual int open(const std::string& path, int flags);  ///< new files get the mode 0644
  /// Like pwrite(): returns the bytes written at this offset.
  virtual int64_t write(int file, const void* bytes, size_t size, int64_t at);
  virtual int sync(int file);                                          ///< like fsync()
  virtual int close(int file);                                         ///< like close()
  virtual int rename(const std::string& from, const std::string& to);  ///< like rename()
  virtual int make_directory(const std::string& path);  ///< like mkdir(), with mode 0755
  virtual int remove(const std::string& path);          ///< a file or an empty directory
  /// Free bytes of the path's file system, for this user.
  virtual int64_t free_bytes(const std::string& path);

  static FileSystem& system();  ///< the operating system's; lives as long as the process
};

}  // namespace tessera
