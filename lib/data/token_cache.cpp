// SPDX-License-Identifier: MIT
#include "lib/data/token_cache.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "lib/data/token_file.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

TokenisedRows made_in_memory(Task task, const RowMaker& make) {
  const auto encoder = std::make_shared<TokenRowEncoder>(task);
  TokenisedRows result;
  result.facts = make([&](const Example& row) { encoder->add(row); });
  result.rows = {task, result.facts.num_labels, encoder->entries, encoder->words.data(), encoder};
  return result;
}

// A lock held by one of the processes that have the path; released when the process ends in any
// way.
class FileLock {
 public:
  FileLock(const std::string& path, const std::function<void()>& before_waiting)
      : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    check(file_.get() >= 0, ErrorCode::kDataLoss, path,
          ": cannot be opened: ", std::strerror(errno),
          "; give another --cache_dir, or --cache_dir none");
    int failed = ::flock(file_.get(), LOCK_EX | LOCK_NB);
    if (failed != 0 && errno == EWOULDBLOCK) {
      before_waiting();
      while ((failed = ::flock(file_.get(), LOCK_EX)) != 0 && errno == EINTR) {
      }
    }
    check(failed == 0, ErrorCode::kDataLoss, path, ": cannot be locked: ", std::strerror(errno),
          "; give a --cache_dir on a file system with locks, or --cache_dir none");
  }

 private:
  FileDescriptor file_;
};

}  // namespace

TokenisedRows tokenised_rows(const TokenCacheEntry& entry, const RowMaker& make,
                             const std::function<void(const std::string&)>& say) {
  if (entry.directory.empty()) return made_in_memory(entry.task, make);
  const auto tell = [&](const std::string& text) {
    if (say) say(text);
  };
  std::error_code error;
  std::filesystem::create_directories(entry.directory, error);
  check(!error, ErrorCode::kDataLoss, entry.directory, ": cannot be created: ", error.message(),
        "; give another --cache_dir, or --cache_dir none");
  const std::string path =
      (std::filesystem::path(entry.directory) / (entry.name + "-" + entry.key.hex() + ".tokens"))
          .string();
  TokenisedRows result;
  result.made = false;
  std::string problem;
  if (open_token_file(path, entry, result, problem)) return result;
  const FileLock lock(path + ".lock", [&] {
    tell(concat("waiting for another process that tokenises for ", path));
  });
  problem.clear();
  if (open_token_file(path, entry, result, problem)) return result;
  if (!problem.empty()) tell(concat(path, ": ", problem, "; it is made again"));
  TokenFileWriter writer(path, entry);
  writer.finish(make([&](const Example& row) { writer.add(row); }));
  problem.clear();
  check(open_token_file(path, entry, result, problem), ErrorCode::kDataLoss, path,
        ": cannot be read back: ", problem);
  result.made = true;
  return result;
}

}  // namespace tessera
