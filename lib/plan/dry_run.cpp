// SPDX-License-Identifier: MIT
#include "lib/plan/dry_run.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "lib/plan/meta_kernels.h"
#include "lib/plan/step_work.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int64_t kRoundingOfGpus = 512;  // rounding of LibTorch's caching allocator

// Key of everything that a block's pass depends on beside its inputs.
std::string context_of(const DryStep& step) {
  const PrecisionConfig& precision = step.parallel.precision;
  return concat(step.mesh.tensor, " ", step.coordinate.tensor, " ", step.parallel.sequence_parallel,
                " ", step.mesh.context, " ", step.coordinate.context, " ", step.mesh.expert, " ",
                static_cast<int>(step.parallel.context_attention), " ", precision.parameter, " ",
                precision.gradient_dtype(), " ", static_cast<int>(step.device));
}

}  // namespace

DryRun::DryRun(const DryStep& step, const FakeMesh::Wrap& wrap, EqualPasses* passes)
    : model_(step.model.name),
      stands_(step.device),
      mesh_(step.mesh, step.coordinate, wrap),
      outputs_(step.model, step.mesh.tensor, step.coordinate.tensor, step.parallel),
      memory_(step.device == at::kCUDA ? kRoundingOfGpus : 1),
      strategy_(step.strategy ? step.strategy(mesh_.mesh())
                              : make_strategy(step.parallel, mesh_.mesh())) {
  register_meta_kernels();
  BuildContext context{.device = at::kMeta};
  context.output_of = [this](size_t block, const MicroBatch& batch) {
    return outputs_.of(block, batch);
  };
  ModelSpec model = step.model;
  if (passes != nullptr) {
    model = with_equal_passes(std::move(model), *passes, context_of(step),
                              /*with_head=*/!step.parallel.pipeline.shared_vocabulary, memory_,
                              mesh_.ledger());
  }
  guarded([&] { strategy_->attach(model, context, step.optimizer); });
  attach_peak_bytes_ = memory_.peak().bytes;
}

DryRun::~DryRun() = default;

std::vector<MicroBatch> without_memory(const std::vector<MicroBatch>& micro_batches) {
  std::vector<MicroBatch> batches;
  for (const MicroBatch& batch : micro_batches) {
    batches.push_back(batch.to(at::kMeta));
    // A positive count, since meta tensors have no values to count.
    batches.back().target_count = std::max<int64_t>(1, batch.target_count);
  }
  return batches;
}

void DryRun::once(const std::function<void(Strategy&)>& work) {
  mesh_.ledger().clear();
  memory_.begin_step();
  guarded([&] { work(*strategy_); });
}

void DryRun::run(const std::function<void(Strategy&)>& first,
                 const std::function<void(Strategy&)>& work) {
  guarded([&] { first(*strategy_); });
  once(work);
}

void DryRun::guarded(const std::function<void()>& work) const {
  try {
    work();
  } catch (const c10::Error& error) {
    const std::string where = memory_.last_purpose();
    throw NotDry(
        concat("model ", model_,
               " cannot run without memory: ", meta_refusal(error.what_without_backtrace()),
               where.empty() ? "" : " (at ", where, where.empty() ? "" : ")",
               ". Blocks must not read values of tensors, and need operators that LibTorch "
               "has for meta tensors"));
  }
}

StepLedger dry_step(const DryStep& step) {
  check(!step.micro_batches.empty(), ErrorCode::kInvalidArgument,
        "dry step: it has no micro-batches");
  DryRun run(step);
  const int64_t state = run.memory().live_bytes();
  const std::vector<MicroBatch> batches = without_memory(step.micro_batches);
  StepLedger ledger{.input_bytes = run.memory().live_bytes() - state};
  StepWork work;
  run.repeat([&](Strategy& strategy) {
    work.clear();
    strategy.forward_backward(batches);
    strategy.grad_norm_squared();
    strategy.optimizer_step(/*learning_rate=*/1e-3);
  });
  ledger.attach_peak_bytes = run.attach_peak_bytes();
  ledger.state = run.strategy().memory();
  ledger.device = run.memory().peak();
  ledger.host = run.memory().peak(/*on_host=*/true);
  ledger.constant_bytes = ledger.device.lasting - state - ledger.input_bytes;
  ledger.communication = run.communication();
  ledger.work = work.ledger();
  return ledger;
}

}  // namespace tessera
