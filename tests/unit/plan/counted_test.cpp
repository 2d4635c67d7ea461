// Operations that stand for the CPU's in a plan: they give and take what the CPU's do.
#include <cstdlib>

#include "tessera/core/device.h"
#include "tests/support/test.hpp"
#include "tests/unit/plan/counted_cases.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Some operations of LibTorch hold a number a row more for a while.
bool is_near(int64_t planned, int64_t measured) {
  return static_cast<double>(std::abs(planned - measured)) <= 0.01 * static_cast<double>(measured);
}

Taken measured(const CountedCase& test) {
  const auto run = test.prepare(at::kCPU);
  run();
  const HostMemoryCounter counter;
  const Tensors outputs = run();
  const MemoryUse use = counter.use();
  return {described(outputs), use.allocated_bytes, use.peak_allocated_bytes};
}

}  // namespace

TEST_CASE("counted operations give and take what the CPU's do") {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const CountedCase& test : counted_cases(type)) {
      const Taken plan = counted(test, at::kCPU), real = measured(test);
      INFO(test.name << ": kept " << plan.kept << " planned, " << real.kept << " measured; most "
                     << plan.most << " planned, " << real.most << " measured");
      CHECK(plan.outputs == real.outputs);
      CHECK(is_near(plan.kept, real.kept));
      // How LibTorch multiplies 16 bits depends on the host's instructions.
      if (type == at::kFloat) CHECK(is_near(plan.most, real.most));
    }
  }
}

TEST_CASE("sums of many rows take on a GPU what LibTorch shares between its blocks") {
  // What an H200 measured, with LibTorch 2.11.
  constexpr int64_t kMeasured = 123'342'880;
  int found = 0;
  for (const CountedCase& test : counted_cases(at::kFloat)) {
    if (test.name.find("norm, backward") == std::string::npos) continue;
    if (test.name.find(" 5000x1024") == std::string::npos) continue;
    INFO(test.name);
    CHECK(counted(test, at::kCUDA).most == kMeasured);
    ++found;
  }
  CHECK(found == 4);
}
