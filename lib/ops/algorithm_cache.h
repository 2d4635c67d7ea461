// SPDX-License-Identifier: MIT
#pragma once
// Fastest algorithms of operations by size, in memory and in a file that all processes of a host
// and later runs share.
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::ops {

// Thread-safe. File: a first line (title and owner), then one line per algorithm (the kind's
// numbers, the size, the algorithm's words), each with a checksum. Algorithms are appended under a
// file lock. Lines after a broken one are ignored, and cut off by the next process that adds an
// algorithm.
class AlgorithmCache {
 public:
  using Kind = std::vector<int64_t>;          // an operation without its size
  using Algorithm = std::array<uint64_t, 8>;  // opaque

  // owner: one line that the algorithms are valid for (subject, GPU, library and version). A file
  // of another owner is ignored with a warning. path "": no file.
  AlgorithmCache(std::string path, std::string owner);

  std::optional<Algorithm> find(const Kind& kind, int64_t size) const;
  // All algorithms of the kind, nearest size first.
  std::vector<std::pair<int64_t, Algorithm>> nearest(const Kind& kind, int64_t size) const;
  // Settles the algorithm for this size: that of the first process to settle it, or this one.
  // Returns it.
  Algorithm settle(const Kind& kind, int64_t size, const Algorithm& algorithm);

 private:
  using Algorithms = std::map<std::pair<Kind, int64_t>, Algorithm>;
  void share(const Algorithms::value_type& own);
  // Reads algorithms appended since the last read; returns the end of the last valid line.
  uint64_t catch_up(int file);
  bool take_line(std::string_view line);  // false: broken line

  const std::string path_, owner_;
  mutable std::mutex mutex_;
  bool shared_;  // false once the file could not be used
  Algorithms algorithms_;
  uint64_t read_until_ = 0, inode_ = 0;  // state of the last read
};

}  // namespace tessera::ops
