// SPDX-License-Identifier: MIT
// The BLOOM block on a tensor axis, composed and hand-scheduled, against the unsharded block.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "tessera/model/tensor_parallel.h"
#include "tessera/ops/functional.h"
#include "tests/support/bloom_block.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;
using tessera::test::require;
using Tensors = std::vector<at::Tensor>;

namespace {

constexpr int64_t kWidth = 24, kAllHeads = 6, kBatch = 2, kSequence = 5;
using Version = decltype(&bloom_block_fused);

// In the order of bloom_weights(), with each tensor's cut.
Tensors draw_weights() {
  const auto matrix = [](int64_t out, int64_t in) {
    return at::randn({out, in}) / std::sqrt(double(in));
  };
  const auto vector = [](int64_t n, double centre) { return centre + 0.3 * at::randn({n}); };
  const int64_t h = kWidth;
  return {vector(h, 1),     vector(h, 0),     matrix(3 * h, h), vector(3 * h, 0),
          matrix(h, h),     vector(h, 0),     vector(h, 1),     vector(h, 0),
          matrix(4 * h, h), vector(4 * h, 0), matrix(h, 4 * h), vector(h, 0)};
}
constexpr int kDims[] = {-1, -1, 0, 0, 1, -1, -1, -1, 0, 0, 1, -1};

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(true); }

void require_close(const at::Tensor& a, const at::Tensor& b, double tolerance,
                   const std::string& what) {
  require(a.defined() && a.sizes() == b.sizes(), what, " has another shape than ", b.sizes());
  const double error = (a - b).norm().item<double>(), norm = b.norm().item<double>();
  require(error <= tolerance * norm, what, " differs by ", error / norm);
}

struct Case {
  at::Tensor mask;
  bool post = false, sequence_parallel = false, defined = false, drops = false;

  BloomBlockTraining dropout(const TensorAxis& axis) const {
    if (!drops) return {};
    const int64_t own = axis.rows_per_rank(kBatch * kSequence) * kWidth;
    const int64_t first = sequence_parallel ? axis.rank() * own : 0;
    return {{0.3, 33, axis.rank() * kAllHeads / axis.size()},
            {ops::Dropout{0.2, 31, first}, ops::Dropout{0.4, 32, first}}};
  }
};

struct Whole {
  Tensors weights = draw_weights(), gradients;
  at::Tensor hidden = at::randn({kBatch, kSequence, kWidth});
  at::Tensor gradient = at::randn({kBatch, kSequence, kWidth}), output, hidden_gradient;
};

Whole run_whole(const Case& test) {
  Whole whole;
  Tensors weights;
  for (const auto& w : whole.weights) weights.push_back(leaf(w));
  const at::Tensor hidden = leaf(whole.hidden);
  const at::Tensor output =
      bloom_block_composed(hidden, bloom_weights(weights), ops::alibi_slopes(kAllHeads), test.mask,
                           1e-5, test.post, {}, {}, {}, test.dropout({}));
  torch::autograd::backward({output}, {whole.gradient});
  whole.output = output.detach();
  whole.hidden_gradient = hidden.grad();
  for (const auto& w : weights) whole.gradients.push_back(w.grad());
  return whole;
}

void run_part(Communicator& comm, Version version, const Case& test, const Whole& whole) {
  const BuildContext context{.tensor = &comm, .sequence_parallel = test.sequence_parallel};
  const TensorAxis axis(context);
  const int64_t heads = kAllHeads / axis.size();
  const at::Tensor slopes =
      ops::alibi_slopes(kAllHeads).narrow(0, axis.rank() * heads, heads).contiguous();
  std::vector<Parameter> parameters;
  Tensors weights;
  for (size_t i = 0; i < whole.weights.size(); ++i) {
    parameters.push_back(
        cut_parameter("w", whole.weights[i].clone(), true, {.dim = kDims[i]}, axis));
    weights.push_back(parameters.back().tensor);
    if (test.defined) weights.back().mutable_grad() = at::full_like(weights.back(), 0.5);
  }
  const auto own = [&](const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    return test.sequence_parallel ? own_tokens(x, axis) : x;
  };
  const at::Tensor hidden = leaf(own(whole.hidden));
  const at::Tensor output = version(hidden, bloom_weights(weights), slopes, test.mask, 1e-5,
                                    test.post, {kBatch, kSequence}, axis, {}, test.dropout(axis));
  const at::Tensor real = own(at::ones({kBatch, kSequence, 1}));  // padding rows hold biases
  require_close(output.detach() * real, own(whole.output), 1e-5, "output");
  torch::autograd::backward({output}, {own(whole.gradient)});
  require_close(hidden.grad(), own(whole.hidden_gradient), 2e-5, "gradient of hidden");
  for (size_t i = 0; i < weights.size(); ++i) {
    at::Tensor gradient = test.defined ? weights[i].grad() - 0.5 : weights[i].grad();
    const at::NoGradGuard no_grad;
    if (parameters[i].placement.partial()) comm.all_reduce(gradient = gradient.clone()).wait();
    gradient = gather_whole(gradient, parameters[i].placement);
    require_close(gradient, whole.gradients[i], 2e-5, "gradient of weight " + std::to_string(i));
  }
  const at::NoGradGuard no_grad;
  const at::Tensor evaluated =
      version(hidden, bloom_weights(weights), slopes, test.mask, 1e-5, test.post,
              {kBatch, kSequence}, axis, {}, test.dropout(axis));
  require_close(evaluated, output.detach(), 1e-6, "output without gradients");
}

}  // namespace

TEST_CASE("the BLOOM block shared by ranks equals the whole one") {
  at::manual_seed(5);
  at::Tensor mask = at::ones({kBatch, kSequence}, at::kBool);
  mask[1].narrow(0, 3, 2).fill_(false);
  std::vector<Case> cases{{.mask = {}, .drops = true}, {.mask = mask, .post = true, .drops = true}};
  for (const at::Tensor& m : {at::Tensor(), mask}) {
    for (bool post : {false, true}) cases.push_back({.mask = m, .post = post});
  }
  for (Case test : cases) {
    const Whole whole = run_whole(test);
    for (bool sequence_parallel : {false, true}) {
      for (bool defined : {false, true}) {
        test.sequence_parallel = sequence_parallel;
        test.defined = defined;
        for (int ranks : {2, 3}) {
          for (Version version : {&bloom_block_composed, &bloom_block_fused}) {
            INFO("ranks " << ranks << " sequence parallel " << sequence_parallel << " post "
                          << test.post << " dropout " << test.drops << " fused "
                          << (version == &bloom_block_fused));
            CHECK_NOTHROW(test::run_ranks(
                ranks, [&](Communicator& comm) { run_part(comm, version, test, whole); }));
          }
        }
      }
    }
  }
}
