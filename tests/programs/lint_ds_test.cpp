// SPDX-License-Identifier: MIT
// Findings of tessera-lint-ds, also for configurations of published projects.
#include "lib/tools/lint_ds/lint_ds.h"

#include <algorithm>
#include <chrono>
#include <sstream>

#include "lib/interop/deepspeed_file.h"
#include "lib/interop/foreign_config.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/support/text.hpp"

using namespace tessera;
using namespace tessera::programs;
using tessera::test::has;

TEST_CASE("the lint says what DeepSpeed takes, and of another optimizer one thing") {
  const TempDir dir;
  const auto lint = [&](const std::string& text, int status) {
    std::ostringstream out, err;
    CHECK(run_lint_ds({dir.write("ds.json", text)}, out, err) == status);
    return out.str();
  };
  // DeepSpeed's fields with an alias are accepted by either name.
  const std::string names = lint(
      R"({"_note": "tried on 8 GPUs", "compile": {"backend": "inductor"}, "zero_optimization": {"stage": 3,
    "max_live_parameters": 1e8, "max_reuse_distance": 1e8, "prefetch_bucket_size": 0,
    "param_persistence_threshold": 77, "gather_16bit_weights_on_model_save": true}})",
      0);
  CHECK(has(names, "_note is a comment"));
  CHECK(has(names, "--persistence_threshold 77"));
  CHECK(has(names, "--prefetch_blocks 0"));
  CHECK(has(names, "zero_optimization.max_live_parameters is called"));
  // Keys that DeepSpeed's models drop when "auto".
  const std::string left = lint(R"({"zero_optimization": {"stage": 2, "overlap_comm": "auto",
    "allgather_bucket_size": "auto", "offload_optimizer": {"device": "cpu", "pin_memory": "auto",
    "buffer_count": "auto"}}})",
                                0);
  CHECK(has(left, "overlap_comm is \"auto\": DeepSpeed's default"));
  CHECK(has(left, "--strategy zero2 --offload optimizer"));
  for (const char* other :
       {R"({"optimizer": {"params": {"lr": 1e-4, "freeze_step": 9, "bias_correction": true},
            "type": "OneBitAdam"}})",
        R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0}}})"}) {
    const std::string said = lint(other, 2);
    CHECK(std::count(said.begin(), said.end(), '\n') == 1);
    CHECK(has(said, "is not available here"));
  }
  CHECK(has(lint("{}", 0), "the same on 1 rank(s) as without it"));
}

TEST_CASE("the lint prints its findings as JSON") {
  const TempDir dir;
  const std::string good = dir.write("good.json", R"({
  "zero_optimization": {"stage": 2,
    "cpu_offload": true},
  "steps_per_print": 10, // often
  "train_micro_batch_size_per_gpu": 4
})");
  const std::string bad = dir.write("bad.json", R"({
  "gradient_acumulation_steps": 2,
  "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}},
  "stage3_max_live_parameters": 1,
  "scheduler": {"type": "WarmupLr"}
})");
  const std::string product = dir.write(
      "product.json", "{\n\"train_batch_size\": 6,\n\"train_micro_batch_size_per_gpu\": 2}");
  const std::string yaml = dir.write("fsdp.yaml", "distributed_type: FSDP\nnum_processes: 2\n");
  std::ostringstream out, err;
  const int status = run_lint_ds(
      {"--json", "--ranks", "2", good, bad, product, yaml, dir.path("none.json")}, out, err);
  CHECK(status == 2);
  CHECK(err.str().empty());
  const Json files = Json::parse(out.str(), {}, "lint").at("files");
  REQUIRE(files.size() == 5);
  CHECK(files.at(0).at("file").as_string() == good);
  CHECK(files.at(0).at("usable").as_bool());
  CHECK(files.at(0).at("ranks").as_int64() == 2);
  CHECK(files.at(0).at("flags").as_string() ==
        "--per_device_train_batch_size 4 --strategy zero2 --offload optimizer");
  const auto finding = [&](size_t file, const std::string& key, const char* severity,
                           int64_t line) -> Json {
    for (const Json& one : files.at(file).at("findings").items()) {
      if (one.get("key", std::string()) != key) continue;
      INFO(one.dump());
      CHECK(one.at("severity").as_string() == severity);
      CHECK(one.get("line", int64_t{0}) == line);
      CHECK_FALSE(one.at("message").as_string().empty());
      return one;
    }
    FAIL("no finding has the key " << key << " in\n" << out.str());
    return Json::parse("{}", {}, "none");
  };
  CHECK(finding(0, "zero_optimization.cpu_offload", "warning", 3).at("nearest").as_string() ==
        "zero_optimization.offload_optimizer.device");
  CHECK_FALSE(finding(0, "steps_per_print", "note", 4).find("nearest").has_value());
  CHECK(has(finding(0, "", "warning", 4).at("message").as_string(), "comments"));
  CHECK_FALSE(files.at(1).at("usable").as_bool());
  CHECK_FALSE(files.at(1).find("flags").has_value());
  CHECK(finding(1, "gradient_acumulation_steps", "error", 2).at("nearest").as_string() ==
        "gradient_accumulation_steps");
  CHECK(has(
      finding(1, "zero_optimization.offload_param.device", "error", 3).at("message").as_string(),
      "needs stage 3"));
  CHECK(finding(1, "stage3_max_live_parameters", "error", 4).at("nearest").as_string() ==
        "zero_optimization.stage3_max_live_parameters");
  CHECK(finding(1, "scheduler.type", "error", 5).at("nearest").as_string() == "WarmupLR");
  CHECK(finding(2, "", "error", 2).at("message").as_string().starts_with("train_batch_size 6"));
  CHECK(has(finding(3, "", "error", 0).at("message").as_string(), "accelerate"));
  CHECK(has(finding(4, "", "error", 0).at("message").as_string(), "none.json"));
}

TEST_CASE("the lint names the flags that \"auto\" leaves to the command line") {
  const TempDir dir;
  const auto lint = [&](const std::string& text) {
    std::ostringstream out, err;
    CHECK(run_lint_ds({dir.write("ds.json", text)}, out, err) == 0);
    return out.str();
  };
  const std::string said = lint(R"({"bf16": {"enabled": "auto"}, "gradient_clipping": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": 0.01}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": "auto"},
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"})");
  CHECK(has(said, "\"auto\", so that the command line decides, or the default: "));
  for (const char* flag :
       {" --dtype", " --max_grad_norm", " --learning_rate", " --per_device_train_batch_size"}) {
    CHECK(has(said.substr(said.find("decides")), flag));
  }
  const std::string left = said.substr(0, said.find("the same on"));
  CHECK(left.find("--weight_decay") == std::string::npos);
  CHECK(left.find("--persistence_threshold") == std::string::npos);
  CHECK(lint(R"({"fp16": {"enabled": "auto"}, "bf16": {"enabled": true}})").find("decides") ==
        std::string::npos);
}

TEST_CASE("configurations of accelerate and torchtitan are answered with flags") {
  const TempDir dir;
  const std::string fsdp = dir.write("fsdp.yaml", R"(compute_environment: LOCAL_MACHINE
distributed_type: FSDP  # version 1
fsdp_config:
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_offload_params: true
  fsdp_min_num_params: 0
mixed_precision: bf16
num_processes: 4
)");
  CHECK(error_of(ErrorCode::kInvalidArgument, [&] { refuse_foreign_config(fsdp); }) ==
        fsdp +
            " is a configuration of accelerate; the same here, without it: mpirun -n 4 PROGRAM "
            "--strategy fsdp --reshard_after_forward false --offload optimizer+params --dtype "
            "bf16");
  const std::string zero = dir.write("zero.yml", R"(deepspeed_config:
  gradient_clipping: 1.0
  offload_optimizer_device: cpu
  zero_stage: 3
distributed_type: DEEPSPEED
num_processes: 2
)");
  CHECK(has(*answer_foreign_config(zero),
            "mpirun -n 2 PROGRAM --strategy zero3 --offload optimizer --max_grad_norm 1.0"));
  const std::string axes = dir.write("axes.yaml", R"(distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
num_processes: 16
parallelism_config:
  parallelism_config_cp_size: 1
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 4
  parallelism_config_tp_size: 2
)");
  CHECK(answer_foreign_config(axes)->ends_with(
      "the same here, without it: mpirun -n 16 PROGRAM --strategy fsdp --tensor_parallel 2 "
      "--shard_ranks 4"));
  const std::string megatron = dir.write("megatron.yaml", R"(distributed_type: MEGATRON_LM
megatron_lm_config:
  megatron_lm_pp_degree: 2
  megatron_lm_sequence_parallelism: true
  megatron_lm_tp_degree: 4
num_processes: 8
)");
  CHECK(answer_foreign_config(megatron)->ends_with(
      "--strategy ddp --tensor_parallel 4 --pipeline_parallel 2 --sequence_parallel"));
  const std::string nearest = dir.write("fp8.yaml", R"(distributed_type: MULTI_GPU
mixed_precision: fp8
num_processes: 2
parallelism_config:
  parallelism_config_cp_size: 2
)");
  CHECK(answer_foreign_config(nearest)->ends_with(
      "the nearest here, without it: mpirun -n 2 PROGRAM --strategy ddp --context_parallel 2 "
      "--dtype bf16; fp8 is not available beside --context_parallel"));
  const std::string eight = dir.write("fp8_alone.yaml", R"(distributed_type: FSDP
mixed_precision: fp8
num_processes: 2
)");
  CHECK(answer_foreign_config(eight)->ends_with(
      "--dtype bf16 --fp8 tensorwise; scales are those of the values, without history"));
  const std::string titan = dir.write("titan.toml", R"([training]
local_batch_size = 8
seq_len = 2048
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
[activation_checkpoint]
mode = "full"
)");
  CHECK(has(*answer_foreign_config(titan),
            "PROGRAM --strategy fsdp --tensor_parallel 2 --pipeline_schedule interleaved "
            "--gradient_checkpointing --dtype bf16 --per_device_train_batch_size 8 "
            "--max_seq_length 2048"));
  const std::string budget = dir.write(
      "budget.toml", "[training]\nsteps = 4\n[activation_checkpoint]\nmode = \"memory_budget\"\n");
  CHECK(has(*answer_foreign_config(budget), "--activation_memory auto"));
  // Torchtitan's form of 2024.
  const std::string before = dir.write("before.toml", "[training]\nbatch_size = 4\n");
  CHECK(has(*answer_foreign_config(before), "--per_device_train_batch_size 4"));
  CHECK_FALSE(answer_foreign_config("ds_config.json").has_value());

  const std::string stage_2 = dir.write("stage_2.yaml", R"(compute_environment: LOCAL_MACHINE
deepspeed_config:
  offload_optimizer_device: nvme
  offload_param_device: cpu
  gradient_accumulation_steps: auto
  zero_stage: 2
distributed_type: DEEPSPEED
)");
  CHECK(answer_foreign_config(stage_2)->ends_with(
      "the nearest here, without it: mpirun -n 1 PROGRAM --strategy zero2 --offload optimizer; "
      "nvme is not available, host memory is"));
  const std::string trained = dir.write("megatron_zero.yaml", R"(distributed_type: MEGATRON_LM
megatron_lm_config:
  megatron_lm_gradient_clipping: 1.0
  megatron_lm_num_micro_batches: 8
  megatron_lm_pp_degree: 2
  megatron_lm_recompute_activations: true
  megatron_lm_use_distributed_optimizer: true
num_processes: 4
)");
  CHECK(answer_foreign_config(trained)->ends_with(
      "-n 4 PROGRAM --strategy zero1 --pipeline_parallel 2 --gradient_checkpointing "
      "--gradient_accumulation_steps 8 --max_grad_norm 1.0"));
  const std::string json = dir.write("accelerate.json", R"({"compute_environment": "LOCAL_MACHINE",
  "distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2, "fsdp_offload_params": true,
  "fsdp_sharding_strategy": "HYBRID_SHARD_ZERO2"}, "mixed_precision": "bf16", "num_processes": 2,
  "main_process_port": null})");
  CHECK(answer_foreign_config(json)->ends_with(
      "-n 2 PROGRAM --strategy fsdp --reshard_after_forward false --shard_ranks RANKS_OF_A_NODE "
      "--offload optimizer+params --dtype bf16"));
  CHECK_FALSE(answer_foreign_config(dir.write("ds.json", R"({"zero_optimization": {"stage": 2}})"))
                  .has_value());
}

TEST_CASE("files of other programs are not taken for accelerate's") {
  const TempDir dir;
  const std::string axolotl = dir.write("axolotl.yaml", R"(base_model: some/model
deepspeed: deepspeed_configs/zero2.json  # the stages
fsdp_config:
  fsdp_version: 2
gradient_accumulation_steps: 4
)");
  CHECK(*answer_foreign_config(axolotl) ==
        axolotl +
            " is a file neither of DeepSpeed nor of accelerate or torchtitan; give the one it "
            "names: --deepspeed deepspeed_configs/zero2.json, everything else stands in flags, see "
            "--help");
  const std::string project = dir.write("pyproject.toml", "[project]\nname = \"x\"\n");
  CHECK(*answer_foreign_config(project) ==
        project +
            " is a file neither of DeepSpeed nor of accelerate or torchtitan; DeepSpeed's files "
            "are JSON, everything else stands in flags, see --help");
}

TEST_CASE("counts that no product can hold are findings") {
  const TempDir dir;
  const auto lint = [&](const std::string& text, const std::string& said) {
    std::ostringstream out, err;
    CHECK(run_lint_ds({dir.write("ds.json", text)}, out, err) == 2);
    CHECK(has(out.str(), said));
  };
  // The product of the last two is 2^64, which wraps to 0.
  lint(R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4294967296,
           "gradient_accumulation_steps": 4294967296})",
       "train_micro_batch_size_per_gpu is 4294967296; it must be below 2^31");
  lint(R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 65536,
           "gradient_accumulation_steps": 65536})",
       "make 2^31 rows or more");
  lint(R"({"zero_optimization": {"stage": 1e300}})", "stands where an integer up to 2^53 is due");
}

TEST_CASE("the time that a DeepSpeed file takes grows with its length only") {
  const auto seconds = [](const std::string& text) {
    const auto begin = std::chrono::steady_clock::now();
    const auto file =
        DeepSpeedFile::parse(text, "ds.json", [](const std::string&) { return false; });
    CHECK(file.findings().size() + file.notes().size() > 0);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::string comments, keys = "{\"a0\": 1", long_key(500'000, 'k');
  for (int i = 0; i < 500'000; ++i) comments += "#\n";
  for (int i = 1; i < 60'000; ++i) keys += concat(",\n\"a", i, "\": 1");
#ifdef __SANITIZE_ADDRESS__
  const double limit = 20;
#else
  const double limit = 5;  // quadratic growth would take minutes
#endif
  CHECK(seconds(comments + "{}") < limit);
  CHECK(seconds(keys + "}") < limit);
  CHECK(seconds("{\"" + long_key + "\": 1}") < limit);
}
