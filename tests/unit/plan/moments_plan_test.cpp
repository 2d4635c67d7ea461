// SPDX-License-Identifier: MIT
// Memory of ranks with moments in bf16 and 8 bits, compared with dry runs.
#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "lib/plan/dry_run.h"
#include "lib/testing/fuzz_run.h"
#include "lib/testing/player.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/adamw.h"
#include "tessera/plan/dry_step.h"
#include "tests/support/messages.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

// By rank, after a step.
std::vector<StrategyMemory> held_by(const FuzzCase& c, const FuzzModel& model,
                                    const OptimizerFactory& optimizer) {
  std::vector<StrategyMemory> held(static_cast<size_t>(rank_count(c.mesh)));
  play({.model = model.model, .mesh = c.mesh, .parallel = c.parallel, .optimizer = optimizer},
       [&](Player& player) {
         const MicroBatch drawn = model.batch(2, 5, 1);
         player.train({make_micro_batch(drawn.input_ids, drawn.labels)});
         held[static_cast<size_t>(player.rank())] = player.strategy().memory();
       });
  return held;
}

void check_plans(const FuzzModel& model, MomentsDtype moments, int64_t min_8bit_size = 100) {
  const OptimizerFactory optimizer =
      make_adamw({.moments = moments, .min_8bit_size = min_8bit_size});
  for (const std::string line :
       {"strategy=single", "strategy=ddp data=2", "strategy=zero1 data=4",
        "strategy=zero3 data=4 persistence_threshold=200",
        "strategy=fsdp data=4 fsdp_unit_numel=900", "strategy=fsdp data=4 shard_ranks=2",
        "strategy=zero1 data=2 offload=optimizer offload_step=host",
        "strategy=zero1 data=2 offload=optimizer offload_step=host offload_device_bytes=9000",
        "strategy=zero2 data=2 offload=optimizer offload_step=device chunk_numel=100",
        "strategy=zero2 data=2 offload=optimizer offload_step=both chunk_numel=100 dtype=bf16",
        "strategy=zero3 data=4 offload=optimizer+params offload_step=device chunk_numel=700 "
        "dtype=bf16",
        "strategy=zero1 pipeline=2 data=2 offload=optimizer offload_step=host dtype=bf16"}) {
    INFO(line);
    const FuzzCase c = parse_case(line);
    const std::vector<StrategyMemory> all = held_by(c, model, optimizer);
    for (size_t rank = 0; rank < all.size(); ++rank) {
      INFO("rank " << rank);
      const StrategyMemory& held = all[rank];
      const DryRun run({.model = model.model,
                        .parallel = c.parallel,
                        .optimizer = optimizer,
                        .mesh = c.mesh,
                        .coordinate = coordinate_of(static_cast<int>(rank), c.mesh),
                        .micro_batches = {}});
      const StrategyMemory planned = run.strategy().memory();
      CHECK(held.optimizer_bytes == planned.optimizer_bytes);
      const int64_t room = c.parallel.offload.device_bytes;
      if (room > 0) CHECK((held.optimizer_bytes > 0 && held.optimizer_bytes <= room));
      CHECK(held.host_bytes == planned.host_bytes);
      CHECK(held.buffer_bytes == planned.buffer_bytes);
    }
  }
}

}  // namespace

TEST_CASE("plans count moments in few bits to the byte, on every rank") {
  const FuzzModel toy = fuzz_families().at("toy").build(
      parse_case("blocks=L24.Q3.L30.T.L10f tie=first hidden=12 vocabulary=101"));
  for (const auto moments : {MomentsDtype::kInt8, MomentsDtype::kBFloat16}) {
    check_plans(toy, moments);
    // Models whose table, positions and head always have fp32 moments.
    for (const std::string family : {"gpt2", "llama"}) {
      FuzzModel model;
      model.model = causal(sized(family, {.vocabulary = 101,
                                          .hidden = 24,
                                          .heads = 2,
                                          .layers = 3,
                                          .inner = 40,
                                          .key_heads = 1,
                                          .head_dim = 12,
                                          .max_positions = 30,
                                          .dropout = 0}));
      model.batch = toy.batch;
      check_plans(model, moments);
      if (moments == MomentsDtype::kInt8) check_plans(model, moments, 0);
    }
  }
}

TEST_CASE("an expert axis that cuts blocks of moments is refused by every rank by itself") {
  // Slices of the last rank alone begin and end with blocks.
  DecoderConfig config = sized(
      "qwen3_moe",
      {.vocabulary = 31, .hidden = 12, .heads = 2, .layers = 1, .key_heads = 2, .head_dim = 6});
  config.experts = 12, config.experts_per_token = 2, config.expert_inner = 24;
  const at::Tensor ids = at::arange(10).view({2, 5});
  for (int rank = 0; rank < 3; ++rank) {
    INFO("rank " << rank);
    const std::string message = error_of([&] {
      dry_step({.model = causal(config),
                .parallel = {.strategy = "ddp"},
                .optimizer = make_adamw({.moments = MomentsDtype::kInt8, .min_8bit_size = 100}),
                .mesh = {.data = 3, .expert = 3},
                .coordinate = {.data = rank},
                .micro_batches = {make_micro_batch(ids, ids)}});
    });
    CHECK_THAT(message, test::contains("moments in 8 bits: the expert axis cuts layers.0.mlp."));
    CHECK_THAT(message, test::contains("use fewer expert ranks, or moments in bf16 or fp32"));
  }
}
