// SPDX-License-Identifier: MIT
// Experts: the GPU's order of rows and products against the CPU's, products in fp64.
#include "lib/models/expert_feed_forward.h"
#include "lib/ops/expert_rows.h"
#include "lib/ops/grouped_product.h"
#include "lib/ops/reference.h"
#include "lib/ops/routing.h"
#include "tessera/core/lazy_zero.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("rows by expert lie on the GPU as on the CPU") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(61);
  for (const int64_t experts : {1, 7, 128}) {
    const at::Tensor chosen = at::randint(0, experts, {3000, 4}, at::kLong);
    const ops::ExpertOrder here = ops::expert_order(chosen, experts),
                           there = ops::expert_order(chosen.to(at::kCUDA), experts);
    CHECK(at::equal(there.slots.cpu(), here.slots));
    CHECK(at::equal(there.tokens.cpu(), here.tokens));
    CHECK(at::equal(there.rows.cpu(), here.rows));
    CHECK(at::equal(there.ends.cpu(), here.ends));
  }
}

TEST_CASE("grouped products on the GPU, with groups of no rows and sizes of any multiple") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(62);
  for (const auto [in, out] : {std::pair<int64_t, int64_t>{64, 96}, {24, 40}, {6, 10}}) {
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
      INFO(in << " x " << out << " " << at::toString(type));
      const at::Tensor ends =
          at::tensor(std::vector<int64_t>{0, 130, 130, 131, 300, 300}, at::kInt);
      const at::Tensor x = at::randn({300, in}).to(type), dy = at::randn({300, out}).to(type),
                       weight = at::randn({6, out, in}).to(type);
      const auto on = [](const at::Tensor& t) { return t.to(at::kCUDA); };
      const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
      const double tolerance = type == at::kFloat ? 1e-4 : 5e-3;
      CHECK(relative_error(ops::grouped_product(on(x), on(weight).transpose(1, 2), on(ends)),
                           ops::grouped_product(wide(x), wide(weight).transpose(1, 2), ends)) <
            tolerance);
      CHECK(relative_error(ops::grouped_product(on(dy), on(weight), on(ends)),
                           ops::grouped_product(wide(dy), wide(weight), ends)) < tolerance);
      for (const bool blank : {false, true}) {
        INFO("lazily zero " << blank);
        const at::Tensor exact = at::full({6, out, in}, blank ? 0.0 : 0.5, at::kDouble);
        ops::grouped_weight_gradient(wide(dy), wide(x), ends, exact);
        for (const at::ScalarType of_gradient : {type, at::kFloat}) {
          const at::Tensor sum =
              at::full({6, out, in}, blank ? NAN : 0.5, kOnGpu.dtype(of_gradient));
          if (blank) declare_lazy_zero({sum});
          ops::grouped_weight_gradient(on(dy), on(x), on(ends), sum);
          CHECK(relative_error(sum, exact) < tolerance);
        }
      }
    }
  }
}

TEST_CASE("rows of experts on the GPU are the reference's, and foreign rows are not touched") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(66);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const auto& [tokens, chosen, n, own] :
         {std::tuple{700, 8, 1024, 9}, {700, 8, 1024, 5}, {33, 2, 24, 3}, {5, 1, 8, 0}}) {
      INFO("tokens " << tokens << " n " << n << " own experts " << own << " of 9 "
                     << at::toString(type));
      // Experts from `own` on are another rank's.
      const at::Tensor experts = at::randint(0, 9, {tokens, chosen}, at::kLong).clamp_max(own),
                       foreign = experts.eq(own);
      ops::ExpertOrder here = ops::expert_order(experts, own + 1);
      if (own > 0)
        here.ends = here.ends.narrow(0, 0, own);
      else
        here.ends = at::zeros({1}, at::kInt);
      const auto on = [](const at::Tensor& t) { return t.to(at::kCUDA); };
      const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
      const ops::ExpertOrder there{on(here.tokens), on(here.slots), on(here.rows), on(here.ends)};
      const int64_t end = here.ends[-1].item<int64_t>(), rows = tokens * chosen;
      const double tolerance = type == at::kHalf ? 1e-3 : 8e-3;
      const auto with_values = [&](const at::Tensor& x) { return x.narrow(0, 0, end); };
      const auto require_close = [&](const at::Tensor& actual, const at::Tensor& exact) {
        if (exact.numel() > 0) CHECK(relative_error(actual, exact) < tolerance);
      };
      const at::Tensor x = at::randn({tokens, n}).to(type);
      CHECK(at::equal(with_values(ops::dispatch_rows(on(x), there)).cpu(),
                      with_values(ops::dispatch_rows(x, here))));
      at::Tensor y = at::randn({rows, n}).to(type);
      y.narrow(0, end, rows - end).fill_(NAN);
      const at::Tensor sum = ops::combine_rows(on(y), there, on(foreign));
      const at::Tensor exact_sum = ops::combine_rows(wide(y), here, foreign);
      CHECK((sum.cpu().to(at::kDouble) - exact_sum).abs().max().item<double>() < 0.05);
      at::Tensor gate_up = at::randn({rows, 2 * n}).to(type), dy = at::randn({rows, n}).to(type);
      const at::Tensor weights = at::rand({tokens, chosen});
      gate_up.narrow(0, end, rows - end).fill_(NAN);
      dy.narrow(0, end, rows - end).fill_(NAN);
      require_close(
          with_values(ops::weighted_swiglu(on(gate_up), on(weights), there)),
          with_values(ops::reference::weighted_swiglu(wide(gate_up), wide(weights), here)));
      const ops::WeightedSwigluBackward back = ops::weighted_swiglu_backward_(
                                            on(dy), on(gate_up), on(weights), there, on(foreign)),
                                        exact = ops::reference::weighted_swiglu_backward_(
                                            wide(dy), wide(gate_up), wide(weights), here, foreign);
      require_close(with_values(back.output), with_values(exact.output));
      require_close(with_values(back.gate_up), with_values(exact.gate_up));
      CHECK((back.weights.cpu().to(at::kDouble) - exact.weights).abs().max().item<double>() <
            1e-4 * static_cast<double>(n));
      CHECK(back.weights.cpu().masked_select(foreign).eq(0).all().item<bool>());
    }
  }
}

TEST_CASE("a layer's experts on the GPU: outputs and every gradient") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(63);
  const int64_t h = 64, inner = 48, experts = 8;
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    for (const bool normalised : {false, true}) {
      INFO(at::toString(type) << " normalised " << normalised);
      DecoderBlockOptions options;
      options.gated = true;
      options.routing = {3, normalised};
      const auto operation = [&](const Tensors& x) {
        DecoderBlockWeights w;
        w.experts = {x[1], x[2], x[3]};
        w.experts.up_adapters = {LoraWeights{x[4], x[5]}, LoraWeights{x[6], x[7]}};
        w.experts.down_adapters = {LoraWeights{x[8], x[9]}};
        return tessera::detail::experts(x[0], w, options);
      };
      Tensors inputs{at::randn({2, 70, h}), at::randn({experts, h}),
                     at::randn({experts, 2 * inner, h}) / 8, at::randn({experts, h, inner}) / 7};
      const auto adapter = [&](int64_t out, int64_t in) {
        inputs.push_back(at::randn({experts, 8, in}) / 8);
        inputs.push_back(at::randn({experts, out, 8}) / 3);
      };
      adapter(inner, h), adapter(inner, h), adapter(h, inner);
      for (at::Tensor& input : inputs) input = input.to(at::kCUDA, type);
      check_gradients(
          inputs, operation,
          [&](const Tensors& x) {
            Tensors host;
            for (const at::Tensor& each : x) host.push_back(each.cpu());
            return operation(host).to(at::kCUDA);
          },
          type == at::kFloat ? 1e-4 : 2e-2);
    }
  }
}

TEST_CASE("gpt-oss' experts on the GPU: outputs and every gradient") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(64);
  const int64_t h = 64, inner = 48, experts = 8;
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    INFO(at::toString(type));
    DecoderBlockOptions options;
    options.gated = true;
    options.routing = {3, true};
    const auto operation = [&](const Tensors& x) {
      DecoderBlockWeights w;
      w.experts = {.router = x[1],
                   .up = x[2],
                   .down = x[3],
                   .clamped = true,
                   .router_bias = x[4],
                   .up_bias = x[5],
                   .down_bias = x[6]};
      return tessera::detail::experts(x[0], w, options);
    };
    Tensors inputs{at::randn({2, 70, h}),
                   at::randn({experts, h}),
                   at::randn({experts, h, 2 * inner}) / 2,
                   at::randn({experts, inner, h}) / 7,
                   at::randn({experts}),
                   at::randn({experts, 2 * inner}),
                   at::randn({experts, h})};
    for (at::Tensor& input : inputs) input = input.to(at::kCUDA, type);
    check_gradients(
        inputs, operation,
        [&](const Tensors& x) {
          Tensors host;
          for (const at::Tensor& each : x) host.push_back(each.cpu());
          return operation(host).to(at::kCUDA);
        },
        type == at::kFloat ? 1e-4 : 2e-2);
  }
}

TEST_CASE("gpt-oss' activation on the GPU, clamped on both sides") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(65);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const auto& [rows, n] : {std::pair{1001, 2880}, {3, 8}, {70, 104}, {5, 20}}) {
      INFO("rows " << rows << " n " << n << " type " << at::toString(type));
      const at::Tensor gate_up = (at::randn({rows, 2 * n}, kOnGpu) * 6).to(type);
      const at::Tensor gradient = at::randn({rows, n}, kOnGpu).to(type);
      const at::Tensor exact = gate_up.to(at::kDouble);
      const double tolerance = type == at::kHalf ? 1e-3 : 8e-3;
      CHECK(relative_error(ops::clamped_swiglu_forward(gate_up),
                           ops::reference::clamped_swiglu_forward(exact)) < tolerance);
      CHECK(relative_error(ops::clamped_swiglu_backward(gradient, gate_up),
                           ops::reference::clamped_swiglu_backward(gradient.to(at::kDouble),
                                                                   exact)) < tolerance);
      const at::Tensor bad = at::full_like(gate_up, NAN);
      CHECK(ops::clamped_swiglu_forward(bad).isnan().all().item<bool>());
    }
  }
}
