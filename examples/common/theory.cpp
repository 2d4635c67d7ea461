#include "examples/common/theory.h"

#include <map>

namespace tessera::programs {
namespace {

// Parameters that zero3 gathers in one step: see G in theory.h. Blocks differ by what they share
// out, small tensors aside.
double gathered_in_a_step(const TheoryInput& input) {
  std::map<int64_t, int64_t> blocks_of_size;
  for (const auto& block : input.block_parameters) {
    int64_t shared = 0;
    for (int64_t numel : block) shared += numel < input.persistence_threshold ? 0 : numel;
    ++blocks_of_size[shared];
  }
  double gathered = 0;
  for (const auto& [size, count] : blocks_of_size) {
    const int64_t gathers = count <= 2 ? count : count + (2 * input.accumulation - 1) * (count - 2);
    gathered += static_cast<double>(size * gathers);
  }
  return gathered;
}

}  // namespace

Theory theory_of(const TheoryInput& input) {
  auto bytes_of = [](const std::string& dtype) { return dtype == "fp32" ? 4.0 : 2.0; };
  const double p = bytes_of(input.parameter_dtype), g = bytes_of(input.gradient_dtype);
  const double r = bytes_of(input.reduce_dtype), s = input.parameter_dtype == "fp32" ? 8 : 12;
  const auto n = static_cast<double>(input.ranks), a = static_cast<double>(input.accumulation);
  double total = 0, small = 0;
  for (const auto& block : input.block_parameters) {
    for (int64_t numel : block) {
      total += static_cast<double>(numel);
      if (numel < input.persistence_threshold) small += static_cast<double>(numel);
    }
  }
  const double ring = (n - 1) / n;
  Theory theory{p * total, g * total, s * total, 0};
  if (input.strategy == "ddp") theory.comm_bytes_per_step = 2 * r * total * ring;
  if (!input.strategy.starts_with("zero")) return theory;
  theory.optimizer_bytes /= n;
  theory.comm_bytes_per_step = (r + p) * total * ring;
  if (input.strategy == "zero1") return theory;
  theory.gradient_bytes /= n;
  const double reductions = input.reduce_at_boundary ? 1 : a;
  theory.comm_bytes_per_step = (reductions * r + p) * total * ring;
  if (input.strategy == "zero2") return theory;
  theory.parameter_bytes = p * (small + (total - small) / n);
  theory.comm_bytes_per_step = (a * r * total + p * (gathered_in_a_step(input) + small)) * ring;
  return theory;
}

}  // namespace tessera::programs
