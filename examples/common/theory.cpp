#include "examples/common/theory.h"

namespace tessera::programs {

Theory theory_of(const TheoryInput& input) {
  auto bytes_of = [](const std::string& dtype) { return dtype == "fp32" ? 4.0 : 2.0; };
  const double p = bytes_of(input.parameter_dtype), g = bytes_of(input.gradient_dtype);
  const double r = bytes_of(input.reduce_dtype), s = input.parameter_dtype == "fp32" ? 8 : 12;
  const auto n = static_cast<double>(input.ranks), a = static_cast<double>(input.accumulation);
  double total = 0, small = 0;
  for (int64_t numel : input.parameter_numel) {
    total += static_cast<double>(numel);
    if (numel < input.persistence_threshold) small += static_cast<double>(numel);
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
  theory.comm_bytes_per_step = (a * (r * total + 2 * p * (total - small)) + p * small) * ring;
  return theory;
}

}  // namespace tessera::programs
