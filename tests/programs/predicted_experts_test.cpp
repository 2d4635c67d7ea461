// SPDX-License-Identifier: MIT
// Predicted steps of mixtures of experts against measured ones.
#include <cmath>

#include "lib/tools/plan/plan.h"
#include "tests/programs/train_options.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::programs;

namespace {

struct MeasuredStep {
  int64_t ranks;
  double milliseconds, allowed;  // allowed: share of the measured time
  const char* flags;
};

// Medians on one and two NVIDIA H200, rows of 4,096 random tokens:
// benchmarks/results/2026-11-30-h200.md.
constexpr MeasuredStep kExpertSteps[] = {
    {1, 186, 0.08, "olmoe-1b-7b --moments_dtype bf16 --per_device_train_batch_size 2"},
    {1, 276, 0.05,
     "qwen3-30b-a3b --per_device_train_batch_size 1 --lora_r 8 --lora_target_modules "
     "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"},
    {1, 932, 0.05,
     "qwen3-30b-a3b --per_device_train_batch_size 4 --lora_r 8 --lora_target_modules "
     "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"},
    {2, 817, 0.06,
     "olmoe-1b-7b --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --strategy zero3 "
     "--gradient_checkpointing"},
    {2, 830, 0.11,
     "olmoe-1b-7b --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --strategy zero3 "
     "--gradient_checkpointing --expert_parallel 2"},
    {2, 752, 0.1,
     "olmoe-1b-7b --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --strategy zero3 "
     "--expert_parallel 2 --recompute_experts --moments_dtype bf16"},
};

}  // namespace

TEST_CASE("predicted steps of mixtures of experts are those of measured runs") {
  for (const MeasuredStep& m : kExpertSteps) {
    const TrainOptions o =
        options_of(concat("--dtype bf16 --max_seq_length 4096 --model_config ", m.flags));
    const PlannedHosts hosts{.card = card_named("h200"), .ranks = m.ranks};
    const double predicted =
        plan_run(prepare_shapes(o, Program::kText), o, hosts).time.total() * 1e3;
    INFO(m.flags << ": predicted " << predicted << " ms, measured " << m.milliseconds);
    CHECK(std::abs(predicted / m.milliseconds - 1) < m.allowed);
  }
}
