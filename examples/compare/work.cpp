#include "examples/compare/work.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

constexpr std::array<std::string_view, 47> kSameNumbers{"strategy",
                                                        "offload",
                                                        "offload_step",
                                                        "pin_memory",
                                                        "offload_threads",
                                                        "pipeline_parallel",
                                                        "pipeline_schedule",
                                                        "pipeline_chunks",
                                                        "pipeline_balance",
                                                        "pipeline_vocabulary",
                                                        "tensor_parallel",
                                                        "sequence_parallel",
                                                        "gradient_checkpointing",
                                                        "keep_activations",
                                                        "bucket_bytes",
                                                        "overlap",
                                                        "reduce_at_boundary",
                                                        "persistence_threshold",
                                                        "prefetch_blocks",
                                                        "reshard_after_forward",
                                                        "fsdp_unit_numel",
                                                        "shard_ranks",
                                                        "packing",
                                                        "padding_free",
                                                        "pad_to_max_length",
                                                        "pad_to_multiple_of",
                                                        "per_device_train_batch_size",
                                                        "per_device_eval_batch_size",
                                                        "gradient_accumulation_steps",
                                                        "output_dir",
                                                        "overwrite_output_dir",
                                                        "report_to",
                                                        "logging_steps",
                                                        "eval_steps",
                                                        "save_strategy",
                                                        "save_steps",
                                                        "save_total_limit",
                                                        "save_async",
                                                        "save_on_signal",
                                                        "save_final",
                                                        "deterministic",
                                                        "deepspeed",
                                                        "deepspeed_defaults",
                                                        "ranks",
                                                        "backend",
                                                        "cache_dir",
                                                        "predictions"};

std::string shown(const Work& work, const std::string& name) {
  const auto found = work.find(name);
  return found == work.end() || found->second.empty() ? "none" : found->second;
}

}  // namespace

Work work_of(const FlagSet& flags) {
  Work work;
  const Json config = Json::parse(flags.config_json(/*indent=*/0), {}, "flags");
  for (const auto& [name, entry] : config.members()) {
    if (std::ranges::count(kSameNumbers, name) > 0) continue;
    const Json value = entry.at("value");
    work[name] = value.is_string() ? value.as_string() : value.dump();
  }
  return work;
}

std::string difference(const Work& work, const Work& other) {
  std::string text;
  for (const auto& [name, value] : work) {
    if (shown(other, name) == shown(work, name)) continue;
    text += concat(text.empty() ? "" : "; ", name, " ", shown(work, name), ", not ",
                   shown(other, name));
  }
  return text;
}

}  // namespace tessera::programs
