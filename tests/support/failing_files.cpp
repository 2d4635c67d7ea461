// SPDX-License-Identifier: MIT
// Preloaded library: calls that need space or permission for files whose path contains
// $TESSERA_FAIL_PATH fail with errno $TESSERA_FAIL_ERRNO, from call $TESSERA_FAIL_AFTER (0) on.
// Reading and deleting still work.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

bool fails(const char* path) {
  static const char* const wanted = std::getenv("TESSERA_FAIL_PATH");
  static const char* const error = std::getenv("TESSERA_FAIL_ERRNO");
  static const char* const after = std::getenv("TESSERA_FAIL_AFTER");
  static std::atomic<int> calls{0};
  if (wanted == nullptr || path == nullptr || std::strstr(path, wanted) == nullptr) return false;
  if (calls++ < (after == nullptr ? 0 : std::atoi(after))) return false;
  errno = error == nullptr ? ENOSPC : std::atoi(error);
  return true;
}

bool fails(int file) {
  char name[64], path[4096];
  std::snprintf(name, sizeof name, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(name, path, sizeof path - 1);
  if (length < 0) return false;
  path[length] = 0;
  return fails(path);
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool writes(int flags) { return (flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0; }
bool writes(const char* mode) { return std::strpbrk(mode, "wa+") != nullptr; }

}  // namespace

extern "C" {

#define TESSERA_OPEN(name)                                                 \
  int name(const char* path, int flags, ...) {                             \
    va_list more;                                                          \
    va_start(more, flags);                                                 \
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                          \
    if (writes(flags) && fails(path)) return -1;                           \
    return next<int(const char*, int, ...)>(#name)(path, flags, mode);     \
  }
TESSERA_OPEN(open)
TESSERA_OPEN(open64)

#define TESSERA_FOPEN(name)                                          \
  FILE* name(const char* path, const char* mode) {                   \
    if (writes(mode) && fails(path)) return nullptr;                 \
    return next<FILE*(const char*, const char*)>(#name)(path, mode); \
  }
TESSERA_FOPEN(fopen)
TESSERA_FOPEN(fopen64)

ssize_t write(int file, const void* bytes, size_t size) {
  if (fails(file)) return -1;
  return next<ssize_t(int, const void*, size_t)>("write")(file, bytes, size);
}
ssize_t writev(int file, const iovec* parts, int count) {
  if (fails(file)) return -1;
  return next<ssize_t(int, const iovec*, int)>("writev")(file, parts, count);
}
ssize_t pwrite(int file, const void* bytes, size_t size, off_t at) {
  if (fails(file)) return -1;
  return next<ssize_t(int, const void*, size_t, off_t)>("pwrite")(file, bytes, size, at);
}
ssize_t pwrite64(int file, const void* bytes, size_t size, off64_t at) {
  if (fails(file)) return -1;
  return next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64")(file, bytes, size, at);
}
ssize_t sendfile(int to, int from, off_t* at, size_t size) {
  if (fails(to)) return -1;
  return next<ssize_t(int, int, off_t*, size_t)>("sendfile")(to, from, at, size);
}
int fsync(int file) {
  if (fails(file)) return -1;
  return next<int(int)>("fsync")(file);
}
int mkdir(const char* path, mode_t mode) {
  if (fails(path)) return -1;
  return next<int(const char*, mode_t)>("mkdir")(path, mode);
}
int rename(const char* from, const char* to) {
  if (fails(from) || fails(to)) return -1;
  return next<int(const char*, const char*)>("rename")(from, to);
}

}  // extern "C"
