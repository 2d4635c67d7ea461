// SPDX-License-Identifier: MIT
#include "tessera/plan/dry_step.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <optional>
#include <utility>

#include "lib/comm/operation_scope.h"
#include "lib/plan/block_outputs.h"
#include "lib/plan/meta_kernels.h"
#include "lib/plan/step_memory.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/comm/fake_mesh.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int64_t kRoundingOfGpus = 512;  // of LibTorch's caching allocator

std::vector<MicroBatch> without_memory(const std::vector<MicroBatch>& given) {
  std::vector<MicroBatch> batches;
  for (const MicroBatch& batch : given) {
    batches.push_back(batch.to(at::kMeta));
    // Nobody could count them.
    batches.back().target_count = std::max<int64_t>(1, batch.target_count);
  }
  return batches;
}

StepLedger run(const DryStep& step) {
  register_meta_kernels();
  const bool on_gpu = step.device == at::kCUDA;
  const MetaStandsFor stands(step.device);
  const FakeMesh fake(step.mesh, step.coordinate);
  BlockOutputs outputs(step.model, step.mesh.tensor, step.coordinate.tensor, step.parallel);
  StepMemory memory(on_gpu ? kRoundingOfGpus : 1);
  const std::unique_ptr<Strategy> strategy =
      step.strategy ? step.strategy(fake.mesh()) : make_strategy(step.parallel, fake.mesh());
  BuildContext context{.device = at::kMeta};
  context.output_of = [&](size_t block, const MicroBatch& batch) {
    return outputs.of(block, batch);
  };
  strategy->attach(step.model, context, step.optimizer);
  StepLedger ledger{.attach_peak_bytes = memory.peak().bytes};
  const int64_t state = memory.live_bytes();
  const std::vector<MicroBatch> batches = without_memory(step.micro_batches);
  ledger.input_bytes = memory.live_bytes() - state;
  const auto train = [&] {
    fake.ledger().clear();
    memory.begin_step();
    strategy->forward_backward(batches);
    strategy->grad_norm_squared();
    strategy->optimizer_step(/*learning_rate=*/1e-3);
  };
  train();
  train();
  ledger.state = strategy->memory();
  ledger.device = memory.peak();
  ledger.host = memory.peak(/*on_host=*/true);
  ledger.constant_bytes = ledger.device.lasting - state - ledger.input_bytes;
  ledger.communication = fake.ledger();
  return ledger;
}

}  // namespace

StepLedger dry_step(const DryStep& step) {
  check(!step.micro_batches.empty(), ErrorCode::kInvalidArgument,
        "dry_step: a step without micro-batches");
  try {
    return run(step);
  } catch (const c10::Error& error) {
    fail(ErrorCode::kInvalidArgument, "dry_step: model ", step.model.name,
         " cannot run without memory: ", error.what_without_backtrace(),
         ". Blocks must not read values of tensors, and need operators that LibTorch has for meta "
         "tensors");
  }
}

}  // namespace tessera
