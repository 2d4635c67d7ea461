// SPDX-License-Identifier: MIT
#include "lib/compare/peer.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "backends/strategy_kinds.h"
#include "lib/core/file.h"
#include "lib/core/joined.h"
#include "lib/core/nearest.h"
#include "lib/run/output.h"
#include "lib/settings/train_flags.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/data/data_loader.h"

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;

struct Peer {
  std::string name;
  std::vector<StrategyKind> strategies;
  std::vector<Offload> offloads;
};

const std::vector<Peer>& peers() {
  using enum StrategyKind;
  constexpr Offload kNone = Offload::kNone;
  static const std::vector<Peer> all{
      {"hf", {kSingle, kDdp}, {kNone}},
      {"hf-compile", {kSingle, kDdp}, {kNone}},
      {"peft", {kSingle, kDdp}, {kNone}},
      {"peft-compile", {kSingle, kDdp}, {kNone}},
      {"torch", {kSingle, kDdp, kFsdp}, {kNone}},
      {"torch-compile", {kSingle, kDdp}, {kNone}},
      {"deepspeed",
       {kSingle, kDdp, kZero1, kZero2, kZero3},
       {kNone, Offload::kOptimizer, Offload::kOptimizerAndParameters}}};
  return all;
}

// The script beside the program, as built or installed, or in the source tree.
std::string script_of(const std::string& peer) {
  const std::string file = "peer_" + peer.substr(0, peer.find('-')) + ".py", bin = program_folder();
  std::vector<std::string> folders{bin + "/peers", bin + "/../share/tessera/peers"};
  if (const std::string sources = TESSERA_PEERS; !sources.empty()) folders.push_back(sources);
  for (const std::string& folder : folders) {
    if (fs::exists(folder + "/" + file)) return folder + "/" + file;
  }
  fail(ErrorCode::kDataLoss, file, ": not found in ", joined(folders));
}

void write_row(std::ofstream& out, const TokenRow& row, bool counts) {
  JsonWriter line;
  line.begin_object().key("input_ids").begin_array();
  for (const int32_t id : row.input_ids) line.value(id);
  line.end_array().key("labels").begin_array();
  for (size_t i = 0; i < row.input_ids.size(); ++i) {
    line.value(counts ? static_cast<int64_t>(row.label_at(i)) : kIgnoredLabel);
  }
  out << line.end_array().end_object().text() << "\n";
}

// Writes the rows of each step in DataLoader's order; padding rows of an epoch's last batch have no
// targets.
void write_rows(const std::string& path, const ComparisonRow& row, int64_t steps, int64_t global) {
  const TokenTable& table = row.prepared->train;
  std::ofstream out(path, std::ios::trunc);
  int64_t written = 0;
  for (int64_t epoch = 0; written < steps * global; ++epoch) {
    std::vector<int64_t> order(table.size());
    std::iota(order.begin(), order.end(), 0);
    if (row.options.data.shuffle)
      order = shuffled_order(table.size(), row.options.training.seed, epoch);
    for (const int64_t index : order) {
      if (written < steps * global) write_row(out, table.row(index), true);
      ++written;
    }
    for (; written % global != 0; ++written) write_row(out, table.row(order.front()), false);
  }
  out.flush();
  check(out.good(), ErrorCode::kDataLoss, path, ": cannot be written; check the free space");
}

}  // namespace

std::vector<std::string> peer_names() {
  std::vector<std::string> names;
  for (const Peer& peer : peers()) names.push_back(peer.name);
  return names;
}

void check_peer(const std::string& name, const TrainOptions& o, Program program) {
  const auto require = [&](bool condition, const auto&... parts) {
    check(condition, ErrorCode::kInvalidArgument, "--peer ", name, parts...);
  };
  const auto peer = std::ranges::find(peers(), name, &Peer::name);
  require(peer != peers().end(), ": peers are ", joined(peer_names()),
          nearest_hint(name, peer_names()));
  std::vector<std::string> strategies;
  for (const StrategyKind kind : peer->strategies) strategies.push_back(name_of(kind));
  require(std::ranges::count(strategies, o.parallel.strategy) > 0, " has no --strategy ",
          o.parallel.strategy, "; it has ", joined(strategies));
  const Offload offload = o.parallel.offload.what;
  require(std::ranges::count(peer->offloads, offload) > 0 && !o.parallel.offload.activations,
          " has no --offload ", offload_name(o.parallel));
  require(program != Program::kClassification, " trains causal models, not classifiers");
  const bool trains_adapters = name.starts_with("peft");
  require(o.lora.adapter.empty(), " draws its adapters; it has no --adapter");
  require(trains_adapters || o.lora.r == 0, " trains every weight; --peer peft trains adapters");
  require(!trains_adapters || o.lora.r > 0, " trains adapters; give the row --lora_r");
  require(o.axes.sharers() == 1, " has neither pipeline nor tensor nor context ranks");
  require(o.memory.activations.empty(),
          " has no --activation_memory; --gradient_checkpointing takes all blocks");
  require(!o.data.packing && !o.data.group_by_length, " has no --packing and no --group_by_length");
  const LrScheduleKind schedule = o.training.lr_scheduler_type;
  require(schedule == LrScheduleKind::kLinear || schedule == LrScheduleKind::kConstant ||
              schedule == LrScheduleKind::kConstantWithWarmup,
          " has the schedules linear and constant");
  require(std::string(o.training.optim->name) == "adamw_torch", " has --optim adamw_torch");
  require(o.training.moments() == MomentsDtype::kFloat32, " has --moments_dtype fp32");
  require(o.training.no_decay_names.empty() && o.training.lr_groups.empty(),
          " has no --no_decay_names and no --lr_groups");
}

// Peers read their work as JSON.
std::string absolute_path(const std::string& path) {
  const std::string whole = fs::absolute(path).string();
  check(utf8_valid_prefix(whole) == whole.size(), ErrorCode::kInvalidArgument, whole,
        ": not valid UTF-8, which a peer's work needs; start from a folder with another name");
  return whole;
}

Children::Request peer_request(const ComparisonRow& row, const std::string& name,
                               const std::string& python, const std::string& model_directory,
                               const std::string& output_dir) {
  const TrainOptions& o = row.options;
  const std::string logs = output_dir + "/logs/" + name;
  const int64_t global = o.global_batch_size(row.mesh().data);
  const int64_t steps = steps_of(o.training, (row.prepared->train.size() + global - 1) / global);
  JsonWriter work(/*indent=*/1);
  work.begin_object().field("name", name).field("peer", row.peer);
  work.field("compile", row.peer.ends_with("-compile")).field("strategy", o.parallel.strategy);
  work.field("world_size", row.ranks).field("model", row.prepared->model.name);
  const ParameterCount count = parameter_count(row.prepared->model);
  work.field("num_parameters", count.all).field("num_trainable_parameters", count.trained);
  work.field("model_directory", absolute_path(model_directory));
  work.field("rows", absolute_path(logs + ".rows.jsonl"));
  work.field("output_dir", absolute_path(output_dir + "/" + name));
  work.field("dataset", row.prepared->train_path);
  work.field("dataset_sha256", row.prepared->dataset_sha256);
  work.field("num_train_samples", row.prepared->train.size());
  work.field("pad_id", row.prepared->config().pad_token.value_or(0));
  work.field("dtype", name_of(o.parallel.precision.parameter));
  work.field("offload", offload_name(o.parallel));
  work.field("pin_memory",
             o.parallel.offload.what != Offload::kNone && o.parallel.offload.pin_memory);
  work.field("gradient_checkpointing", o.parallel.gradient_checkpointing);
  work.field("per_device_train_batch_size", o.training.per_device_train_batch_size);
  work.field("gradient_accumulation_steps", o.training.gradient_accumulation_steps);
  work.field("global_batch_size", global).field("max_seq_length", o.data.max_seq_length);
  work.field("max_steps", steps)
      .field("seed", o.training.seed)
      .field("learning_rate", o.training.learning_rate);
  work.field("weight_decay", o.training.weight_decay)
      .field("max_grad_norm", o.training.max_grad_norm);
  work.field("adam_beta1", o.training.adam_beta1).field("adam_beta2", o.training.adam_beta2);
  work.field("adam_epsilon", o.training.adam_epsilon);
  work.field("lora_r", o.lora.r).field("lora_alpha", o.lora.alpha);
  work.field("lora_dropout", o.lora.dropout).field("use_rslora", o.lora.use_rslora);
  work.field("lora_target_modules", o.lora.target_modules);
  work.field("lora_target_parameters", o.lora.target_parameters);
  work.field("lora_modules_to_save", o.lora.modules_to_save);
  work.field("lr_scheduler_type", name_of(o.training.lr_scheduler_type));
  work.field("warmup_steps", warmup_steps_of(o.training, steps)).end_object();
  write_rows(logs + ".rows.jsonl", row, steps, global);
  write_text_file(logs + ".json", work.text() + "\n");

  Children::Request request{.name = name, .program = script_of(row.peer)};
  request.command = {python};
  if (row.ranks > 1) {
    request.torchrun = true;
    request.command.insert(request.command.end(), {"-m", "torch.distributed.run", "--standalone",
                                                   concat("--nproc-per-node=", row.ranks)});
  }
  request.command.insert(request.command.end(), {request.program, absolute_path(logs + ".json")});
  request.inputs = work.text();
  return request;
}

std::vector<std::string> drawn_weights_flags(const TrainOptions& o) {
  std::vector<std::string> flags{"--model_config", o.model.config, "--seed",
                                 std::to_string(o.training.seed)};
  const auto add = [&](const std::string& flag, const std::string& value) {
    if (!value.empty()) flags.insert(flags.end(), {"--" + flag, value});
  };
  add("tokenizer", o.model.tokenizer);
  add("train_file", o.data.train_file);
  add("train_ids", o.data.train_ids);
  add("random_rows", o.data.random_rows > 0 ? "1" : "");
  add("max_seq_length", std::to_string(o.data.max_seq_length));
  for (const auto& [flag, value] : {std::pair{"per_device_train_batch_size", "1"},
                                    {"max_steps", "1"},
                                    {"learning_rate", "0"},
                                    {"eval_steps", "-1"},
                                    {"report_to", "none"}}) {
    add(flag, value);
  }
  return flags;
}

}  // namespace tessera::programs
