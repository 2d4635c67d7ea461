// SPDX-License-Identifier: MIT
// Effect of each key of a DeepSpeed file: two runs that differ in it, told apart by measurements.
#include <functional>
#include <set>

#include "lib/interop/deepspeed_keys.h"
#include "tests/programs/deepspeed_job.h"
#include "tests/programs/deepspeed_seen.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::programs;

namespace {

using Check = std::function<void(const Seen& before, const Seen& after)>;

struct Effect {
  const char* key;
  std::string before, after;  // file contents
  Check check;
  std::vector<std::string> flags = {};
};

Check less(const char* bytes) {
  return [=](const Seen& before, const Seen& after) {
    CHECK(after.bytes(bytes) < 0.9 * before.bytes(bytes));
  };
}

Check rate(size_t step, double expected) {
  return [=](const Seen& before, const Seen& after) {
    CHECK(after.step(step, "learning_rate") == Approx(expected));
    CHECK(before.step(step, "learning_rate") != Approx(expected));
  };
}

// Different weights; equal files giving equal weights is asserted below.
void other_weights(const Seen& before, const Seen& after) {
  CHECK(before.end.at("param_hash_final").as_string() !=
        after.end.at("param_hash_final").as_string());
  CHECK(before.step(1, "loss") == after.step(1, "loss"));
  CHECK(before.step(3, "loss") != after.step(3, "loss"));
}

Check samples(double expected) {
  return [=](const Seen& before, const Seen& after) {
    CHECK(after.step(1, "samples") == expected);
    CHECK(before.step(1, "samples") != expected);
  };
}

Check scales(const std::vector<double>& expected) {
  return [=](const Seen& before, const Seen& after) {
    std::vector<double> found;
    for (const Json& step : after.steps) found.push_back(step.at("loss_scale").as_double());
    found.resize(expected.size());
    CHECK(found == expected);
    CHECK(before.step(expected.size(), "loss_scale") != expected.back());
  };
}

std::string file(const std::string& more, const std::string& batch = R"("train_batch_size": 4)") {
  return "{" + batch + (more.empty() ? "" : ", ") + more + "}";
}
std::string fp16(const std::string& more) {
  return file(R"("fp16": {"enabled": true)" + (more.empty() ? "" : ", " + more) + "}");
}
std::string zero(const std::string& more) { return file(R"("zero_optimization": {)" + more + "}"); }
std::string adam(const std::string& more) {
  return file(R"("optimizer": {"type": "AdamW", "params": {"lr": 0.01)" + more + "}}");
}
std::string l2_adam(const std::string& mode) {
  return file(R"("optimizer": {"type": "Adam", "params": {"lr": 0.01, "weight_decay": 0.5,
                 "adam_w_mode": )" +
              mode + "}}");
}
std::string sgd(const std::string& more) {
  return file(R"("optimizer": {"type": "SGD", "params": {"lr": 0.1)" + more + "}}");
}
std::string muon(const std::string& more) {
  return file(R"("optimizer": {"type": "Muon", "params": {"lr": 0.01)" + more + "}}");
}
std::string warmup(const std::string& type, const std::string& more) {
  return file(R"("optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "scheduler": {"type": ")" +
              type + R"(", "params": {)" + more + "}}");
}

const std::string kDecay =
                      R"("warmup_max_lr": 0.01, "warmup_num_steps": 2, "warmup_type": "linear")",
                  kSixty = R"(, "total_num_steps": 60)";

std::vector<Effect> effects() {
  const auto cosine = [](const std::string& more) {
    return warmup("WarmupCosineLR", R"("total_num_steps": 5, "warmup_num_steps": 2)" + more);
  };
  const std::string bf16 = R"("bf16": {"enabled": true})";
  return {
      {"train_batch_size", file(""), file("", R"("train_batch_size": 8)"), samples(8)},
      {"train_micro_batch_size_per_gpu",
       file(R"("train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2})"),
       file(R"("train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2})"),
       [](const Seen& before, const Seen& after) {  // stage 2 reduces every micro-batch
         CHECK(after.step(2, "samples") == before.step(2, "samples"));
         CHECK(after.bytes("comm") > 1.2 * before.bytes("comm"));
       }},
      {"gradient_accumulation_steps", file("", R"("train_micro_batch_size_per_gpu": 2)"),
       file(R"("gradient_accumulation_steps": 3)", R"("train_micro_batch_size_per_gpu": 2)"),
       samples(12)},
      {"gradient_clipping", file(R"("gradient_clipping": 0)"), file(R"("gradient_clipping": 0.01)"),
       [](const Seen& before, const Seen& after) {
         CHECK(before.step(2, "clip_coefficient") == 1);
         CHECK(after.step(2, "clip_coefficient") * after.step(2, "grad_norm") == Approx(0.01));
       }},
      {"tensorboard.enabled", file(R"("tensorboard": {"enabled": false})"),
       file(R"("tensorboard": {"enabled": true})"),
       [](const Seen& before, const Seen& after) {
         CHECK_FALSE(std::filesystem::exists(before.directory + "/tensorboard"));
         CHECK(std::filesystem::exists(after.directory + "/tensorboard"));
       }},
      {"fp16.enabled", file(""), fp16(""), less("parameter")},
      {"fp16.loss_scale", fp16(""), fp16(R"("loss_scale": 128, "loss_scale_window": 1)"),
       scales({128, 128, 128, 128})},
      {"fp16.initial_scale_power", fp16(""), fp16(R"("initial_scale_power": 10)"),
       scales({1024, 1024, 1024, 1024})},
      {"fp16.loss_scale_window", fp16(R"("initial_scale_power": 10)"),
       fp16(R"("initial_scale_power": 10, "loss_scale_window": 2)"),
       scales({1024, 1024, 2048, 2048})},
      {"bf16.enabled", file(""), file(bf16), less("parameter")},
      {"data_types.grad_accum_dtype",
       file(bf16 + R"(, "data_types": {"grad_accum_dtype": "fp32"})"), file(bf16),
       less("gradient")},
      {"communication_data_type", file(""), file(R"("communication_data_type": "bf16")"),
       less("comm")},
      {"zero_optimization.stage", zero(R"("stage": 0)"), zero(R"("stage": 1)"), less("optimizer")},
      {"zero_optimization.stage", zero(R"("stage": 1)"), zero(R"("stage": 2)"), less("gradient")},
      {"zero_optimization.stage", zero(R"("stage": 2)"),
       zero(R"("stage": 3, "stage3_param_persistence_threshold": 0)"), less("parameter")},
      {"zero_optimization.overlap_comm", zero(R"("stage": 3, "overlap_comm": true)"),
       zero(R"("stage": 3, "overlap_comm": false)"), less("buffer")},
      {"zero_optimization.reduce_bucket_size",
       file(R"("communication_data_type": "bf16", "zero_optimization": {"stage": 1})"),
       file(R"("communication_data_type": "bf16",
               "zero_optimization": {"stage": 1, "reduce_bucket_size": 64})"),
       less("buffer")},
      {"zero_optimization.stage3_prefetch_bucket_size",
       zero(R"("stage": 3, "stage3_param_persistence_threshold": 0)"),
       zero(R"("stage": 3, "stage3_param_persistence_threshold": 0,
               "stage3_prefetch_bucket_size": 0)"),
       less("buffer")},
      {"zero_optimization.stage3_param_persistence_threshold",
       zero(R"("stage": 3, "stage3_param_persistence_threshold": 100000)"),
       zero(R"("stage": 3, "stage3_param_persistence_threshold": 10)"), less("parameter")},
      {"zero_optimization.offload_optimizer.device", zero(R"("stage": 2)"),
       zero(R"("stage": 2, "offload_optimizer": {"device": "cpu"})"),
       [](const Seen& before, const Seen& after) {
         CHECK(after.bytes("optimizer") == 0);
         CHECK(after.bytes("host") >= before.bytes("optimizer"));
       }},
      {"zero_optimization.offload_param.device",
       zero(R"("stage": 3, "stage3_param_persistence_threshold": 0,
               "offload_optimizer": {"device": "cpu"})"),
       zero(R"("stage": 3, "stage3_param_persistence_threshold": 0,
               "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"})"),
       less("parameter")},
      {"optimizer.params.lr", adam(""),
       file(R"("optimizer": {"type": "AdamW", "params": {"lr": 0.02}})"), rate(1, 0.02)},
      {"optimizer.params.betas", adam(""), adam(R"(, "betas": [0.5, 0.6])"), other_weights},
      {"optimizer.params.eps", adam(""), adam(R"(, "eps": 0.1)"), other_weights},
      {"optimizer.params.weight_decay", adam(""), adam(R"(, "weight_decay": 0.5)"), other_weights},
      {"optimizer.type", adam(""), file(R"("optimizer": {"type": "Lion", "params": {"lr": 0.01}})"),
       less("optimizer")},
      {"optimizer.params.muon_lr", muon(""), muon(R"(, "muon_lr": 0.05)"), other_weights},
      {"optimizer.params.adam_lr", muon(""), muon(R"(, "adam_lr": 0.002)"), rate(1, 0.002)},
      {"optimizer.params.adam_w_mode", l2_adam("true"), l2_adam("false"), other_weights},
      {"optimizer.params.momentum", sgd(""), sgd(R"(, "momentum": 0.9)"), other_weights},
      {"optimizer.params.nesterov", sgd(R"(, "momentum": 0.9)"),
       sgd(R"(, "momentum": 0.9, "nesterov": true)"), other_weights},
      {"scheduler.type", warmup("WarmupLR", kDecay), warmup("WarmupDecayLR", kDecay + kSixty),
       [](const Seen& before, const Seen& after) {
         CHECK(before.step(6, "learning_rate") == Approx(0.01));
         CHECK(after.step(6, "learning_rate") < 0.0099);
       }},
      {"scheduler.params.warmup_min_lr", warmup("WarmupLR", kDecay),
       warmup("WarmupLR", kDecay + R"(, "warmup_min_lr": 0.001)"), rate(1, 0.001)},
      {"scheduler.params.warmup_max_lr", warmup("WarmupLR", kDecay),
       warmup("WarmupLR", R"("warmup_max_lr": 0.03, "warmup_num_steps": 2)"), rate(4, 0.03)},
      {"scheduler.params.warmup_num_steps", warmup("WarmupLR", kDecay),
       warmup("WarmupLR", R"("warmup_max_lr": 0.01, "warmup_num_steps": 40)"),
       [](const Seen& before, const Seen& after) {
         CHECK(after.step(4, "learning_rate") < before.step(4, "learning_rate"));
       }},
      {"scheduler.params.warmup_type",
       warmup("WarmupLR", R"("warmup_max_lr": 0.01, "warmup_num_steps": 40)"),
       warmup("WarmupLR",
              R"("warmup_max_lr": 0.01, "warmup_num_steps": 40, "warmup_type": "linear")"),
       [](const Seen& before, const Seen& after) {  // the logarithm rises earlier
         CHECK(after.step(4, "learning_rate") < 0.5 * before.step(4, "learning_rate"));
       }},
      {"scheduler.params.total_num_steps", warmup("WarmupDecayLR", kDecay + kSixty),
       warmup("WarmupDecayLR", kDecay + R"(, "total_num_steps": 6)"),
       [](const Seen& before, const Seen& after) {
         CHECK(after.step(6, "learning_rate") < 0.8 * before.step(6, "learning_rate"));
       }},
      {"scheduler.params.warmup_min_ratio", cosine(""), cosine(R"(, "warmup_min_ratio": 0.5)"),
       rate(2, 0.005)},
      {"scheduler.params.cos_min_ratio", cosine(""), cosine(R"(, "cos_min_ratio": 0.9)"),
       [](const Seen& before, const Seen& after) {
         CHECK(after.step(6, "learning_rate") >= 0.009);
         CHECK(before.step(6, "learning_rate") < 0.009);
       }},
      {"pipeline.stages", file(""), file(R"("pipeline": {"stages": 2})"), less("parameter")},
      {"pipeline.activation_checkpoint_interval",
       file(R"("pipeline": {"stages": 2, "activation_checkpoint_interval": 0})"),
       file(R"("pipeline": {"stages": 2, "activation_checkpoint_interval": 1})"),
       [](const Seen& before, const Seen& after) {
         CHECK(after.bytes("measured_activation") < before.bytes("measured_activation"));
       }},
      {"tensor_parallel.autotp_size", file(""), file(R"("tensor_parallel": {"autotp_size": 2})"),
       less("parameter")},
  };
}

// Six steps.
Seen seen(const DeepSpeedJob& job, const Effect& effect, const std::string& text,
          const std::string& name, int code = 0) {
  job.write(name + ".json", text);
  std::vector<std::string> all =
      job.arguments(Json::parse("{}", {}, "none"), job.path(name + ".json"), name);
  all.insert(all.end(), {"--max_steps", "6"});  // the last one wins
  all.insert(all.end(), effect.flags.begin(), effect.flags.end());
  REQUIRE(run(all) == code);
  return Seen(job.path(name));
}

}  // namespace

TEST_CASE("every key of a DeepSpeed file that counts is seen in what a run measures") {
  const DeepSpeedJob job;
  std::set<std::string> shown;
  int number = 0;
  for (const Effect& effect : effects()) {
    INFO(effect.key);
    INFO(effect.after);
    shown.insert(effect.key);
    const std::string name = std::to_string(++number);
    const Seen before = seen(job, effect, effect.before, name + "-before"),
               after = seen(job, effect, effect.after, name + "-after");
    effect.check(before, after);
  }
  // The least scale is tested below. These keys have one legal value, or need a GPU.
  for (const char* key :
       {"fp16.min_loss_scale", "gradient_allreduce_op", "optimizer.params.bias_correction",
        "zero_optimization.offload_optimizer.pin_memory",
        "zero_optimization.offload_param.pin_memory"}) {
    shown.insert(key);
  }
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    if (key.use != DeepSpeedKey::kUsed || key.kind == DeepSpeedKey::kSection) continue;
    INFO("no run shows what " << key.path << " does");
    CHECK(shown.contains(key.path));
  }
}

TEST_CASE("equal DeepSpeed files give equal weights") {
  const DeepSpeedJob job;
  const auto hash = [&](const char* name) {
    return seen(job, {}, adam(""), name).end.at("param_hash_final").as_string();
  };
  CHECK(hash("one") == hash("two"));
}

TEST_CASE("the loss scale of a step is the one that flags and files say") {
  const DeepSpeedJob job;
  const auto scale = [](const Seen& run, size_t step) { return run.step(step, "loss_scale"); };
  const auto by_flags = [&](const char* name, const std::vector<std::string>& flags, int code = 0) {
    return seen(job, {.flags = flags}, file(""), name, code);
  };
  const Seen fixed = by_flags("fixed", {"--dtype", "fp16", "--loss_scale", "128"});
  for (size_t step = 1; step <= 4; ++step) CHECK(scale(fixed, step) == 128);
  const Seen grown = by_flags(
      "grown", {"--dtype", "fp16", "--initial_loss_scale", "64", "--loss_scale_window", "1"});
  for (size_t step = 1; step <= 4; ++step) CHECK(scale(grown, step) == std::exp2(5 + step));

  // Overflows halve the scale from the first one on; at the least scale the run ends.
  const char* const huge = R"("initial_scale_power": 60, "hysteresis": 4, "min_loss_scale": )";
  const Seen halved = seen(job, {}, fp16(huge + std::to_string(1 << 30)), "halved");
  for (size_t step = 1; step <= 4; ++step) {
    CHECK(halved.steps[step - 1].at("skipped").as_bool());
    CHECK(scale(halved, step) == std::exp2(61 - step));
  }
  const double least = std::exp2(59);
  const Seen file_ended =
      seen(job, {}, fp16(huge + JsonWriter().value(least).text()), "ended", /*code=*/6);
  const Seen flags_ended =
      by_flags("flags-ended",
               {"--dtype", "fp16", "--initial_loss_scale", JsonWriter().value(2 * least).text(),
                "--min_loss_scale", JsonWriter().value(least).text()},
               /*code=*/6);
  for (const Seen* run : {&file_ended, &flags_ended}) {
    CHECK(run->end.at("exit_code").as_int64() == 6);
    CHECK(scale(*run, 1) == 2 * least);
    CHECK(run->steps.size() <= 2);
  }
}
