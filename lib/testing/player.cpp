// SPDX-License-Identifier: MIT
#include "lib/testing/player.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "tessera/comm/local.h"
#include "tessera/core/error.h"

namespace tessera::testing {
namespace {

StepRecord read(const StepResult& result) {
  check(result.loss.numel() == 1 && result.target_count.numel() == 1, ErrorCode::kInternal,
        "loss and target_count are scalars");
  std::vector<double> counters;
  for (int64_t i = 0; i < result.counters.numel(); ++i) {
    counters.push_back(result.counters[i].item<double>());
  }
  return {.loss = result.loss.item<double>(),
          .targets = result.target_count.item<double>(),
          .counters = counters};
}

Named visited(Strategy& strategy, void (Strategy::*visit)(const ParameterVisitor&),
              std::string* twice) {
  Named values;
  (strategy.*visit)([&](const VisitedParameter& p) {
    const std::string name = p.block + "." + p.name;
    const at::Tensor value = p.value.detach().to(at::kCPU, at::kFloat, false, /*copy=*/true);
    if (values.emplace(name, value).second) return;
    check(twice != nullptr, ErrorCode::kInternal, name, " is visited twice");
    *twice = name;
  });
  return values;
}

}  // namespace

int rank_count(const MeshExtents& mesh) { return mesh.ranks(); }

Named parameters_of(Strategy& strategy, std::string* twice) {
  return visited(strategy, &Strategy::visit_parameters, twice);
}

Named gradients_of(Strategy& strategy, std::string* twice) {
  return visited(strategy, &Strategy::visit_gradients, twice);
}

Named buffers_of(Strategy& strategy) {
  Named values;
  strategy.visit_buffers([&](const VisitedParameter& buffer) {
    values[buffer.block + "." + buffer.name] = buffer.value.detach().cpu().clone();
  });
  return values;
}

std::vector<double> series(const RankRecord& record, double StepRecord::*number) {
  std::vector<double> values;
  for (const StepRecord& step : record.steps) values.push_back(step.*number);
  return values;
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

std::string difference(const Named& actual, const Named& expected, double tolerance,
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

Player::Player(Communicator& world, const MeshExtents& mesh, const StrategyFactory& make)
    : mesh_(world, mesh), strategy_(make(mesh_)) {}

Player::Player(Communicator& world, const Setup& setup)
    : mesh_(world, setup.mesh),
      strategy_(setup.make ? setup.make(mesh_) : make_strategy(setup.parallel, mesh_)) {
  attach(setup.model, setup.seed, setup.optimizer, setup.source);
}

int64_t Player::bytes_sent() const {
  int64_t sent = strategy_->extra_bytes_sent();
  for (const Axis axis : {Axis::kPipeline, Axis::kData, Axis::kTensor, Axis::kContext}) {
    sent += mesh_.axis(axis).bytes_sent();
  }
  if (mesh_.extent(Axis::kContext) > 1) sent += mesh_.sharding().bytes_sent();
  if (mesh_.extent(Axis::kExpert) > 1) {
    sent += mesh_.axis(Axis::kExpert).bytes_sent() + mesh_.expert_holders()->bytes_sent();
  }
  return sent;
}

void Player::attach(const ModelSpec& model, uint64_t seed, const OptimizerFactory& optimizer,
                    const TensorSource* source) {
  strategy_->attach(model, {.device = world().device(), .seed = seed, .source = source}, optimizer);
}

StepRecord Player::forward_backward(const std::vector<MicroBatch>& batches, int calls) {
  const size_t count = std::min(static_cast<size_t>(calls), batches.size());
  if (count <= 1) return read(strategy_->forward_backward(batches));
  StepRecord all;
  double loss_sum = 0;
  const std::span<const MicroBatch> rest(batches);
  const size_t each = batches.size() / count;
  for (size_t call = 0; call < count; ++call) {
    const auto part =
        call + 1 < count ? rest.subspan(call * each, each) : rest.subspan(call * each);
    const StepRecord one = read(strategy_->forward_backward(part, {.accumulate = true}));
    loss_sum += one.loss * one.targets;
    all.targets += one.targets;
    if (!all.counters) {
      all.counters = one.counters;
    } else {
      for (size_t i = 0; one.counters && i < one.counters->size(); ++i) {
        (*all.counters)[i] += (*one.counters)[i];
      }
    }
  }
  all.loss = all.targets == 0 ? 0 : loss_sum / all.targets;
  return all;
}

StepRecord Player::train(const std::vector<MicroBatch>& batches, const StepOptions& options) {
  StepRecord step = forward_backward(batches, options.calls);
  const at::Tensor norm = strategy_->grad_norm_squared().sqrt() / options.loss_scale;
  at::Tensor clip = at::ones_like(norm);
  if (options.max_norm > 0) clip = (options.max_norm / (norm + 1e-6)).clamp_max(1.0);
  if (options.visits) step.gradients = gradients_of(*strategy_);
  const at::Tensor update_scale = clip / options.loss_scale;
  strategy_->scale_gradients(update_scale);
  at::Tensor skip = norm.isfinite().logical_not().to(at::kFloat);
  if (options.skip) skip = at::ones_like(skip);
  strategy_->optimizer_step(options.learning_rate, skip);
  step.norm = norm.item<double>();
  step.clip = clip.item<double>();
  step.loss_scale = options.loss_scale;
  step.update_scale = update_scale.item<double>();
  step.learning_rate = options.learning_rate;
  step.skipped = skip.item<double>() != 0;
  if (options.visits) step.parameters = parameters_of(*strategy_);
  if (options.visits) step.buffers = buffers_of(*strategy_);
  return step;
}

EvaluationRecord Player::evaluate(const std::vector<MicroBatch>& batches) {
  const StepRecord read_result = read(strategy_->evaluate(batches));
  return {
      .loss = read_result.loss, .targets = read_result.targets, .counters = *read_result.counters};
}

void play(const Setup& setup, const PlayerScript& script) {
  run_local_ranks(rank_count(setup.mesh), [&](Communicator& world) {
    Player player(world, setup);
    script(player);
  });
}

}  // namespace tessera::testing
