// SPDX-License-Identifier: MIT
// Hugging Face's flags in the fine-tuning programs.
#include "lib/interop/foreign_flags.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include "lib/core/file.h"
#include "lib/settings/train_flags.h"
#include "tessera/core/error.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"
#include "tests/support/text.hpp"

using namespace tessera;
using namespace tessera::programs;
using tessera::test::has;

namespace {

struct Parsed {
  TrainOptions options;
  FlagSet flags{"prog", ""};
  explicit Parsed(const std::vector<std::string>& arguments,
                  Program program = Program::kClassification) {
    add_train_flags(flags, options, program, find_foreign);
    flags.parse(arguments);
  }
};

std::string refusal(const std::vector<std::string>& arguments) {
  return error_of(ErrorCode::kInvalidArgument, [&] { Parsed parsed(arguments); });
}

std::set<std::string> own_names(Program program) {
  const Parsed parsed({}, program);
  std::set<std::string> names;
  std::istringstream lines(parsed.flags.values_text());
  for (std::string line; std::getline(lines, line);) {
    names.insert(line.substr(2, line.find(' ') - 2));
  }
  return names;
}

// A program that has the flag.
Program program_of(const std::string& flag) {
  for (const Program program : {Program::kSquad, Program::kClassification}) {
    if (own_names(program).contains(flag)) return program;
  }
  return Program::kChat;
}

// A value that the row accepts.
std::string example(const ForeignFlag& row) {
  if (row.value != std::string("*")) return row.value;
  for (const std::string value : {"3", "true", "x"}) {
    if (find_foreign(row.name, value) != &row) continue;
    try {
      if (row.meaning == ForeignFlag::kSets)
        Parsed({concat("--", row.flag), value}, program_of(row.flag));
      return value;
    } catch (const Error&) {
    }
  }
  return "none";
}

}  // namespace

TEST_CASE("every row of the table of foreign flags does what it says") {
  for (const ForeignFlag& row : foreign_flags()) {
    const std::string value = example(row), written = concat("--", row.name, " ", value);
    INFO(written);
    REQUIRE(find_foreign(row.name, value) == &row);
    CHECK((row.value != std::string("*") || !own_names(program_of(row.name)).contains(row.name)));
    if (row.meaning == ForeignFlag::kSets) {
      const Program program = program_of(row.flag);
      const std::string ours = row.to == std::string("*") ? value : row.to;
      const Parsed parsed({concat("--", row.name), value}, program);
      const Parsed plain({concat("--", row.flag), ours}, program);
      CHECK(parsed.flags.given(row.flag));
      CHECK(parsed.flags.values_text() == plain.flags.values_text());
    } else if (row.meaning == ForeignFlag::kNeeds) {
      CHECK(has(refusal({concat("--", row.name), value}), concat("needs --", row.flag)));
      CHECK(Parsed({concat("--", row.name), value, concat("--", row.flag), "7"})
                .flags.given(row.flag));
    } else if (row.meaning == ForeignFlag::kNoEffect) {
      const Parsed parsed({concat("--", row.name, "=", value)});
      REQUIRE(parsed.flags.notices().size() == 1);
      CHECK(has(parsed.flags.notices()[0], written + " has no effect here: "));
    } else {
      CHECK(has(refusal({concat("--", row.name, "=", value)}),
                written + " is not available here: " + row.text));
    }
  }
}

TEST_CASE("every TrainingArgument is a flag, or answered") {
  const std::set<std::string> own = own_names(Program::kSquad);
  std::ifstream lines(TESSERA_TRAINING_ARGUMENTS);
  int count = 0;
  for (std::string name; std::getline(lines, name); ++count) {
    std::string values;
    const bool answered = find_foreign(name, "no such value", &values) != nullptr;
    INFO(name);
    CHECK((own.contains(name) || answered || !values.empty()));
  }
  CHECK(count > 100);
}

namespace {

// Expected table of docs/migrate/hf-trainer.md for all TrainingArguments, between its two marks.
std::string table_of_training_arguments() {
  std::set<std::string> own = own_names(Program::kSquad);
  own.merge(own_names(Program::kClassification));
  const auto value = [](const char* text) {
    return text == std::string("*") ? "" : concat(" ", text);
  };
  std::string same, rows;
  std::ifstream lines(TESSERA_TRAINING_ARGUMENTS);
  for (std::string name; std::getline(lines, name);) {
    if (own.contains(name)) same += concat(same.empty() ? "" : ", ", "`--", name, "`");
    for (const ForeignFlag& row : foreign_flags()) {
      if (row.name != name) continue;
      rows += concat("| `--", name, value(row.value), "` | ");
      switch (row.meaning) {
        case ForeignFlag::kSets:
          rows += concat("`--", row.flag, value(row.to), "`");
          break;
        case ForeignFlag::kNeeds:
          rows += concat("needs `--", row.flag, "`");
          break;
        case ForeignFlag::kNoEffect:
          rows += concat("no effect: ", row.text);
          break;
        case ForeignFlag::kRefused:
          rows += concat("not available: ", row.text);
          break;
      }
      rows += " |\n";
    }
  }
  return concat("These have the same name and meaning: ", same,
                ".\n\n| in TrainingArguments | here |\n|---|---|\n", rows);
}

}  // namespace

// With TESSERA_WRITE_DOCS=1 writes the table.
TEST_CASE("docs/migrate/hf-trainer.md says what the table of foreign flags says") {
  const std::string begin = "<!-- written by test_programs -->\n", end = "<!-- end -->\n";
  const std::string page = read_file(TESSERA_HF_TRAINER_PAGE, 1 << 20);
  const size_t from = page.find(begin), to = page.find(end);
  REQUIRE(from != std::string::npos);
  REQUIRE(to != std::string::npos);
  const std::string wanted =
      page.substr(0, from + begin.size()) + table_of_training_arguments() + page.substr(to);
  if (std::getenv("TESSERA_WRITE_DOCS") != nullptr) {
    std::ofstream(TESSERA_HF_TRAINER_PAGE) << wanted;
  }
  CHECK(read_file(TESSERA_HF_TRAINER_PAGE, 1 << 20) == wanted);
}

TEST_CASE("renamed flags are taken under their former names") {
  const Parsed parsed({"--keep_activations", "true", "--message_bytes", "1000", "--offload",
                       "optimizer", "--offload_gpu_memory", "auto", "--rehearse"});
  CHECK(parsed.options.parallel.save_norm_outputs);
  CHECK(parsed.options.parallel.coalesce_bytes == 1000);
  CHECK(parsed.options.memory.offload_gpu == "auto");
  CHECK(parsed.options.run.recovery_test);
}

TEST_CASE("values of Hugging Face's flags become ours") {
  CHECK(Parsed({"--fp16"}).options.parallel.precision.parameter == at::kHalf);
  CHECK(Parsed({"--zero_stage", "3"}).options.parallel.strategy == "zero3");
  CHECK(Parsed({"--deepspeed_config", "ds.json"}).options.run.deepspeed == "ds.json");
  CHECK(Parsed({"--bf16", "True", "--fp16", "False"}).options.parallel.precision.parameter ==
        at::kBFloat16);
  CHECK(Parsed({"--eval-strategy", "no"}).options.output.eval_steps.is_never());
  CHECK(Parsed({"--eval_strategy=steps", "--eval_steps", "50"}).options.output.eval_steps.steps ==
        50);
  CHECK(Parsed({"--tf32", "True"}).options.precision.tf32);
  CHECK_FALSE(Parsed({"--tf32", "False"}).options.precision.tf32);
  CHECK(Parsed({"--tf32", "1", "--shuffle", "0"}).options.precision.tf32);
  CHECK(Parsed({"--report_to", "all"}).options.output.report_to == "jsonl,csv,tensorboard");
  CHECK(Parsed({"--report_to", "wandb"}).options.output.report_to == "jsonl,csv,wandb");
  CHECK(Parsed({"--report_to", "mlflow"}).options.output.report_to == "jsonl,csv,mlflow");
  CHECK(Parsed({"--lora_rank", "16"}).options.lora.r == 16);
  CHECK(Parsed({"--adapter_name_or_path", "out"}).options.lora.adapter == "out");
  CHECK(Parsed({"--use_lora", "False"}).options.lora.r == 0);
  CHECK(Parsed({"--warmup_ratio", "0.1"}).options.training.warmup_steps == 0.1);
  CHECK(Parsed({"--label_smoothing_factor", "0.0"}).flags.notices().size() == 1);
  CHECK(Parsed({"--do_train", "--do_eval"}).flags.notices().size() == 2);
  CHECK(Parsed({"--dtype", "bfloat16"}).options.parallel.precision.parameter == at::kBFloat16);
  CHECK(
      Parsed({"--do_eval", "False", "--eval_strategy", "no"}).options.output.eval_steps.is_never());
  CHECK(Parsed({"--resume_from_checkpoint", "True"}).options.run.resume_from_checkpoint == "auto");
  CHECK(Parsed({"--resume_from_checkpoint", "out/7"}).options.run.resume_from_checkpoint ==
        "out/7");
}

TEST_CASE("names of TRL, Megatron-LM, torchtitan and common scripts are understood or answered") {
  struct Row {
    std::vector<std::string> arguments;
    const char* answer;  // a flag and value of ours, or part of the refusal or notice
  };
  const Row rows[] = {
      {{"--tensor-model-parallel-size", "2"}, "--tensor_parallel 2"},
      {{"--pipeline-model-parallel-size", "2"}, "--pipeline_parallel 2"},
      {{"--micro-batch-size", "4"}, "--per_device_train_batch_size 4"},
      {{"--global-batch-size", "8"}, "--gradient_accumulation_steps x data ranks"},
      {{"--seq-length", "32"}, "--max_seq_length 32"},
      {{"--train-iters", "10"}, "--max_steps 10"},
      {{"--lr-decay-style", "cosine"}, "--lr_scheduler_type cosine"},
      {{"--lr-warmup-iters", "5"}, "--warmup_steps 5"},
      {{"--min-lr", "1e-5"}, "cosine_with_min_lr"},
      {{"--clip-grad", "1"}, "--max_grad_norm 1"},
      {{"--recompute-granularity", "full"}, "--gradient_checkpointing true"},
      {{"--recompute-granularity", "selective"}, "attention keeps no scores"},
      {{"--use-distributed-optimizer"}, "--strategy zero1"},
      {{"--overlap-grad-reduce"}, "--overlap true"},
      {{"--data-path", "x"}, "indexed data are not read"},
      {{"--save", "x"}, "--output_dir x"},
      {{"--load", "x"}, "--resume_from_checkpoint x"},
      {{"--num-layers", "4"}, "--model_config NAME or FILE"},
      {{"--context-parallel-size", "2"}, "--context_parallel 2"},
      {{"--ulysses_sequence_parallel_size", "2"}, "--context_attention heads"},
      {{"--num-experts", "8"}, "--model_config names a model with experts"},
      {{"--training.seq_len", "64"}, "--max_seq_length 64"},
      {{"--training.mixed_precision_param", "bfloat16"}, "--dtype bf16"},
      {{"--parallelism.tensor_parallel_degree", "2"}, "--tensor_parallel 2"},
      {{"--parallelism.expert_parallel_degree", "2"}, "--expert_parallel 2"},
      {{"--expert-model-parallel-size", "2"}, "--expert_parallel 2"},
      {{"--parallelism.data_parallel_shard_degree", "-1"}, "--strategy fsdp"},
      {{"--parallelism.enable_async_tensor_parallel"}, "tessera-lint-ds FILE.toml"},
      {{"--job.config_file", "x.toml"}, "tessera-lint-ds FILE.toml"},
      {{"--compile.enable"}, "kernels of its own"},
      {{"--assistant_only_loss"}, "tessera-finetune-chat trains answers alone"},
      {{"--dataset_text_field", "body"}, "--text_column body"},
      {{"--use_flash_attn"}, "kernels of its own"},
      {{"--device", "cuda"}, "GPUs are used where they are"},
      {{"--device", "cpu"}, "CUDA_VISIBLE_DEVICES="},
      {{"--device", "cuda:1"}, "CUDA_VISIBLE_DEVICES"},
      {{"--validation_split_percentage", "5"}, "--validation_slice 0:N"},
      {{"--eos_token", "x"}, "--tokenizer DIR"},
      {{"--beta", "0.1"}, "preference data are not trained"},
      {{"--strategy", "fsdp2"}, "--strategy fsdp"},
      {{"--strategy", "ZeRO-3"}, "the nearest is zero3"},
      {{"--strategy", "zero-3"}, "the nearest is zero3"},
      {{"--strategy", "ZERO3"}, "the nearest is zero3"},
      {{"--offload", "cpu"}, "--offload optimizer, optimizer+params or activations"},
      {{"--optim", "AdamW"}, "--optim \"adamw_torch\""},
      {{"--dtype", "BF16"}, "the nearest is bf16"},
      {{"--lr_scheduler_type", "Cosine"}, "the nearest is cosine"},
      {{"--max_grad_norm", "1", "2"}, "--max_grad_norm takes one value: a number"},
      {{"--train_file", "a.csv", "b.csv"}, "takes one file: join them under a name of the same"},
      {{"--report_to", "csv", "jsonl"}, "a list with commas (--report_to csv,jsonl)"},
      {{"--lora_target_modules", "q", "v", "--lora_r", "8"}, "(--lora_target_modules q,v)"},
      {{"--fsdp", "full_shard", "auto_wrap"}, "--fsdp full_shard auto_wrap is not available here"},
      {{"--no_such_flag", "a", "b"}, "unknown flag --no_such_flag"},
  };
  for (const Row& row : rows) {
    INFO(row.arguments[0] << " " << row.answer);
    std::string said;
    try {
      const Parsed parsed(row.arguments);
      said = parsed.flags.changed_text();
      for (const std::string& notice : parsed.flags.notices()) said += "; " + notice;
      said += "\n" + parsed.flags.values_text();
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kInvalidArgument);
      said = error.what();
    }
    CHECK(has(said, row.answer));
  }
}

TEST_CASE("what cannot be served is answered, never with a far-fetched neighbour") {
  CHECK(has(refusal({"--eval_strategy", "often"}), "'often' is not one of no, epoch, steps"));
  CHECK(has(refusal({"--eval_strategy", "steps"}), "needs --eval_steps N"));
  CHECK(has(refusal({"--use_peft", "true"}), "needs --lora_r N"));
  CHECK(has(refusal({"--load_in_4bit", "true"}), "--dtype bf16 with --lora_r"));
  CHECK(has(refusal({"--save_strategy", "best"}), "--load_best_model_at_end"));
  CHECK(has(refusal({"--report_to", "comet_ml"}), "jsonl,csv,tensorboard"));
  CHECK(has(refusal({"--fp16", "--bf16"}), "--fp16 true and --bf16 true both set --dtype"));
  CHECK(has(refusal({"--fp16", "maybe"}), "'maybe' is not one of true, false"));
  CHECK(has(refusal({"--lr_scheduler_type", "greedy"}), "reduce_lr_on_plateau"));
  CHECK(has(refusal({"--ddp_bucket_cap_mb", "25"}), "--bucket_bytes"));
  CHECK(has(refusal({"--gpus", "4"}), "start N with mpirun -n N"));
  CHECK(has(refusal({"--dataset", "squad"}), "--train_file FILE"));
  const std::string nothing_near = refusal({"--quantization_config", "x"});
  CHECK(has(nothing_near, "unknown flag --quantization_config (prog --help"));
  CHECK(has(refusal({"--lerning_rate", "1"}), "nearest is --learning_rate"));
}
