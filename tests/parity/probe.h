// SPDX-License-Identifier: MIT
#pragma once
// A model of one parameter whose gradient is given by the test, number by number.
#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tests/support/recording_communicator.hpp"

namespace tessera::testing {

// parts[rank][m]: gradient term of micro-batch m on that data rank, fp32, all of one size. The
// number of parts is a power of two, so the mean over targets is exact.
using GradientParts = std::vector<std::vector<at::Tensor>>;

struct ProbeResult {
  at::Tensor gradient;                 // of the step, from visit_gradients(): fp32
  std::vector<test::WireRecord> wire;  // of forward_backward
  int64_t bytes_sent = 0;              // by this rank, over the data axis and its splits
};

// One step with these gradients; results by data rank.
std::vector<ProbeResult> run_probe(const ParallelConfig& config, const GradientParts& parts);

// Gradient reductions in the log: floating point, at least a shard with padding.
std::vector<test::WireRecord> gradient_reductions(const std::vector<test::WireRecord>& wire);

// The value rounded to this dtype.
inline at::Tensor rounded(const at::Tensor& value, at::ScalarType dtype) {
  return value.to(dtype).to(value.scalar_type());
}
inline bool representable(const at::Tensor& value, at::ScalarType dtype) {
  return rounded(value, dtype).equal(value);
}

}  // namespace tessera::testing
