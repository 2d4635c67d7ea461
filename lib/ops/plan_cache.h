#pragma once
// Which plans were found best for operations of many sizes, in memory and in a file that later runs
// read.
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::ops {

// Any thread.
class PlanCache {
 public:
  using Kind = std::vector<int64_t>;     // an operation but for its size
  using Plan = std::array<uint64_t, 8>;  // opaque

  // owner: what plans are valid for, one line (subject, GPU, library and its version). A file of
  // another owner, or one that is broken, is ignored with a warning. path "": no file.
  PlanCache(std::string path, std::string owner);

  std::optional<Plan> find(const Kind& kind, int64_t size) const;
  // All of the kind, those of the nearest sizes first.
  std::vector<std::pair<int64_t, Plan>> nearest(const Kind& kind, int64_t size) const;
  // The first plan of a size stays. Writes the file now and then.
  void add(const Kind& kind, int64_t size, const Plan& plan);
  bool changed() const { return changed_; }  // since the file was read or written
  // With what others have written meanwhile, by renaming a complete file. Does nothing where that
  // is not possible, or while another thread is at the plans.
  void save();

 private:
  using Plans = std::map<std::pair<Kind, int64_t>, Plan>;
  std::string header() const;
  Plans read() const;
  void write();

  const std::string path_, owner_;
  mutable std::mutex mutex_;
  Plans plans_;
  bool changed_ = false;
  std::chrono::steady_clock::time_point written_ = std::chrono::steady_clock::now();
};

}  // namespace tessera::ops
