// SPDX-License-Identifier: MIT
#include "tessera/backends/gradients.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numbers>
#include <vector>

#include "lib/checkpoint/slice_runs.h"
#include "lib/core/hash.h"
#include "tessera/backends/strategy.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr auto kGolden = static_cast<int64_t>(0x9e3779b97f4a7c15U);

// Logical right shift of two's complement numbers.
at::Tensor shifted(const at::Tensor& bits, int64_t by) {
  return bits.bitwise_right_shift(by).bitwise_and((int64_t{1} << (64 - by)) - 1);
}

// SplitMix64's output function (Steele, Lea and Flood 2014).
at::Tensor mixed(at::Tensor bits) {
  bits = bits.bitwise_xor(shifted(bits, 30)) * static_cast<int64_t>(0xbf58476d1ce4e5b9U);
  bits = bits.bitwise_xor(shifted(bits, 27)) * static_cast<int64_t>(0x94d049bb133111ebU);
  return bits.bitwise_xor(shifted(bits, 31));
}

[[noreturn]] void refuse_name(const char* who, const std::string& name, const std::string& one) {
  fail(ErrorCode::kInvalidArgument, who, ": the model has no trained parameter \"", name,
       "\"; names are \"block.parameter\", such as \"", one,
       "\", as Strategy::gradient_norms() lists them");
}

}  // namespace

at::Tensor normal_noise(const GradientPiece& piece, uint64_t seed) {
  const at::NoGradGuard no_grad;
  const uint64_t key = xxh3_64(piece.name.data(), piece.name.size()) ^ (seed * 0xd1342543de82ef95U);
  const auto options = piece.value.options().dtype(at::kLong);
  at::Tensor bits = at::zeros({piece.slice.numel()}, options);
  SliceRuns runs(piece.slice);
  for (SliceRun run; runs.next(run);) {
    bits.narrow(0, run.local, run.size)
        .copy_(at::arange(run.global + 1, run.global + 1 + run.size, options));
  }
  const at::Tensor padding = bits.eq(0);
  bits = mixed(mixed(bits * kGolden + static_cast<int64_t>(key)));
  constexpr double kRange = 4294967296.0;
  const at::Tensor first = (shifted(bits, 32).to(at::kDouble) + 1) / kRange;  // (0, 1]
  const at::Tensor second = bits.bitwise_and(0xffffffff).to(at::kDouble) / kRange;
  const at::Tensor normal = (first.log() * -2).sqrt() * (second * (2 * std::numbers::pi)).cos();
  return normal.to(at::kFloat).masked_fill_(padding, 0);
}

at::Tensor gradient(Strategy& strategy, const std::string& name) {
  at::Tensor found;
  std::string last;
  strategy.visit_gradients([&](const VisitedParameter& visited) {
    last = visited.block + "." + visited.name;
    if (last == name) found = visited.value.clone();
  });
  if (!found.defined()) refuse_name("gradient", name, last);
  return found;
}

void set_gradient(Strategy& strategy, const std::string& name, const at::Tensor& value) {
  const NamedTensors norms = strategy.gradient_norms();
  const auto named = [&](const auto& norm) { return norm.first == name; };
  if (std::ranges::none_of(norms, named)) {
    refuse_name("set_gradient", name, norms.empty() ? "none" : norms.front().first);
  }
  const at::NoGradGuard no_grad;
  std::string problem;
  strategy.for_each_gradient([&](const GradientPiece& piece) {
    if (piece.name != name) return;
    if (!value.defined() || value.sizes() != at::IntArrayRef(piece.slice.shape)) {
      problem = concat("set_gradient: \"", name, "\" has shape ",
                       at::IntArrayRef(piece.slice.shape), ", but the gradient given has ",
                       value.defined() ? value.sizes() : at::IntArrayRef());
      return;
    }
    write_slice(piece.slice, value.detach(), piece.value);
  });
  check(problem.empty(), ErrorCode::kInvalidArgument, problem);
}

void clip_gradient_values(Strategy& strategy, double limit) {
  check(limit > 0, ErrorCode::kInvalidArgument, "clip_gradient_values: the limit is ", limit,
        "; it must be positive");
  strategy.for_each_gradient(
      [&](const GradientPiece& piece) { at::Tensor(piece.value).clamp_(-limit, limit); });
}

}  // namespace tessera
