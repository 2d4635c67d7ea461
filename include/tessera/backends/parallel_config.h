#pragma once
// Which strategy, in which precision, with which sizes: everything make_strategy() needs.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"

namespace tessera {

struct PrecisionConfig {
  at::ScalarType parameter = at::kFloat;  // compute dtype: kFloat, kBFloat16 or kHalf
  // What backward accumulates into; the parameter dtype unless given.
  std::optional<at::ScalarType> gradient;
  std::optional<at::ScalarType> reduce;  // what collectives carry; the gradient dtype unless given
};

struct ParallelConfig {
  std::string strategy = "single";  // single, ddp, zero1, zero2, zero3
  PrecisionConfig precision;
  int64_t bucket_bytes = 25 << 20;  // gradients reduced together once this many bytes are ready
  bool overlap = true;              // false: wait for every collective where it is launched
  bool reduce_at_boundary = false;  // zero2: keep full gradients over the accumulation, reduce once
  int64_t persistence_threshold = 100'000;  // zero3: parameters with fewer elements stay in full
  int prefetch_blocks = 1;                  // zero3: blocks gathered ahead, each way
};

// Names that make_strategy() accepts.
std::vector<std::string> strategy_names();

// The only place that states which combinations are legal; throws Error(kInvalidArgument) for the
// rest.
std::unique_ptr<Strategy> make_strategy(const ParallelConfig& config, const DeviceMesh& mesh);

}  // namespace tessera
