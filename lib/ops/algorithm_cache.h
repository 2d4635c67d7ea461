// SPDX-License-Identifier: MIT
#pragma once
// Fastest plans of operations by size, in memory and in a file that all processes of a host and
// later runs share.
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

// Thread-safe. File: a first line (title and owner), then one line per plan (the kind's numbers,
// the size, the plan's words), each with a checksum. Plans are appended under a file lock. Lines
// after a broken one are ignored, and cut off by the next process that adds a plan.
class PlanCache {
 public:
  using Kind = std::vector<int64_t>;     // an operation without its size
  using Plan = std::array<uint64_t, 8>;  // opaque

  // owner: one line that the plans are valid for (subject, GPU, library and version). A file of
  // another owner is ignored with a warning. path "": no file.
  PlanCache(std::string path, std::string owner);

  std::optional<Plan> find(const Kind& kind, int64_t size) const;
  // All plans of the kind, nearest size first.
  std::vector<std::pair<int64_t, Plan>> nearest(const Kind& kind, int64_t size) const;
  // Settles the plan for this size: that of the first process to settle it, or this one. Returns
  // it.
  Plan settle(const Kind& kind, int64_t size, const Plan& plan);

 private:
  using Plans = std::map<std::pair<Kind, int64_t>, Plan>;
  void share(const Plans::value_type& own);
  // Reads plans appended since the last read; returns the end of the last valid line.
  uint64_t catch_up(int file);
  bool take_line(std::string_view line);  // false: broken line

  const std::string path_, owner_;
  mutable std::mutex mutex_;
  bool shared_;  // false once the file could not be used
  Plans plans_;
  uint64_t read_until_ = 0, inode_ = 0;  // state of the last read
};

}  // namespace tessera::ops
