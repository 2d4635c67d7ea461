// What a user's own project looks like: two in-process ranks train a small BLOOM under ZeRO-2.
#include <ATen/ATen.h>
#include <tessera/backends/parallel_config.h>
#include <tessera/comm/local.h>
#include <tessera/models/bloom.h>
#include <tessera/optim/adamw.h>
#include <tessera/plan/layout_cost.h>
#include <tessera/train/trainer.h>

#include <cstdio>

int main() {
  using namespace tessera;
  double first = 0, last = 0;
  run_local_ranks(2, [&](Communicator& world) {
    DeviceMesh mesh(world, {.data = world.size()});
    auto strategy = make_strategy({.strategy = "zero2"}, mesh);
    BloomConfig config = BloomConfig::preset("bloom-tiny");
    config.vocabulary = 100;
    const ModelSpec model = make_bloom_causal(config);
    strategy->attach(model, {.seed = 1}, make_adamw({}));
    if (world.rank() == 0) {
      const LayoutPlan plan{.parallel = {.strategy = "zero2"}, .mesh = {.data = 2}, .model = model};
      std::printf("%.0f bytes by formula\n", layout_cost(plan).device_bytes());
    }
    TrainerOptions options;
    options.max_steps = 5;
    options.schedule = {.kind = LrScheduleKind::kConstant, .peak = 1e-2};
    Trainer trainer(*strategy, options);
    const at::Tensor ids = at::arange(16).view({2, 8});
    const MicroBatch batch = make_micro_batch(ids, ids + 1);
    trainer.fit([&] { return std::vector<MicroBatch>{batch}; },
                [&](const StepReport& report) {
                  if (world.rank() != 0) return;
                  (report.step == 1 ? first : last) = report.loss;
                });
  });
  std::printf("loss %.4f -> %.4f\n", first, last);
  return last < first ? 0 : 1;
}
