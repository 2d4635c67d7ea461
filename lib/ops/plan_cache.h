// SPDX-License-Identifier: MIT
#pragma once
// Which plans were found best for operations of many sizes, in memory and in a file that all
// processes of a host, and later runs, share.
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

// Any thread. The file has a first line (title and owner) and one line a plan (the kind's numbers,
// the size, the plan's words), each with its checksum; plans are appended under a lock of the file.
// What follows a broken line is not read, and is cut off by the next process that has a plan.
class PlanCache {
 public:
  using Kind = std::vector<int64_t>;     // an operation but for its size
  using Plan = std::array<uint64_t, 8>;  // opaque

  // owner: what plans are valid for, one line (subject, GPU, library and its version). A file of
  // another owner is ignored with a warning. path "": no file.
  PlanCache(std::string path, std::string owner);

  std::optional<Plan> find(const Kind& kind, int64_t size) const;
  // All of the kind, those of the nearest sizes first.
  std::vector<std::pair<int64_t, Plan>> nearest(const Kind& kind, int64_t size) const;
  // The plan for this size from now on: that of the process that settled it first, or this one.
  Plan settle(const Kind& kind, int64_t size, const Plan& plan);

 private:
  using Plans = std::map<std::pair<Kind, int64_t>, Plan>;
  void share(const Plans::value_type& own);
  // Takes the plans behind what was read before; returns where the last good line ends.
  uint64_t catch_up(int file);
  bool take_line(std::string_view line);  // false: broken

  const std::string path_, owner_;
  mutable std::mutex mutex_;
  bool shared_;  // false from the first time on that the file could not be had
  Plans plans_;
  uint64_t read_until_ = 0, inode_ = 0;  // of the file that was read last
};

}  // namespace tessera::ops
