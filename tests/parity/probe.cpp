// SPDX-License-Identifier: MIT
#include "tests/parity/probe.h"

#include <ATen/core/grad_mode.h>

#include "lib/testing/player.h"
#include "tests/support/ranks.hpp"

namespace tessera::testing {
namespace {

// The loss is 0. Its parameter gets the gradient that micro_batch.input_ids selects, as from a
// hand-written block: added to .grad, times the loss gradient without its division by targets.
class Probe final : public Block {
 public:
  Probe(std::vector<at::Tensor> parts, double targets)
      : parts_(std::move(parts)),
        targets_(targets),
        weight_(at::zeros({parts_.front().numel()}).set_requires_grad(true)) {}
  at::Tensor forward(const at::Tensor&, const MicroBatch& batch,
                     const BlockContext& context) override {
    if (context.loss_gradient.defined()) {
      const auto index = static_cast<size_t>(batch.input_ids.item<int64_t>());
      at::NoGradGuard no_grad;
      at::Tensor(weight_.grad()).add_(parts_[index] * (targets_ * context.loss_gradient));
    }
    return at::zeros({1});
  }
  std::vector<Parameter> parameters() override { return {{"weight", weight_}}; }

 private:
  std::vector<at::Tensor> parts_;
  double targets_;
  at::Tensor weight_;
};

}  // namespace

std::vector<ProbeResult> run_probe(const ParallelConfig& config, const GradientParts& parts) {
  const int ranks = static_cast<int>(parts.size());
  const double targets = static_cast<double>(parts.size() * parts.front().size());
  std::vector<ProbeResult> results(parts.size());
  test::run_ranks(ranks, [&](Communicator& world) {
    const auto rank = static_cast<size_t>(world.rank());
    const auto log = std::make_shared<std::vector<test::WireRecord>>();
    test::RecordingCommunicator comm(world.split(0, world.rank()), log);
    ModelSpec model;
    model.name = "probe";
    model.blocks.push_back({"probe", [&](const BuildContext&) -> std::unique_ptr<Block> {
                              return std::make_unique<Probe>(parts[rank], targets);
                            }});
    const Player player(comm, {model, {.data = ranks}, config});
    Strategy& strategy = player.strategy();
    std::vector<MicroBatch> micro_batches;
    for (size_t m = 0; m < parts[rank].size(); ++m) {
      MicroBatch batch{.input_ids = at::tensor({static_cast<int64_t>(m)}, at::kLong)};
      batch.sample_count = batch.token_count = batch.target_count = 1;
      micro_batches.push_back(batch);
    }
    const int64_t sent_before = player.bytes_sent();
    log->clear();
    strategy.forward_backward(micro_batches);
    results[rank].wire = *log;
    results[rank].bytes_sent = player.bytes_sent() - sent_before;
    strategy.visit_gradients(
        [&](const VisitedParameter& p) { results[rank].gradient = p.value.clone(); });
  });
  return results;
}

std::vector<test::WireRecord> gradient_reductions(const std::vector<test::WireRecord>& wire) {
  std::vector<test::WireRecord> found;
  for (const auto& record : wire) {
    const bool reduces = record.operation == "all_reduce" || record.operation == "reduce_scatter";
    const bool counts = record.values.scalar_type() == at::kDouble || record.values.numel() < 64;
    if (reduces && !counts && record.values.is_floating_point()) found.push_back(record);
  }
  return found;
}

}  // namespace tessera::testing
