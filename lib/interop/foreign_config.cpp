// SPDX-License-Identifier: MIT
#include "lib/interop/foreign_config.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "lib/core/file.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

// Keys (section.key) and values; both file kinds have at most one level of sections.
using Settings = std::map<std::string, std::string>;

std::string trimmed(const std::string& text) {
  const char* blank = " \t\r\"'";
  const size_t begin = text.find_first_not_of(blank);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(blank) + 1 - begin);
}

Settings read_settings(const std::string& text, char separator) {
  Settings settings;
  std::string section;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line = line.substr(0, line.find('#'));
    if (trimmed(line).empty()) continue;
    if (line.front() == '[') {  // TOML
      section = trimmed(line.substr(1, line.find(']') - 1)) + ".";
      continue;
    }
    const size_t at = line.find(separator);
    if (at == line.npos) continue;
    const std::string name = trimmed(line.substr(0, at)), value = trimmed(line.substr(at + 1));
    if (separator == ':' && line.front() != ' ') section = value.empty() ? name + "." : "";
    if (!value.empty()) settings[section + name] = value;
  }
  return settings;
}

// As above for an accelerate file in JSON; empty for other JSON.
Settings read_json_settings(const std::string& text, const std::string& path) {
  Settings settings;
  std::optional<Json> root;
  try {
    root = Json::parse(text, {}, path);
  } catch (const Error&) {
    return settings;
  }
  if (!root->is_object() || !root->find("distributed_type")) return settings;
  const auto add = [&](const std::string& key, const Json& value) {
    if (!value.is_null()) settings[key] = value.is_string() ? value.as_string() : value.dump();
  };
  for (const auto& [name, value] : root->members()) {
    if (!value.is_object()) {
      add(name, value);
      continue;
    }
    for (const auto& [inner, of_section] : value.members()) add(name + "." + inner, of_section);
  }
  return settings;
}

class Answer {
 public:
  explicit Answer(const Settings& settings) : settings_(settings) {}

  std::string value(const std::string& key) const {
    const auto found = settings_.find(key);
    return found == settings_.end() ? "" : found->second;
  }
  bool is(const std::string& key, const std::string& wanted) const {
    std::string text = value(key);
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text == wanted;
  }
  int64_t count(const std::string& key, int64_t otherwise) const {
    const std::string text = value(key);
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
    return digits && text.size() < 10 ? std::stoll(text) : otherwise;
  }
  void say(const std::string& flag) { flags_ += " " + flag; }
  // Adds the flag if the value is present, complete and not `unless`.
  void pass(const std::string& key, const std::string& flag, const std::string& unless = "") {
    const std::string text = value(key);
    if (!text.empty() && text != unless && text != "auto") say(flag + " " + text);
  }
  const std::string& flags() const { return flags_; }

 private:
  const Settings& settings_;
  std::string flags_;
};

std::string answer_accelerate(const std::string& path, const Settings& settings) {
  Answer a(settings);
  std::string missing;
  const std::string ds = "deepspeed_config.", megatron = "megatron_lm_config.megatron_lm_";
  if (const std::string file = a.value(ds + "deepspeed_config_file"); !file.empty()) {
    a.say("--deepspeed " + file);
  } else if (a.is("distributed_type", "deepspeed")) {
    const int64_t stage = a.count(ds + "zero_stage", 2);
    a.say(stage == 0 ? "--strategy ddp" : concat("--strategy zero", stage));
    const std::string of_params = ds + "offload_param_device",
                      of_optimizer = ds + "offload_optimizer_device";
    const auto is_away = [&](const std::string& key) {
      return !a.value(key).empty() && !a.is(key, "none");
    };
    // Below stage 3 there are no parameters to offload.
    const bool params = stage == 3 && is_away(of_params);
    if (params || is_away(of_optimizer)) {
      a.say(params ? "--offload optimizer+params" : "--offload optimizer");
    }
    if ((params && a.is(of_params, "nvme")) || a.is(of_optimizer, "nvme")) {
      missing += "; nvme is not available, host memory is";
    }
    a.pass(ds + "gradient_accumulation_steps", "--gradient_accumulation_steps");
    a.pass(ds + "gradient_clipping", "--max_grad_norm");
  } else if (a.is("distributed_type", "fsdp")) {
    const std::string fsdp = "fsdp_config.fsdp_";
    const std::string kind = a.value(fsdp + "sharding_strategy");
    const bool none = kind == "NO_SHARD" || kind == "3";
    a.say(none ? "--strategy ddp" : "--strategy fsdp");
    if (kind == "SHARD_GRAD_OP" || kind == "2" || kind == "HYBRID_SHARD_ZERO2" || kind == "5" ||
        a.is(fsdp + "reshard_after_forward", "false")) {
      a.say("--reshard_after_forward false");
    }
    if (kind.starts_with("HYBRID_SHARD") || kind == "4" || kind == "5") {
      a.say("--shard_ranks RANKS_OF_A_NODE");
    }
    if (a.is(fsdp + "offload_params", "true")) a.say("--offload optimizer+params");
    if (a.is(fsdp + "activation_checkpointing", "true")) a.say("--gradient_checkpointing");
    a.pass(fsdp + "min_num_params", "--fsdp_unit_numel", "0");
  } else {
    a.say(a.is(megatron + "use_distributed_optimizer", "true") ? "--strategy zero1"
                                                               : "--strategy ddp");
  }
  const std::string axes = "parallelism_config.parallelism_config_";
  a.pass(axes + "tp_size", "--tensor_parallel", "1");
  a.pass(megatron + "tp_degree", "--tensor_parallel", "1");
  a.pass(megatron + "pp_degree", "--pipeline_parallel", "1");
  if (a.is(megatron + "sequence_parallelism", "true")) a.say("--sequence_parallel");
  if (a.is(megatron + "recompute_activations", "true")) a.say("--gradient_checkpointing");
  a.pass(megatron + "num_micro_batches", "--gradient_accumulation_steps", "1");
  a.pass(megatron + "gradient_clipping", "--max_grad_norm");
  const int64_t shards = a.count(axes + "dp_shard_size", 1);
  if (shards > 1 && a.count(axes + "dp_replicate_size", 1) > 1) {
    a.say(concat("--shard_ranks ", shards));
  }
  a.pass(axes + "cp_size", "--context_parallel", "1");
  const int64_t sequence_ranks = a.count(axes + "sp_size", 1);
  if (sequence_ranks > 1) {
    a.say(concat("--context_parallel ", sequence_ranks, " --context_attention heads"));
  }
  const std::string precision = a.value("mixed_precision");
  if (precision == "bf16" || precision == "fp16") a.say("--dtype " + precision);
  if (precision == "fp8") {
    const bool cuts_rows = sequence_ranks > 1 || a.count(axes + "cp_size", 1) > 1;
    a.say(cuts_rows ? "--dtype bf16" : "--dtype bf16 --fp8 tensorwise");
    missing += cuts_rows ? "; fp8 is not available beside --context_parallel"
                         : "; scales are those of the values, without history";
  }
  a.pass("gradient_accumulation_steps", "--gradient_accumulation_steps");
  return concat(path, " is a configuration of accelerate; ",
                missing.empty() ? "the same" : "the nearest", " here, without it: mpirun -n ",
                a.count("num_processes", 1), " PROGRAM", a.flags(), missing);
}

std::string answer_torchtitan(const std::string& path, const Settings& settings) {
  Answer a(settings);
  const std::string axes = "parallelism.", training = "training.";
  const int64_t shard = a.count(axes + "data_parallel_shard_degree", -1),
                replicate = a.count(axes + "data_parallel_replicate_degree", 1);
  a.say(shard == 1 ? "--strategy ddp" : "--strategy fsdp");
  if (shard > 1 && replicate > 1) a.say(concat("--shard_ranks ", shard));
  if (a.is(axes + "fsdp_reshard_after_forward", "never")) a.say("--reshard_after_forward false");
  a.pass(axes + "tensor_parallel_degree", "--tensor_parallel", "1");
  a.pass(axes + "pipeline_parallel_degree", "--pipeline_parallel", "1");
  a.pass(axes + "context_parallel_degree", "--context_parallel", "1");
  a.pass(axes + "expert_parallel_degree", "--expert_parallel", "1");
  std::string schedule = a.value(axes + "pipeline_parallel_schedule");
  std::ranges::transform(schedule, schedule.begin(),
                         [](unsigned char c) { return std::tolower(c); });
  if (schedule.starts_with("interleaved")) schedule = "interleaved";
  if (schedule == "gpipe" || schedule == "1f1b" || schedule == "interleaved") {
    a.say("--pipeline_schedule " + schedule);
  }
  if (a.is("activation_checkpoint.mode", "full")) a.say("--gradient_checkpointing");
  if (a.is("activation_checkpoint.mode", "memory_budget")) a.say("--activation_memory auto");
  a.say(a.is(training + "mixed_precision_param", "float32") ? "--dtype fp32" : "--dtype bf16");
  const bool old = a.value(training + "local_batch_size").empty();
  a.pass(training + (old ? "batch_size" : "local_batch_size"), "--per_device_train_batch_size");
  a.pass(training + "seq_len", "--max_seq_length");
  a.pass(training + "steps", "--max_steps");
  a.pass(training + "max_norm", "--max_grad_norm");
  a.pass("optimizer.lr", "--learning_rate");
  a.pass("lr_scheduler.warmup_steps", "--warmup_steps");
  return concat(path, " is a configuration of torchtitan; the same here, without it: PROGRAM",
                a.flags());
}

// Trainers' files that name a DeepSpeed file, such as axolotl's and LLaMA-Factory's.
std::string answer_unknown(const std::string& path, const Settings& settings) {
  const auto named = settings.find("deepspeed");
  const std::string remedy = named == settings.end()
                                 ? "DeepSpeed's files are JSON"
                                 : "give the one it names: --deepspeed " + named->second;
  return concat(path, " is a file neither of DeepSpeed nor of accelerate or torchtitan; ", remedy,
                ", everything else stands in flags, see --help");
}

bool has_one_of(const Settings& settings, const std::vector<std::string>& beginnings) {
  return std::ranges::any_of(beginnings, [&](const std::string& beginning) {
    const auto found = settings.lower_bound(beginning);
    return found != settings.end() && found->first.starts_with(beginning);
  });
}

}  // namespace

std::optional<std::string> answer_foreign_config(const std::string& path) {
  const bool yaml = path.ends_with(".yaml") || path.ends_with(".yml");
  const bool toml = path.ends_with(".toml");
  std::string text;
  try {
    text = read_file(path, 1 << 20);
  } catch (const Error& error) {
    if (!yaml && !toml) return std::nullopt;  // reported by the DeepSpeed reader
    fail(ErrorCode::kInvalidArgument, "--deepspeed: ", error.what());
  }
  if (!yaml && !toml) {
    const Settings settings = read_json_settings(text, path);
    if (settings.empty()) return std::nullopt;
    return answer_accelerate(path, settings);
  }
  const Settings settings = read_settings(text, yaml ? ':' : '=');
  if (yaml && has_one_of(settings, {"compute_environment", "distributed_type", "num_processes"})) {
    return answer_accelerate(path, settings);
  }
  if (toml && has_one_of(settings, {"training.", "parallelism.", "job."})) {
    return answer_torchtitan(path, settings);
  }
  return answer_unknown(path, settings);
}

void refuse_foreign_config(const std::string& path) {
  if (const auto answer = answer_foreign_config(path)) fail(ErrorCode::kInvalidArgument, *answer);
}

}  // namespace tessera::programs
