// SPDX-License-Identifier: MIT
#include "lib/tools/plan/bandwidths.h"

#include <algorithm>
#include <cstdlib>

#include "lib/core/number_text.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

constexpr double kGiga = 1e9;

// "GPU 0 to GPU 1": "330.1 GB/s"
void read_environment(const Json& bandwidth, Card& card) {
  double between = 0, host = 0, own = 0, triad = 0;
  for (const auto& [what, value] : bandwidth.members()) {
    const double rate = leading_number(value.as_string()) * kGiga;
    const bool to_gpu = what.find("to GPU") != std::string::npos;
    if (what.starts_with("GPU") && to_gpu) between = std::max(between, rate);
    if (what.starts_with("host to")) host = std::max(host, rate);
    if (what.find("memory of GPU") != std::string::npos) own = std::max(own, rate);
    if (what.starts_with("host memory")) triad = std::max(triad, rate);
  }
  if (between > 0) card.link_bytes_per_s = between;
  if (host > 0) card.host_bytes_per_s = host;
  if (card.device.empty() && triad > 0) card.memory_bytes_per_s = triad;
  if (!card.device.empty() && own > 0) card.memory_bytes_per_s = own;
}

}  // namespace

void read_bandwidths(const std::string& path, Card& card) {
  const Json file = Json::parse_file(path);
  if (const auto bandwidth = file.find("bandwidth")) return read_environment(*bandwidth, card);
  const auto benchmarks = file.find("benchmarks");
  check(benchmarks.has_value(), ErrorCode::kDataLoss, path,
        ": expected what tessera-env --json or bench_collectives --benchmark_format=json writes");
  double best = 0;
  for (const Json& run : benchmarks->items()) {
    best = std::max(best, run.get("busbw_GB_per_s", 0.0) * kGiga);
  }
  check(best > 0, ErrorCode::kDataLoss, path, ": no benchmark has busbw_GB_per_s");
  card.link_bytes_per_s = best;
}

}  // namespace tessera::programs
