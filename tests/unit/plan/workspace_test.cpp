// SPDX-License-Identifier: MIT
// Planned workspace of matrix products.
#include "lib/plan/memory_plan.h"
#include "tessera/model/lora.h"
#include "tessera/models/language_model.h"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr double kMebibyte = double{1 << 20};

struct Case {
  std::string strategy = "single";
  int ranks = 1;
  at::ScalarType dtype = at::kBFloat16;
  bool adapters = false;
  Offload offload = Offload::kNone;
};

double workspace_mib(const Case& c) {
  const auto bloom =
      causal(sized("bloom", {.vocabulary = 1024, .hidden = 128, .heads = 4, .layers = 2}));
  PlannedLayout layout{
      .parallel = {.strategy = c.strategy, .offload = {.what = c.offload}},
      .mesh = {.data = c.ranks},
      .model = c.adapters ? add_lora(bloom, {.r = 4, .target_modules = {"all-linear"}}) : bloom,
      .on_gpu = true};
  layout.parallel.precision.parameter = c.dtype;
  return plan_rank(layout, {.rows = 1, .length = 8}, card_named("h100"), {}, {}).workspace /
         kMebibyte;
}

}  // namespace

TEST_CASE("a plan has LibTorch's workspace where its products are recorded on a GPU") {
  CHECK(workspace_mib({}) == 128);
  CHECK(workspace_mib({.adapters = true}) == 128 + 96);
  CHECK(workspace_mib({.dtype = at::kFloat}) == 64 + 96);
  CHECK(workspace_mib({.strategy = "zero1", .adapters = true}) == 128 + 96);
  // None of these is captured.
  CHECK(workspace_mib({.strategy = "ddp", .ranks = 2, .adapters = true}) == 128);
  CHECK(workspace_mib({.strategy = "zero2", .adapters = true}) == 128);
  CHECK(workspace_mib({.strategy = "zero3", .dtype = at::kFloat}) == 64);
  CHECK(workspace_mib({.dtype = at::kFloat, .offload = Offload::kOptimizer}) == 64);
}
