// SPDX-License-Identifier: MIT
#include "lib/testing/checked_player.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "tessera/backends/parallel_config.h"
#include "tessera/comm/local.h"
#include "tessera/core/error.h"

namespace tessera::testing {
namespace {

at::Tensor scalar(double value) { return at::full({}, value, at::kFloat); }

std::vector<RankResult> play_on(const MeshExtents& mesh, const StrategyFactory& make,
                                const ConformanceOptions& options, const Script& script) {
  std::vector<RankResult> results(static_cast<size_t>(rank_count(mesh)));
  run_local_ranks(rank_count(mesh), [&](Communicator& world) {
    CheckedPlayer player(world, mesh, make, options);
    script(player);
    results[static_cast<size_t>(world.rank())] = player.result();
  });
  return results;
}

}  // namespace

std::vector<MicroBatch> CheckedPlayer::share(uint64_t step) const {
  const int played = options_.mesh.data / data_ranks();  // more than one for the reference only
  std::vector<MicroBatch> batches;
  for (int rank = 0; rank < played; ++rank) {
    const auto place = static_cast<uint64_t>(data_rank() * played + rank);
    for (uint64_t m = 0; m < kMicroBatches; ++m) {
      const uint64_t seed = (step * 64 + place) * kMicroBatches + m;
      batches.push_back(options_.work.batch(kRows, seed).to(world().device()));
    }
  }
  return batches;
}

void CheckedPlayer::keep(const StepRecord& record) {
  result_.loss.push_back(record.loss);
  result_.targets.push_back(record.targets);
  result_.counters.push_back(*record.counters);
}

void CheckedPlayer::forward_backward(const std::vector<MicroBatch>& batches) {
  keep(Player::forward_backward(batches));
}

void CheckedPlayer::train(const std::vector<MicroBatch>& batches, const Changes& changes) {
  if (changes.loss_scale != 0) strategy().set_loss_scale(scalar(changes.loss_scale));
  forward_backward(batches);
  result_.norm.push_back(std::sqrt(strategy().grad_norm_squared().item<double>()));
  for (double factor : changes.factors) strategy().scale_gradients(scalar(factor));
  const double rate = changes.learning_rate < 0 ? options_.learning_rate : changes.learning_rate;
  strategy().optimizer_step(rate, changes.skip ? scalar(1) : at::Tensor());
}

void CheckedPlayer::evaluate(uint64_t step) {
  const EvaluationRecord record = Player::evaluate(share(step));
  keep({.loss = record.loss, .targets = record.targets, .counters = record.counters});
}

void CheckedPlayer::read_parameters() {
  std::string twice;
  result_.parameters = parameters_of(strategy(), &twice);
  expect(twice.empty(), twice + " is visited twice");
}

void CheckedPlayer::read_gradients() {
  std::string twice;
  result_.gradients = gradients_of(strategy(), &twice);
  expect(twice.empty(), "the gradient of " + twice + " is visited twice");
}

void CheckedPlayer::expect(bool condition, const std::string& violation) {
  if (!condition) result_.violations.push_back(violation);
}

void CheckedPlayer::expect_error(const std::string& what, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error&) {
    return;
  }
  expect(false, what + " is not refused with a tessera::Error");
}

std::vector<RankResult> Subject::play(const Script& script) const {
  return play_on(options.mesh, make, options, script);
}

RankResult Subject::play_reference(const Script& script) const {
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

}  // namespace tessera::testing
