// SPDX-License-Identifier: MIT
// Counted operations against the GPU's real ones: equal outputs and allocations.
#include <cmath>

#include "tests/gpu/allocator.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/plan/counted_cases.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Requested bytes, before the allocator's rounding.
c10::CachingAllocator::Stat requested() {
  const auto stats = test::gpu_memory();
  return stats.requested_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

Taken measured(const CountedCase& test) {
  const auto run = test.prepare(at::Device(at::kCUDA, 0));
  run();  // allocates workspaces and plans
  test::gpu_allocator().resetPeakStats(0);
  const int64_t before = requested().current;
  const Tensors outputs = run();
  return {described(outputs), requested().current - before, requested().peak - before};
}

bool is_near(int64_t planned, int64_t measured, double share = 0.01) {
  constexpr double kBytes = 64 << 10;
  return std::abs(static_cast<double>(planned - measured)) <=
         kBytes + share * static_cast<double>(measured);
}

}  // namespace

TEST_CASE("counted operations give and take what the GPU's do") {
  TESSERA_NEEDS_GPUS(1);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const CountedCase& test : counted_cases(type)) {
      const Taken plan = counted(test, at::kCUDA), real = measured(test);
      INFO(beside(test, plan, real));
      CHECK(plan.outputs == real.outputs);
      CHECK(is_near(plan.kept, real.kept));
      CHECK(is_near(plan.most, real.most, type == at::kFloat ? 0.03 : 0.01));
    }
  }
}
