// SPDX-License-Identifier: MIT
// Muon's iteration on a GPU: its effect on singular values, and agreement with the CPU within bf16.
#include "tessera/optim/muon.h"

#include <ATen/ATen.h>

#include "tests/gpu/gpu.h"

using namespace tessera;

TEST_CASE("Newton-Schulz iterations on a GPU make matrices about orthogonal, as on the CPU") {
  TESSERA_NEEDS_GPUS(1);
  for (const auto& [rows, columns] : {std::pair(512, 256), std::pair(192, 512)}) {
    INFO(rows << " x " << columns);
    const at::Tensor x = at::randn({rows, columns});
    const at::Tensor here = newton_schulz(x, {}).to(at::kFloat);
    const at::Tensor there = newton_schulz(x.to(at::kCUDA), {}).to(at::kCPU, at::kFloat);
    const at::Tensor values = at::linalg_svdvals(there);
    CHECK(values.min().item<double>() > 0.5);
    CHECK(values.max().item<double>() < 1.5);
    CHECK((there - here).norm().item<double>() < 0.05 * here.norm().item<double>());
  }
}
