// SPDX-License-Identifier: MIT
// Predicted steps with products in 8 bits against measured ones.
#include <cmath>

#include "lib/tools/plan/plan.h"
#include "tests/programs/train_options.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::programs;

namespace {

struct MeasuredPair {
  double sixteen, eight;  // ms
  const char* flags;
};

// On an NVIDIA H200: benchmarks/results/2026-11-30-h200.md.
constexpr MeasuredPair kFp8Steps[] = {
    {460, 375,
     "llama-3.2-1b --max_seq_length 2048 --per_device_train_batch_size 4 "
     "--gradient_accumulation_steps 4"},
    {2018, 1556,
     "bloom-3b --max_seq_length 512 --per_device_train_batch_size 16 "
     "--gradient_accumulation_steps 8"},
    {77360, 54890,
     "qwen2.5-14b --max_seq_length 4096 --per_device_train_batch_size 1 "
     "--gradient_accumulation_steps 128 --moments_dtype bf16 --offload optimizer "
     "--offload_keep_on_gpu 22"},
    {500, 397,
     "llama-3.1-8b --max_seq_length 4096 --per_device_train_batch_size 2 --lora_r 8 "
     "--lora_target_modules all-linear"},
};

double predicted_ms(const std::string& flags, const std::string& card) {
  const TrainOptions o = options_of("--dtype bf16 --model_config " + flags);
  const PlannedHosts hosts{.card = card_named(card), .ranks = 1};
  return plan_run(prepare_shapes(o, Program::kText), o, hosts).time.total() * 1e3;
}

}  // namespace

TEST_CASE("predicted steps gain by products in 8 bits what measured runs gain") {
  for (const MeasuredPair& m : kFp8Steps) {
    const std::string flags = m.flags;
    const double sixteen = predicted_ms(flags, "h200"),
                 eight = predicted_ms(flags + " --fp8 tensorwise", "h200");
    INFO(flags << ": predicted " << sixteen << " and " << eight << " ms, measured " << m.sixteen
               << " and " << m.eight);
    CHECK(std::abs(sixteen / eight / (m.sixteen / m.eight) - 1) < 0.05);
    CHECK(std::abs(eight / m.eight - 1) < 0.12);
    CHECK(predicted_ms(flags + " --fp8 auto", "h200") == Approx(eight));
    const double some = predicted_ms(flags + " --fp8 tensorwise --fp8_layers up,down", "h200");
    CHECK((some > eight && some < sixteen));
    CHECK(predicted_ms(flags + " --fp8 rowwise", "h200") > eight);
  }
}

TEST_CASE("cards without products in 8 bits are not predicted to gain by them") {
  const std::string flags = "llama-3.2-1b --max_seq_length 2048";
  CHECK(predicted_ms(flags + " --fp8 tensorwise", "a100") == Approx(predicted_ms(flags, "a100")));
  CHECK(predicted_ms(flags + " --fp8 tensorwise", "h100") < predicted_ms(flags, "h100"));
}
