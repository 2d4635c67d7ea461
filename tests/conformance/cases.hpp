// SPDX-License-Identifier: MIT
#pragma once
// Shared by the files of the conformance suite.
#include <ATen/ATen.h>

#include <array>

#include "tests/conformance/communicator_conformance.hpp"
#include "tests/support/ranks.hpp"

namespace tessera::test {

inline constexpr std::array kDtypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                       at::kLong,  at::kInt,    at::kChar, at::kByte};
inline constexpr std::array<int64_t, 4> kCounts = {0, 1, 7, 1023};

// Small integers that differ by rank and index; every dtype represents them and their sum over
// eight ranks exactly.
inline at::Tensor values(const Communicator& comm, int rank, int64_t count, at::ScalarType dtype) {
  const at::Tensor index = at::arange(count, at::kLong);
  return (index * 7 + rank * 5 + index.floor_divide(100)).remainder(13).to(dtype).to(comm.device());
}

// The reduction of values(rank + shift) over the ranks of comm.
inline at::Tensor reduced(const Communicator& comm, int64_t count, at::ScalarType dtype,
                          ReduceOp op, int shift) {
  std::vector<at::Tensor> all;
  for (int r = 0; r < comm.size(); ++r) {
    all.push_back(values(comm, r + shift, count, at::kLong).cpu());
  }
  const at::Tensor stacked = at::stack(all);
  const at::Tensor result = op == ReduceOp::kSum   ? stacked.sum(0)
                            : op == ReduceOp::kMax ? std::get<0>(stacked.max(0))
                                                   : std::get<0>(stacked.min(0));
  return result.to(dtype).to(comm.device());
}

void all_operations_alone(Communicator& comm);  // for a communicator of one rank
std::vector<ConformanceCase> collective_cases();
std::vector<ConformanceCase> topology_cases();

}  // namespace tessera::test
