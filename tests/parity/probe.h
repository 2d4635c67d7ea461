// SPDX-License-Identifier: MIT
#pragma once
// A model of one parameter whose gradient the test dictates, number by number.
#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tests/support/recording_communicator.hpp"

namespace tessera::testing {

// parts[rank][m]: what micro-batch m of that data rank adds to the gradient, fp32, all of one size.
// The number of parts is a power of two, so that the mean over targets costs no digit.
using GradientParts = std::vector<std::vector<at::Tensor>>;

struct ProbeResult {
  at::Tensor gradient;                 // of the step, as visit_gradients() shows it: fp32
  std::vector<test::WireRecord> wire;  // of forward_backward
  int64_t bytes_sent = 0;              // by it, over the data axis and what is split from it
};

// One step with these gradients, by data rank.
std::vector<ProbeResult> run_probe(const ParallelConfig& config, const GradientParts& parts);

// The reductions of gradients among them: floating point, a shard's padding or more.
std::vector<test::WireRecord> gradient_reductions(const std::vector<test::WireRecord>& wire);

// The value with the fewest digits lost when stored in this dtype.
inline at::Tensor rounded(const at::Tensor& value, at::ScalarType dtype) {
  return value.to(dtype).to(value.scalar_type());
}
inline bool representable(const at::Tensor& value, at::ScalarType dtype) {
  return rounded(value, dtype).equal(value);
}

}  // namespace tessera::testing
