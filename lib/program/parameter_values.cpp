// SPDX-License-Identifier: MIT
#include "lib/program/parameter_values.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "tessera/model/model_spec.h"

namespace tessera::program {

// Pieces have generators of their own, as those of built-in models have.
at::Tensor draw(const Init& init, at::IntArrayRef shape, uint64_t seed) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  if (init.kind == Init::Kind::kConstant) return at::full(shape, init.first, at::kFloat);
  const at::Tensor result = at::empty(shape, at::kFloat), flat = result.view(-1);
  const int64_t pieces = (flat.numel() + kPiece - 1) / kPiece;
  at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first = piece * kPiece, count = std::min(kPiece, flat.numel() - first);
      auto generator = at::detail::createCPUGenerator(block_seed(seed, static_cast<size_t>(piece)));
      const at::Tensor part = flat.narrow(0, first, count);
      if (init.kind == Init::Kind::kNormal) {
        part.normal_(init.first, init.second, generator);
      } else {
        part.uniform_(init.first, init.second, generator);
      }
    }
  });
  for (const int64_t row : init.zero_rows) result.select(0, row).zero_();
  return result;
}

}  // namespace tessera::program
