// SPDX-License-Identifier: MIT
#include "tessera/metrics/resource_summary.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "tessera/core/error.h"

namespace tessera::metrics {

void Track::add(std::optional<int64_t> sample) {
  if (sample) add(Track{*sample, *sample, 1, static_cast<double>(*sample)});
}

void Track::add(const Track& other) {
  if (other.count == 0) return;
  peak = count == 0 ? other.peak : std::max(peak, other.peak);
  least = count == 0 ? other.least : std::min(least, other.least);
  sum += other.sum;
  count += other.count;
}

Value Track::mean_value() const {
  if (count == 0) return {};
  return static_cast<int64_t>(std::llround(sum / static_cast<double>(count)));
}

void ResourceSummary::add(const ResourceRecord& sample) {
  gpu_used.add(sample.gpu_mem_used_bytes);
  cpu_rss.add(std::optional(sample.cpu_rss_tree_bytes));
  cpu_pss.add(sample.cpu_pss_tree_bytes);
  pinned.add(sample.pinned_bytes);
  if (!sample.gpu_util_ratio) return;
  gpu_util_sum += *sample.gpu_util_ratio;
  ++gpu_util_count;
}

void ResourceSummary::add(const ResourceSummary& node) {
  gpu_used.add(node.gpu_used);
  cpu_rss.add(node.cpu_rss);
  cpu_pss.add(node.cpu_pss);
  pinned.add(node.pinned);
  gpu_util_sum += node.gpu_util_sum;
  gpu_util_count += node.gpu_util_count;
}

static_assert(std::is_trivially_copyable_v<ResourceSummary>);

std::string ResourceSummary::bytes() const {
  return {reinterpret_cast<const char*>(this), sizeof(*this)};
}

ResourceSummary ResourceSummary::from_bytes(const std::string& bytes) {
  ResourceSummary summary;
  check(bytes.size() == sizeof(summary), ErrorCode::kInternal, "a node's resources have ",
        bytes.size(), " bytes");
  std::memcpy(&summary, bytes.data(), sizeof(summary));
  return summary;
}

}  // namespace tessera::metrics
