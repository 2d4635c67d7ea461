#pragma once
// Rows of the parity table on in-process ranks, for tests of tensor parallelism.
#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "tests/parity/parity.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

namespace tessera::testing {

// A key's bias has no gradient in exact arithmetic, so Adam turns rounding noise into steps there.
inline void forget_key_biases(ParityResult& result) {
  std::erase_if(result.parameters, [](const auto& item) {
    return item.first.ends_with("query_key_value.bias") || item.first.ends_with("c_attn.bias");
  });
}

inline std::vector<ParityResult> run_row(const ParityRow& row, const ParityWork& work) {
  std::vector<ParityResult> results(static_cast<size_t>(row.ranks));
  test::run_ranks(row.ranks, [&](Communicator& comm) {
    results[static_cast<size_t>(comm.rank())] = run_parity(comm, row, work);
  });
  for (auto& result : results) forget_key_biases(result);
  return results;
}

// One rank that sees the whole global batch at once.
inline ParityResult reference(const ParityWork& work, at::ScalarType dtype = at::kFloat) {
  ParityRow row;
  row.parallel.precision.parameter = dtype;
  const ParityResult result = run_row(row, work).front();
  CHECK(result.clip.front() < 1.0);  // clipping must be active to be tested
  return result;
}

// Every rank agrees with the reference, and with the others to the bit where all report the same.
inline void check_row(const ParityRow& row, const ParityWork& work, const ParityResult& expected,
                      double tolerance) {
  INFO(row.name());
  const auto results = run_row(row, work);
  for (const auto& result : results) {
    CHECK(difference(result, expected, tolerance) == "");
    CHECK(result.loss == results.front().loss);
    CHECK(result.grad_norm == results.front().grad_norm);
  }
}

inline ParityRow tensor_row(const std::string& strategy, int data, int tensor) {
  ParityRow row{.ranks = data * tensor, .tensor = tensor};
  row.parallel.strategy = strategy;
  row.parallel.persistence_threshold = 100;
  return row;
}

}  // namespace tessera::testing
