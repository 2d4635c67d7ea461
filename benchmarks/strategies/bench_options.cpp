#include "benchmarks/strategies/bench_options.h"

#include <algorithm>

#include "examples/common/lists.h"
#include "tessera/core/error.h"

namespace tessera::bench {
namespace {

at::ScalarType dtype_of(const std::string& flag, const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  check(name == "fp32", ErrorCode::kInvalidArgument, "--", flag, " is ", name,
        "; use fp32, bf16 or fp16");
  return at::kFloat;
}

// The names that the programs have for what is shorter here.
const std::map<std::string, std::string>& names_of_programs() {
  static const std::map<std::string, std::string> names{
      {"strategy", "strategies"},
      {"per_device_train_batch_size", "micro_batches"},
      {"gradient_accumulation_steps", "accumulation"},
      {"max_seq_length", "seq"},
      {"max_steps", "steps"},
      {"max_grad_norm", "clip"},
      {"gradient_checkpointing", "checkpointing"},
      {"prefetch_blocks", "prefetch"},
      {"fsdp_unit_numel", "unit_numel"},
      {"reshard_after_forward", "reshard"},
      {"pipeline_parallel", "pipeline"},
      {"pipeline_schedule", "schedule"},
      {"pipeline_chunks", "chunks"},
      {"pipeline_balance", "balance"},
      {"tensor_parallel", "tensor"}};
  return names;
}

// "" for what is no flag.
std::string key_of(const std::string& flag) {
  if (!flag.starts_with("--")) return "";
  const auto found = names_of_programs().find(flag.substr(2));
  return found == names_of_programs().end() ? flag.substr(2) : found->second;
}

}  // namespace

Options::Options()
    : values_{{"model_config", "bloom-tiny"},
              {"strategies", "single"},
              {"micro_batches", "4"},
              {"accumulation", "1"},
              {"seq", "128"},
              {"rows", "fixed"},
              {"supervise", "all"},
              {"padding_free", "true"},
              {"dtype", "fp32"},
              {"gradient_dtype", ""},
              {"reduce_dtype", ""},
              {"steps", "10"},
              {"warmup", "3"},
              {"backend", "auto"},
              {"overlap", "true"},
              {"bucket_bytes", "26214400"},
              {"prefetch", "1"},
              {"reduce_at_boundary", "false"},
              {"persistence_threshold", "100000"},
              {"unit_numel", "0"},
              {"reshard", "true"},
              {"shard_ranks", "0"},
              {"checkpointing", "false"},
              {"keep_activations", "false"},
              {"offload", "none"},
              {"offload_step", "auto"},
              {"pin_memory", "true"},
              {"offload_threads", "0"},
              {"pipeline", "1"},
              {"schedule", "1f1b"},
              {"chunks", "1"},
              {"balance", "time"},
              {"pipeline_vocabulary", "stage"},
              {"tensor", "1"},
              {"sequence_parallel", "false"},
              {"clip", "1"},
              {"sync", "true"}} {}

void Options::parse(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const std::string key = key_of(flag);
    const bool known = values_.contains(key);
    const bool last = i + 1 == argc || std::string(argv[i + 1]).starts_with("--");
    const bool is_switch = known && (values_[key] == "true" || values_[key] == "false");
    if (known && last && is_switch) {
      values_[key] = "true";
      continue;
    }
    if (!known || last) {
      std::string all;
      for (const auto& [name, value] : values_) all += concat(" --", name, " (", value, ")");
      fail(ErrorCode::kInvalidArgument, known ? "missing value of " : "unknown flag ", flag,
           "; flags and defaults:", all, "; the names of the programs' flags are understood");
    }
    values_[key] = argv[++i];
  }
}

int64_t Options::number(const std::string& key) const {
  const std::string& value = text(key);
  const bool digits = !value.empty() && value.size() < 18 &&
                      std::all_of(value.begin(), value.end(), [](char c) { return isdigit(c); });
  check(digits, ErrorCode::kInvalidArgument, "--", key, " is '", value, "'; expected an integer");
  return std::stoll(value);
}

bool Options::flag(const std::string& key) const {
  const std::string& value = text(key);
  check(value == "true" || value == "false", ErrorCode::kInvalidArgument, "--", key, " is '", value,
        "'; expected true or false");
  return value == "true";
}

std::vector<std::string> Options::list(const std::string& key) const {
  return programs::items_of(text(key));
}

MeshExtents Options::mesh(int world_size) const {
  const auto pipeline = static_cast<int>(number("pipeline"));
  const auto tensor = static_cast<int>(number("tensor"));
  return {pipeline, std::max(1, world_size / std::max(1, pipeline * tensor)), tensor};
}

ParallelConfig Options::parallel(const std::string& strategy) const {
  const std::vector<std::string> offloads{"none", "optimizer", "optimizer+params"};
  const auto offload = std::find(offloads.begin(), offloads.end(), text("offload"));
  check(offload != offloads.end(), ErrorCode::kInvalidArgument, "--offload is ", text("offload"),
        "; use none, optimizer or optimizer+params");
  const std::vector<std::string> places{"auto", "host", "device"};
  const auto place = std::find(places.begin(), places.end(), text("offload_step"));
  check(place != places.end(), ErrorCode::kInvalidArgument, "--offload_step is ",
        text("offload_step"), "; use auto, host or device");
  const bool shared = text("pipeline_vocabulary") == "shared";
  check(shared || text("pipeline_vocabulary") == "stage", ErrorCode::kInvalidArgument,
        "--pipeline_vocabulary is ", text("pipeline_vocabulary"), "; use stage or shared");
  ParallelConfig config{.strategy = strategy,
                        .bucket_bytes = number("bucket_bytes"),
                        .overlap = flag("overlap"),
                        .reduce_at_boundary = flag("reduce_at_boundary"),
                        .persistence_threshold = number("persistence_threshold"),
                        .prefetch_blocks = static_cast<int>(number("prefetch")),
                        .unit_numel = number("unit_numel"),
                        .reshard_after_forward = flag("reshard"),
                        .shard_ranks = static_cast<int>(number("shard_ranks")),
                        .gradient_checkpointing = flag("checkpointing"),
                        .keep_activations = flag("keep_activations"),
                        .offload = {.what = static_cast<Offload>(offload - offloads.begin()),
                                    .step = static_cast<OffloadStep>(place - places.begin()),
                                    .pin_memory = flag("pin_memory"),
                                    .threads = static_cast<int>(number("offload_threads"))},
                        .pipeline = {.schedule = text("schedule"),
                                     .chunks = static_cast<int>(number("chunks")),
                                     .shared_vocabulary = shared,
                                     .balance = text("balance")},
                        .sequence_parallel = flag("sequence_parallel")};
  config.precision.parameter = dtype_of("dtype", text("dtype"));
  for (const auto& [key, member] : {std::pair{"gradient_dtype", &config.precision.gradient},
                                    std::pair{"reduce_dtype", &config.precision.reduce}}) {
    if (!text(key).empty()) *member = dtype_of(key, text(key));
  }
  return config;
}

std::string Options::variant() const {
  const Options defaults;
  std::string all;
  for (const auto& [key, value] : values_) {
    const bool told_elsewhere = key == "model_config" || key == "strategies" ||
                                key == "micro_batches" || key == "accumulation" || key == "seq" ||
                                key == "dtype" || key == "steps" || key == "warmup" ||
                                key == "backend" || key == "pipeline" || key == "tensor";
    if (told_elsewhere || value == defaults.text(key)) continue;
    all += concat(all.empty() ? "" : " ", key, "=", value);
  }
  return all;
}

}  // namespace tessera::bench
