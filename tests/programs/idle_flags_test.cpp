// SPDX-License-Identifier: MIT
#include "lib/settings/idle_flags.h"

#include <sstream>

#include "lib/interop/deepspeed.h"
#include "lib/interop/foreign_flags.h"
#include "lib/tools/lint_ds/lint_ds.h"
#include "tessera/core/error.h"
#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::programs;

namespace {

struct Given {
  FlagSet flags{"prog", ""};
  TrainOptions options;
  std::string notices;  // one line each
  explicit Given(const std::string& line, int64_t ranks = 2) {
    add_train_flags(flags, options, Program::kText, find_foreign);
    std::istringstream words(line);
    std::vector<std::string> arguments;
    for (std::string word; words >> word;) arguments.push_back(word);
    flags.parse(arguments);
    if (!options.run.deepspeed.empty()) {
      apply_deepspeed(DeepSpeedFile::read(options.run.deepspeed), ranks, options, flags);
    }
    for (const IdleFlag& idle : reset_idle_flags(flags, options, ranks))
      notices += idle.text + "\n";
  }
};

}  // namespace

TEST_CASE("a flag that nothing reads is noticed, and config.json has its default") {
  const struct {
    const char *idle, *read;
  } cases[] = {
      {"--strategy ddp --reduce_at_boundary", "--strategy zero2 --reduce_at_boundary"},
      {"--strategy zero2 --persistence_threshold 7", "--strategy zero3 --persistence_threshold 7"},
      {"--strategy zero1 --prefetch_blocks 3", "--strategy fsdp --prefetch_blocks 3"},
      {"--strategy zero3 --bucket_bytes 512", "--strategy ddp --bucket_bytes 512"},
      {"--strategy zero2 --bucket_bytes 512",
       "--strategy zero2 --bucket_bytes 512 --reduce_dtype bf16"},
      {"--pipeline_schedule gpipe", "--pipeline_parallel 2 --pipeline_schedule gpipe"},
      {"--pipeline_balance flops", "--pipeline_parallel 2 --pipeline_balance flops"},
      {"--strategy zero1 --pin_memory false",
       "--strategy zero1 --offload optimizer --pin_memory false"},
      {"--offload_threads 3", "--strategy zero1 --offload optimizer --offload_threads 3"},
      {"--offload_step host", "--strategy zero1 --offload optimizer --offload_step host"},
      {"--offload_keep_on_gpu 2", "--offload optimizer --offload_keep_on_gpu 2"},
      {"--gradient_checkpointing --save_norm_outputs", "--save_norm_outputs"},
      {"--save_attention_outputs", "--gradient_checkpointing --save_attention_outputs"},
      {"--gradient_checkpointing --offload activations --save_attention_outputs",
       "--gradient_checkpointing --save_attention_outputs"},
      {"--gradient_checkpointing --offload activations --offload_step host",
       "--strategy zero1 --offload optimizer --offload_step host"},
      {"--pin_memory false", "--gradient_checkpointing --offload activations --pin_memory false"},
      {"--loss_scale 128", "--dtype fp16 --loss_scale 128"},
      {"--dtype fp16 --loss_scale 128 --loss_scale_window 7", "--dtype fp16 --loss_scale_window 7"},
      {"--dtype bf16 --min_loss_scale 2", "--dtype fp16 --min_loss_scale 2"},
      {"--initial_loss_scale 2", "--dtype fp16 --initial_loss_scale 2"},
      {"--save_steps 7", "--save_strategy steps --save_steps 7"},
      {"--save_total_limit 7", "--save_strategy epoch --save_total_limit 7"},
      {"--max_steps 3 --num_train_epochs 7", "--num_train_epochs 7"},
      {"--train_ids a --text_column body", "--train_file a --text_column body"},
      {"--eval_steps 7", "--validation_ids a --eval_steps 7"},
      {"--random_row_length 7", "--random_rows 3 --random_row_length 7"},
      {"--dtype bf16 --tf32", "--tf32"},
      {"--max_overflow_steps 7", "--dtype fp16 --max_overflow_steps 7"},
      {"--dtype fp16 --max_nonfinite_steps 7", "--max_nonfinite_steps 7"},
      {"--lr_scheduler_type constant --warmup_steps 7",
       "--lr_scheduler_type constant_with_warmup --warmup_steps 7"},
  };
  for (const auto& [idle, read] : cases) {
    INFO(idle);
    const Given one(idle), other(read);
    CHECK_THAT(one.notices, test::contains("(command line) has no effect here: "));
    CHECK(std::count(one.notices.begin(), one.notices.end(), '\n') == 1);
    const std::string flag = one.notices.substr(2, one.notices.find(' ') - 2);
    CHECK_FALSE(one.flags.changed(flag));
    CHECK(one.flags.origin(flag) == "default");
    CHECK(other.notices.empty());
    CHECK(other.flags.changed(flag));
  }
}

TEST_CASE("a number out of its range is refused also where nothing reads the flag") {
  for (const char* line : {"--save_steps 0", "--random_row_length -1", "--max_overflow_steps 0",
                           "--initial_loss_scale 0", "--eval_steps 2199023255553", "--lora_alpha 0",
                           "--offload_threads -1", "--prefetch_blocks -1"}) {
    INFO(line);
    CHECK_THAT(error_of(ErrorCode::kInvalidArgument, [&] { Given given(line); }),
               test::contains("; it must be "));
  }
}

TEST_CASE("flags of adapters are refused where there are none, or a saved one says them") {
  for (const char* flag :
       {"--lora_alpha 16", "--lora_dropout 0.1", "--lora_init gaussian", "--use_rslora",
        "--lora_target_modules q_proj", "--lora_target_parameters mlp.experts.down_proj",
        "--lora_modules_to_save lm_head", "--lora_r 0 --use_rslora"}) {
    INFO(flag);
    CHECK_THAT(error_of(ErrorCode::kInvalidArgument, [&] { Given given(flag); }),
               test::contains("there are no adapters; give --lora_r N, at least 1. Leave it out"));
    const std::string with_adapter = concat("--adapter out/final ", flag);
    if (std::string(flag).starts_with("--lora_r")) continue;
    CHECK(Given(concat("--lora_r 4 ", flag)).notices.empty());
    CHECK_THAT(error_of(ErrorCode::kInvalidArgument, [&] { Given given(with_adapter); }),
               test::contains("--adapter says it"));
  }
  CHECK_THAT(error_of([] { Given given("--adapter out/final --lora_r 3"); }),
             test::contains("--adapter says it"));
  CHECK(Given("--lora_r 0").notices.empty());
}

TEST_CASE("a flag that says how the model is spread is refused where nothing reads it") {
  using tessera::test::contains;
  for (const auto& [line, why] :
       {std::pair{"--strategy zero1 --shard_ranks 2",
                  "--shard_ranks 2 (command line) has no effect "
                  "here: it belongs to fsdp; strategy zero1"},
        std::pair{"--strategy ddp --pipeline_vocabulary shared", "pipeline axis"},
        std::pair{"--strategy ddp --sequence_parallel", "tensor axis"}}) {
    const std::string text = line;
    CHECK_THAT(error_of(ErrorCode::kInvalidArgument, [&] { Given given(text); }), contains(why));
  }
}

TEST_CASE("keys of a DeepSpeed file for another stage are listed as without effect") {
  using tessera::test::contains;
  const TempDir dir;
  const std::string path = dir.write("ds.json", R"({
  "train_batch_size": 4,
  "fp16": { "enabled": false, "loss_scale": 128 },
  "zero_optimization": {
    "stage": 1, "stage3_param_persistence_threshold": 5,
    "stage3_prefetch_bucket_size": 0 }
})");
  const Given given("--deepspeed " + path);
  CHECK_THAT(given.notices, contains("--loss_scale 128.0 (" + path + ":3) has no effect here"));
  CHECK_THAT(given.notices, contains("--persistence_threshold 5 (" + path + ":5) has no effect"));
  CHECK_THAT(given.notices, contains("--prefetch_blocks 0 (" + path + ":6) has no effect here"));
  std::ostringstream out, err;
  CHECK(run_lint_ds({"--ranks", "2", path}, out, err) == 0);
  CHECK_THAT(out.str(), contains(path + ":5: without effect: --persistence_threshold 5"));
  CHECK_THAT(out.str(), !contains("rank(s) as --persistence_threshold"));
}
