#include "lib/testing/player.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "tessera/backends/parallel_config.h"
#include "tessera/comm/local.h"
#include "tessera/core/error.h"

namespace tessera::testing {
namespace {

at::Tensor scalar(double value) { return at::full({}, value, at::kFloat); }

std::vector<Outcome> play_on(const MeshExtents& mesh, const StrategyFactory& make,
                             const ConformanceOptions& options, const Script& script) {
  const int size = mesh.pipeline * mesh.data * mesh.tensor;
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  run_local_ranks(size, [&](Communicator& world) {
    Player player(world, mesh, make, options);
    script(player);
    outcomes[static_cast<size_t>(world.rank())] = player.outcome();
  });
  return outcomes;
}

}  // namespace

Player::Player(Communicator& world, const MeshExtents& mesh, const StrategyFactory& make,
               const ConformanceOptions& options)
    : options_(options), mesh_(world, mesh), strategy_(make(mesh_)) {}

void Player::attach() { attach(options_.optimizer); }

void Player::attach(const OptimizerFactory& optimizer) {
  strategy_->attach(options_.work.model, {.device = mesh_.world().device(), .seed = kSeed},
                    optimizer);
}

std::vector<MicroBatch> Player::share(uint64_t step) const {
  const int ranks = mesh_.extent(Axis::kData);
  const int played = options_.mesh.data / ranks;  // more than one only for the reference
  std::vector<MicroBatch> batches;
  for (int rank = 0; rank < played; ++rank) {
    const auto data_rank = static_cast<uint64_t>(mesh_.coordinate(Axis::kData) * played + rank);
    for (uint64_t m = 0; m < kMicroBatches; ++m) {
      const uint64_t seed = (step * 64 + data_rank) * kMicroBatches + m;
      batches.push_back(options_.work.batch(kRows, seed).to(mesh_.world().device()));
    }
  }
  return batches;
}

void Player::keep(const StepResult& result) {
  expect(result.loss.numel() == 1 && result.target_count.numel() == 1,
         "loss and target_count are scalars");
  outcome_.loss.push_back(result.loss.item<double>());
  outcome_.targets.push_back(result.target_count.item<double>());
  std::vector<double>& counters = outcome_.counters.emplace_back();
  for (int64_t i = 0; i < result.counters.numel(); ++i) {
    counters.push_back(result.counters[i].item<double>());
  }
}

void Player::forward_backward(const std::vector<MicroBatch>& batches) {
  keep(strategy_->forward_backward(batches));
}

void Player::train(const std::vector<MicroBatch>& batches, const StepOptions& step) {
  if (step.loss_scale != 0) strategy_->set_loss_scale(scalar(step.loss_scale));
  forward_backward(batches);
  outcome_.norm.push_back(std::sqrt(strategy_->grad_norm_squared().item<double>()));
  for (double factor : step.factors) strategy_->scale_gradients(scalar(factor));
  const double rate = step.learning_rate < 0 ? options_.learning_rate : step.learning_rate;
  strategy_->optimizer_step(rate, step.skip ? scalar(1) : at::Tensor());
}

void Player::evaluate(uint64_t step) { keep(strategy_->evaluate(share(step))); }

void Player::read_parameters() {
  outcome_.parameters.clear();
  strategy_->visit_parameters([&](const VisitedParameter& p) {
    const std::string name = p.block + "." + p.name;
    const bool first =
        outcome_.parameters.emplace(name, p.value.to(at::kCPU, at::kFloat).clone()).second;
    expect(first, name + " is visited twice");
  });
}

void Player::read_gradients() {
  outcome_.gradients.clear();
  strategy_->visit_gradients([&](const VisitedParameter& p) {
    const std::string name = p.block + "." + p.name;
    const bool first =
        outcome_.gradients.emplace(name, p.value.to(at::kCPU, at::kFloat).clone()).second;
    expect(first, "the gradient of " + name + " is visited twice");
  });
}

void Player::expect(bool condition, const std::string& finding) {
  if (!condition) outcome_.findings.push_back(finding);
}

void Player::expect_error(const std::string& what, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error&) {
    return;
  }
  expect(false, what + " is not refused with a tessera::Error");
}

std::vector<Outcome> Subject::play(const Script& script) const {
  return play_on(options.mesh, make, options, script);
}

Outcome Subject::play_reference(const Script& script) const {
  const StrategyFactory single = [](const DeviceMesh& mesh) {
    return make_strategy({.strategy = "single"}, mesh);
  };
  return play_on({}, single, options, script).front();
}

MicroBatch joined(const std::vector<MicroBatch>& batches) {
  std::vector<at::Tensor> ids, labels, masks;
  MicroBatch all;
  for (const MicroBatch& batch : batches) {
    ids.push_back(batch.input_ids);
    labels.push_back(batch.labels);
    if (batch.attention_mask.defined()) masks.push_back(batch.attention_mask);
    all.sample_count += batch.sample_count;
    all.token_count += batch.token_count;
    all.target_count += batch.target_count;
  }
  all.input_ids = at::cat(ids);
  all.labels = at::cat(labels);
  if (!masks.empty()) all.attention_mask = at::cat(masks);
  return all;
}

MicroBatch unsupervised(MicroBatch batch) {
  batch.labels = at::full_like(batch.labels, kIgnoredLabel);
  batch.target_count = 0;
  return batch;
}

std::string difference(const std::vector<double>& actual, const std::vector<double>& expected,
                       double tolerance) {
  if (actual.size() != expected.size()) {
    return concat(actual.size(), " values instead of ", expected.size());
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    if (error <= tolerance * std::max(std::abs(expected[i]), 1e-12)) continue;
    return concat(actual[i], " instead of ", expected[i], ", number ", i + 1);
  }
  return "";
}

std::string difference(const std::map<std::string, at::Tensor>& actual,
                       const std::map<std::string, at::Tensor>& expected, double tolerance,
                       double least_norm) {
  for (const auto& [name, value] : actual) {
    if (!expected.contains(name)) return concat("unknown ", name);
  }
  for (const auto& [name, value] : expected) {
    if (!actual.contains(name)) return concat(name, " is missing");
    const at::Tensor& other = actual.at(name);
    if (other.sizes() != value.sizes()) {
      return concat(name, " has shape ", other.sizes(), " instead of ", value.sizes());
    }
    if (other.equal(value)) continue;
    const at::Tensor wide = value.to(at::kDouble);
    const double norm = std::max(wide.norm().item<double>(), least_norm);
    const double error = (other - wide).norm().item<double>() / norm;
    if (error <= tolerance && tolerance > 0) continue;
    return concat(name, " differs by ", error, " relative");
  }
  return "";
}

}  // namespace tessera::testing
