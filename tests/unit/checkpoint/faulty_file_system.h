// SPDX-License-Identifier: MIT
#pragma once
// A file system that fails, or kills the process, at call k.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <limits>
#include <mutex>
#include <string>

#include "tessera/checkpoint/file_system.h"

namespace tessera::test {

// Counts the calls of all ranks together, from 0. Skips real disk synchronisation.
class FaultyFileSystem : public FileSystem {
 public:
  enum class Fault {
    kOnce,  // fails call k only
    kFull,  // fails call k and all later ones that need space
    kKill   // kills the process at call k, half-way through a write
  };
  static constexpr int kNever = std::numeric_limits<int>::max();
  FaultyFileSystem(int call, Fault fault, int error) : call_(call), fault_(fault), error_(error) {}

  int calls() const { return next_; }
  std::string failed() const { return failed_; }  // the first failed call

  int open(const std::string& path, int flags) override {
    return fails("open " + path, true) ? -1 : FileSystem::open(path, flags);
  }
  int64_t write(int file, const void* bytes, size_t size, int64_t at) override {
    const bool bad = fails("write", true, [&] { FileSystem::write(file, bytes, size / 2, at); });
    return bad ? -1 : FileSystem::write(file, bytes, size, at);
  }
  int sync(int) override { return fails("fsync", false) ? -1 : 0; }
  int rename(const std::string& from, const std::string& to) override {
    return fails("rename " + from, false) ? -1 : FileSystem::rename(from, to);
  }
  int make_directory(const std::string& path) override {
    return fails("mkdir " + path, true) ? -1 : FileSystem::make_directory(path);
  }
  int remove(const std::string& path) override {
    return fails("remove " + path, false) ? -1 : FileSystem::remove(path);
  }

 private:
  template <typename Half = void (*)()>
  bool fails(
      const std::string& what, bool needs_room, const Half& half = [] {}) {
    const int call = next_++;
    const bool full = fault_ == Fault::kFull && call > call_ && needs_room;
    if (call != call_ && !full) return false;
    half();
    if (fault_ == Fault::kKill) ::kill(::getpid(), SIGKILL);
    const std::lock_guard lock(mutex_);
    if (failed_.empty()) failed_ = what;
    errno = error_;
    return true;
  }

  const int call_;
  const Fault fault_;
  const int error_;
  std::atomic<int> next_ = 0;
  std::mutex mutex_;
  std::string failed_;
};

}  // namespace tessera::test
