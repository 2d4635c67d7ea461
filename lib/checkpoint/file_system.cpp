// SPDX-License-Identifier: MIT
#include "tessera/checkpoint/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>

namespace tessera {

int FileSystem::open(const std::string& path, int flags) {
  return ::open(path.c_str(), flags | O_CLOEXEC, 0644);
}
int64_t FileSystem::write(int file, const void* bytes, size_t size, int64_t at) {
  return ::pwrite(file, bytes, size, at);
}
int FileSystem::sync(int file) { return ::fsync(file); }
int FileSystem::close(int file) { return ::close(file); }
int FileSystem::rename(const std::string& from, const std::string& to) {
  return ::rename(from.c_str(), to.c_str());
}
int FileSystem::make_directory(const std::string& path) { return ::mkdir(path.c_str(), 0755); }
int FileSystem::remove(const std::string& path) { return ::remove(path.c_str()); }
int64_t FileSystem::free_bytes(const std::string& path) {
  struct statvfs disk {};
  if (::statvfs(path.c_str(), &disk) != 0) return -1;
  return static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
}

FileSystem& FileSystem::system() {
  static FileSystem files;
  return files;
}

}  // namespace tessera
