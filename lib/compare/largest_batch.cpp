// SPDX-License-Identifier: MIT
// Search for the largest batch per rank that fits.
#include <algorithm>
#include <filesystem>

#include "lib/compare/comparison.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

// The batch is found within a sixteenth.
constexpr int64_t kResolution = 16;

// Possible batches per rank: divisors with a constant global batch, else any.
std::vector<int64_t> candidates(int64_t most, int64_t global, int64_t data_ranks) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= most; ++size) {
    if (global == 0 || global % (size * data_ranks) == 0) sizes.push_back(size);
  }
  return sizes;
}

// Sets the row's batch per rank, and the number of micro-batches for the global batch.
void take_batch(ComparisonRow& row, int64_t size, int64_t global) {
  row.options.training.per_device_train_batch_size = size;
  set_flag(row.flags, "per_device_train_batch_size", std::to_string(size));
  settle(row, global);
}

}  // namespace

// Doubles until memory runs out, then bisects. A try has two steps of at most two micro-batches:
// the second one adds to existing gradients, and more need no further memory.
void Comparison::find_largest_batch(ComparisonRow& row) {
  const int64_t global = source_.weak_scaling ? 0 : options_.global_batch_size;
  const std::vector<int64_t> sizes = candidates(options_.largest_batch, global, row.mesh().data);
  check(!sizes.empty(), ErrorCode::kInvalidArgument, "row ", row.name, ": no batch up to ",
        options_.largest_batch, " on ", row.mesh().data, " data ranks divides a global batch of ",
        global);
  LargestBatch found;
  const auto fits = [&](size_t at) {
    ComparisonRow tried = row;
    take_batch(tried, sizes[at], global);
    std::vector<std::string>& flags = tried.flags;
    const int64_t passes = std::min<int64_t>(2, tried.options.training.gradient_accumulation_steps);
    set_flag(flags, "gradient_accumulation_steps", std::to_string(passes));
    set_flag(flags, "max_steps", "2");
    set_flag(flags, "save_final", "false");
    set_flag(flags, "eval_steps", "-1");
    const std::string name = concat(row.name, ".batch", sizes[at]);
    const ChildResult child = run_child(row, name, flags, /*result=*/"");
    std::error_code error;
    std::filesystem::remove_all(options_.output_dir + "/" + name, error);  // not a run to report
    row.wall_s += child.wall_s;
    row.exit_code = child.exit_code;
    row.message = child.message;
    if (child.exit_code != 0 && !is_out_of_memory(child)) row.outcome = RunOutcome::kFailed;
    if (child.exit_code == 0) found.fits = std::max(found.fits, sizes[at]);
    if (child.exit_code != 0) found.does_not_fit = sizes[at];
    return child.exit_code == 0;
  };
  size_t low = 0, high = 0;  // low fits, high does not
  if (fits(0)) {
    high = sizes.size();
    for (size_t at = 1; low + 1 < sizes.size(); at = 2 * at + 1) {
      at = std::min(at, sizes.size() - 1);
      if (!fits(at)) {
        high = at;
        break;
      }
      low = at;
    }
  }
  while (row.outcome == RunOutcome::kFinished && high > low + 1 && high < sizes.size() &&
         sizes[high] - sizes[low] > std::max<int64_t>(1, sizes[low] / kResolution)) {
    const size_t middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  if (row.outcome == RunOutcome::kFailed) return;
  if (found.fits == 0) {
    row.outcome = RunOutcome::kOutOfMemory;
    return;
  }
  row.message.clear();
  row.exit_code = 0;
  row.largest = found;
  take_batch(row, found.fits, global);
}

// Later steps may have longer rows than a try's two. A batch that ran out of memory there is
// replaced by one at least a sixteenth smaller. False if there is none.
bool Comparison::take_smaller_batch(ComparisonRow& row) {
  if (!row.largest) return false;
  const int64_t global = source_.weak_scaling ? 0 : options_.global_batch_size;
  const int64_t failed = row.largest->fits;
  const std::vector<int64_t> sizes =
      candidates(failed - std::max<int64_t>(1, failed / kResolution), global, row.mesh().data);
  row.largest.reset();
  if (sizes.empty()) return false;
  row.largest = {.fits = sizes.back(), .does_not_fit = failed};
  take_batch(row, sizes.back(), global);
  return true;
}

}  // namespace tessera::programs
