// SPDX-License-Identifier: MIT
// Training in bf16 and fp16 agrees with torch on transformers' model, with fp32 masters and torch's
// GradScaler (make_sixteen_bit.py), in every strategy.
//
// [Note: tolerances in 16 bit]
// Both sides compute the same function and round 16-bit values on the way, but at different places:
// an operation may be fused on one side only, and sums over micro-batches and ranks are rounded
// after each addition. Every rounding is off by at most u of its value (bf16 keeps 8 bits: u =
// 2^-8; fp16 11: u = 2^-11). Roundings are independent with mean zero to first order, so n
// consecutive ones are off by sqrt(n) u of the result (Higham, Mary 2019, "A new approach to
// probabilistic rounding error analysis"). n counts the 16-bit values on the longest path:
//   loss: weight 1, embedding and its norm 2, per layer 12 (norm, QKV, scores, probabilities,
//     context, dense, residual, norm, up, GELU, down, residual), final norm and logits 2: 29 for
//     two layers; the loss itself is summed in fp32;
//   gradients: the same path and back, 58, and one rounding each for every micro-batch's part, the
//     sum over ranks and the tied table's second use: + accumulation + 2.
// Norms over many elements are off by less, as roundings average out; nothing here relies on it. A
// step's update is a ratio of gradients, first over the root of second moment: at most twice their
// relative error, which bounds the change of a parameter. Its effect on later losses is of second
// order: the loss changes by a fifth over all steps.
// Overflow of a step depends on no rounding: make_sixteen_bit.py checks that the largest gradient
// differs from fp16's limit by more than 10 %. So scales and learning rates are equal.
#include <ATen/ATen.h>

#include <cmath>

#include "tessera/checkpoint/huggingface.h"
#include "tests/parity/huggingface/fixtures.h"
#include "tests/parity/parity.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int kLayers = 2;
constexpr int kForwardRoundings = 1 + 2 + 12 * kLayers + 2;

struct Tolerance {
  double loss, gradient, change;
};

Tolerance tolerance_of(const ParityRow& row) {
  const double u = row.parallel.precision.parameter == at::kBFloat16 ? 0x1p-8 : 0x1p-11;
  const double gradient = std::sqrt(2 * kForwardRoundings + row.accumulation + 2) * u;
  return {std::sqrt(kForwardRoundings) * u, gradient, 2 * gradient};
}

struct WorstInSixteenBits {
  double loss = 0, gradient = 0, change = 0;
};

void require_close_in_16_bits(double actual, double expected, double tolerance,
                              const std::string& what, double& worst) {
  const double relative = std::abs(actual - expected) / std::abs(expected);
  worst = std::max(worst, relative);
  test::require(relative <= tolerance, what, " is ", actual, ", torch has ", expected,
                "; tolerance ", tolerance);
}

void require_same_training(const ParityRow& row, const RankRecord& result, const Fixture& fixture,
                           const TensorSource& source, const Json& expected,
                           WorstInSixteenBits& worst) {
  const Tolerance tolerance = tolerance_of(row);
  const auto loss = numbers(expected.at("loss")), norm = numbers(expected.at("grad_norm"));
  test::require(result.steps.size() == loss.size(), result.steps.size(), " steps were made");
  test::require(series(result, &StepRecord::loss_scale) == numbers(expected.at("loss_scale")),
                "loss scales differ");
  const auto rates = numbers(expected.at("learning_rate"));
  for (size_t i = 0; i < loss.size(); ++i) {
    const std::string step = concat(" of step ", i + 1);
    require_close_in_16_bits(result.steps[i].loss, loss[i], tolerance.loss, "loss" + step,
                             worst.loss);
    test::require(std::abs(result.steps[i].learning_rate - rates[i]) <= 1e-12, "learning rate",
                  step, " is ", result.steps[i].learning_rate, ", torch has ", rates[i]);
    const bool skipped = std::isnan(norm[i]);
    test::require(std::isfinite(result.steps[i].norm) != skipped, "step ", i + 1,
                  skipped ? " was made" : " was skipped");
    if (skipped) continue;
    require_close_in_16_bits(result.steps[i].norm, norm[i], tolerance.gradient,
                             "gradient norm" + step, worst.gradient);
  }
  require_close_in_16_bits(result.evaluations.back().loss, expected.at("eval_loss").as_double(),
                           tolerance.loss, "evaluation loss", worst.loss);
  for (const auto& [key, value] : result.final) {
    const std::string name = checkpoint_name(fixture.model, key);
    const at::Tensor before = source.read(name, value.sizes());
    const at::Tensor change =
        without_key_bias(name, value.to(at::kDouble), fixture.config().heads) -
        without_key_bias(name, before.to(at::kDouble), fixture.config().heads);
    const Json numbers = expected.at("final").at(name);
    const double size = numbers.at("change").as_double();
    require_close_in_16_bits(change.norm().item<double>(), size, tolerance.change,
                             "change of " + name, worst.change);
  }
}

// bf16 also with gradients and collectives in fp32, which are as near to torch's numbers.
std::vector<ParityRow> rows_for(at::ScalarType dtype) {
  std::vector<ParityRow> rows;
  for (const std::string strategy : {"single", "ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    for (const int ranks : {1, 2, 4}) {
      if (strategy == "single" ? ranks > 1 : ranks == 1) continue;
      ParityRow row{.ranks = ranks, .accumulation = ranks == 4 ? 1 : 3};
      row.parallel = {.strategy = strategy, .precision = {.parameter = dtype}};
      row.parallel.persistence_threshold = 100;
      rows.push_back(row);
      if (dtype != at::kBFloat16 || ranks == 4) continue;
      row.parallel.precision.gradient = at::kFloat;
      rows.push_back(row);
      row.parallel.precision.reduce = dtype;
      rows.push_back(row);
    }
  }
  rows.push_back({.parallel = {.precision = {.parameter = dtype}}});
  rows.push_back({.parallel = {.precision = {.parameter = dtype}},
                  .ranks = 2,
                  .accumulation = 4,
                  .pipeline = 2});
  rows.push_back({.parallel = {.precision = {.parameter = dtype}}, .ranks = 2, .tensor = 2});
  return rows;
}

void check_dtype(at::ScalarType dtype, const std::string& file) {
  const Fixture fixture = load_fixture("causal");
  const HuggingFaceDirectory source(fixture.directory);
  const Json expected = Json::parse_file(fixture.directory + "/" + file);
  const Json training = expected.at("training"), scaler = expected.at("scaler");
  const size_t steps = numbers(expected.at("loss")).size();
  const auto batches = fixture_batches(fixture);
  ParityWork work{.model = fixture.model};
  for (size_t i = 0; i < steps; ++i) work.global_batches.push_back(batches[i % batches.size()]);
  work.source = &source;
  work.weight_decay = training.at("weight_decay").as_double();
  work.trainer.max_grad_norm = training.at("max_grad_norm").as_double();
  work.trainer.schedule = {.peak = training.at("learning_rate").as_double(),
                           .warmup_steps = training.at("warmup_steps").as_int64(),
                           .total_steps = static_cast<int64_t>(steps)};
  work.trainer.loss_scaler = {.enabled = dtype == at::kHalf,
                              .initial_scale = scaler.at("init_scale").as_double(),
                              .growth_factor = scaler.at("growth_factor").as_double(),
                              .backoff_factor = scaler.at("backoff_factor").as_double(),
                              .growth_interval = scaler.at("growth_interval").as_int64()};
  WorstInSixteenBits worst;
  const std::vector<ParityRow> rows = rows_for(dtype);
  for (const ParityRow& row : rows) {
    INFO(row.name());
    test::run_ranks(row.ranks, [&](Communicator& comm) {
      const RankRecord result = run_parity(comm, row, work);
      if (comm.rank() > 0) return;
      require_same_training(row, result, fixture, source, expected, worst);
    });
  }
  const Tolerance tolerance = tolerance_of(rows.front());
  std::cout << file << ": " << rows.size()
            << " layouts against torch, worst relative difference (of "
            << "what is allowed): loss " << worst.loss << " (" << tolerance.loss
            << "), gradient norm " << worst.gradient << " (" << tolerance.gradient << "), change "
            << worst.change << " (" << tolerance.change << ")\n";
}

}  // namespace

TEST_CASE("bf16 trains as torch does under every strategy") {
  check_dtype(at::kBFloat16, "bf16.json");
}

TEST_CASE("fp16 trains, skips and scales as torch with its GradScaler under every strategy") {
  check_dtype(at::kHalf, "fp16.json");
}
