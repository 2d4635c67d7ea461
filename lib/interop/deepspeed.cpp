// SPDX-License-Identifier: MIT
#include "lib/interop/deepspeed.h"

#include <algorithm>
#include <cmath>

#include "lib/interop/hub_cache.h"
#include "lib/settings/layout.h"
#include "tessera/core/error.h"
#include "tessera/models/language_model.h"

namespace tessera::programs {
namespace {

using Value = DeepSpeedFile::Value;

// Hidden size of the model to build; 0 if its configuration cannot be read, which is reported
// later.
int64_t hidden_size(const TrainOptions& o) {
  try {
    const LanguageModel model =
        !o.model.directory.empty()
            ? LanguageModel::from_directory(find_in_hub_cache(o.model.directory))
        : o.model.config.ends_with(".json") ? LanguageModel::from_file(o.model.config)
                                            : LanguageModel::preset(o.model.config);
    return model.config().hidden;
  } catch (const Error&) {
    return 0;
  }
}

class Applier {
 public:
  Applier(const DeepSpeedFile& file, int64_t world_size, TrainOptions& options, FlagSet& flags)
      : file_(file), world_size_(world_size), options_(options), flags_(flags) {}

  void run() {
    precision();
    axes();
    zero();
    offload();
    batch();
    clipping();
    optimizer();
    scheduler();
    if (is_true("tensorboard.enabled") && !flags_.given("report_to")) {
      set("report_to", options_.output.report_to + ",tensorboard",
          file_.where(*file_.find("tensorboard.enabled")));
    }
    notices();
  }

 private:
  enum Winner { kNeither, kFile };

  const Value* find(const std::string& key) const { return file_.find(key); }
  bool is_true(const std::string& key) const {
    const Value* value = find(key);
    return value != nullptr && value->json.is_bool() && value->json.as_bool();
  }
  void set(const std::string& flag, const std::string& text, const std::string& origin) {
    flags_.set(flag, text, origin);
  }

  // Sets the flag to the file's value under `key`. winner: which side wins if the flag was given
  // another value.
  void take(const std::string& flag, const std::string& text, const std::string& key,
            Winner winner = kNeither) {
    const Value& value = *find(key);
    if (flags_.given(flag)) {
      const std::string given = flags_.text(flag), origin = flags_.origin(flag);
      flags_.set(flag, text, file_.where(value));
      if (flags_.text(flag) == given) return set(flag, given, origin);
      check(winner == kFile, ErrorCode::kInvalidArgument, file_.where(value), ": ", key, " ",
            value.json.dump(), " is --", flag, " ", text, " here, but --", flag, " ", given, " (",
            origin, ") says otherwise; leave out one of them, or write \"auto\" in the file");
      flags_.add_notice(concat(file_.where(value), ": ", key, " ", value.json.dump(),
                               " wins over --", flag, " ", given, " (", origin, ")"));
    }
    set(flag, text, file_.where(value));
  }

  // Leaves the value to the flag ("auto").
  void leave(const std::string& flag, const std::string& key) {
    const std::string origin = flags_.origin(flag);
    if (origin.find(", auto in ") != origin.npos) return;
    set(flag, flags_.text(flag), concat(origin, ", auto in ", file_.where(*find(key))));
  }

  // Takes a number, an integer or "auto" unchanged.
  void plain(const std::string& flag, const std::string& key, Winner winner = kNeither) {
    const Value* value = find(key);
    if (value == nullptr) return;
    if (value->is_auto()) return leave(flag, key);
    take(flag, number_text(*value), key, winner);
  }

  static std::string number_text(const Value& value) {
    const double number = value.number();
    const bool whole = std::floor(number) == number && std::abs(number) < 1e15;
    return whole ? std::to_string(value.count()) : value.json.dump();
  }

  // Default where neither file nor command line gives a value.
  void fall_back(const std::string& flag, const std::string& text, const std::string& key) {
    if (find(key) != nullptr || flags_.given(flag)) return;
    set(flag, text, concat("default of DeepSpeed ", name_of(options_.run.deepspeed_defaults)));
  }

  void precision() {
    const bool decided = is_true("fp16.enabled") || is_true("bf16.enabled");
    for (const std::string dtype : {"fp16", "bf16"}) {
      const std::string key = dtype + ".enabled";
      const Value* enabled = find(key);
      if (enabled == nullptr) continue;
      if (is_true(key)) {
        take("dtype", dtype, key);
      } else if (!decided && name_of(options_.parallel.precision.parameter) == dtype) {
        enabled->is_auto() ? leave("dtype", key) : take("dtype", "fp32", key);
      }
    }
    plain("loss_scale", "fp16.loss_scale");
    if (const Value* power = find("fp16.initial_scale_power")) {
      take("initial_loss_scale", JsonWriter().value(std::exp2(power->number())).text(),
           "fp16.initial_scale_power");
    }
    plain("loss_scale_window", "fp16.loss_scale_window");
    plain("min_loss_scale", "fp16.min_loss_scale");
    for (const auto& [flag, key] : {std::pair{"gradient_dtype", "data_types.grad_accum_dtype"},
                                    {"reduce_dtype", "communication_data_type"}}) {
      if (const Value* value = find(key)) take(flag, value->text(), key);
    }
  }

  void axes() {
    plain("pipeline_parallel", "pipeline.stages");
    plain("tensor_parallel", "tensor_parallel.autotp_size");
    const Value* interval = find("pipeline.activation_checkpoint_interval");
    if (interval && interval->count() > 0) {
      take("gradient_checkpointing", "true", "pipeline.activation_checkpoint_interval");
    }
  }

  void zero() {
    if (find("zero_optimization.stage") != nullptr) {
      const int64_t stage = file_.stage();
      const std::string name = stage == 0 ? plain_strategy(world_size_) : concat("zero", stage);
      take("strategy", name, "zero_optimization.stage");
    }
    const std::string overlap = "zero_optimization.overlap_comm";
    if (find(overlap)) take("overlap", is_true(overlap) ? "true" : "false", overlap);
    const std::string bucket = "zero_optimization.reduce_bucket_size",
                      small = "zero_optimization.stage3_param_persistence_threshold",
                      ahead = "zero_optimization.stage3_prefetch_bucket_size";
    by_hidden(
        bucket, "bucket_bytes", [](int64_t hidden) { return hidden * hidden; }, bytes_of_reduce());
    by_hidden(
        small, "persistence_threshold", [](int64_t hidden) { return 10 * hidden; }, 1);
    if (const Value* size = find(ahead); size && !size->is_auto() && size->count() == 0) {
      take("prefetch_blocks", "0", ahead);
    }
  }

  int64_t bytes_of_reduce() const {
    return options_.parallel.precision.reduce_dtype() == at::kFloat ? 4 : 2;
  }

  // Value of "auto" from the hidden size, as in transformers.
  template <typename Formula>
  void by_hidden(const std::string& key, const std::string& flag, const Formula& formula,
                 int64_t unit) {
    const Value* value = find(key);
    if (value == nullptr) return;
    if (!value->is_auto()) {
      return take(flag, std::to_string(std::max<int64_t>(1, value->count()) * unit), key);
    }
    const int64_t hidden = hidden_size(options_);
    if (flags_.given(flag) || hidden == 0) return leave(flag, key);
    set(flag, std::to_string(formula(hidden) * unit),
        concat("auto in ", file_.where(*value), ", hidden size ", hidden));
  }

  bool offloads(const std::string& key) const {
    const Value* device = find(key);
    return device != nullptr && !device->is_auto() && device->text() == "cpu";
  }

  void offload() {
    const std::string section = "zero_optimization.offload_";
    const std::string optimizer = section + "optimizer.device", params = section + "param.device";
    const Value *first = find(optimizer), *second = find(params);
    if (offloads(params)) {
      take("offload", "optimizer+params", params);
      if (!offloads(optimizer)) {
        flags_.add_notice(concat(file_.where(*second),
                                 ": with the parameters the optimizer's state is offloaded too"));
      }
    } else if (offloads(optimizer)) {
      take("offload", "optimizer", optimizer);
    } else if ((first && first->is_auto()) || (second && second->is_auto())) {
      leave("offload", first && first->is_auto() ? optimizer : params);
    } else if (first || second) {
      take("offload", "none", first ? optimizer : params);
    }
    if (!first && !second) return;
    const std::string pins[] = {section + "optimizer.pin_memory", section + "param.pin_memory"};
    for (const std::string& pin : pins) {
      if (find(pin)) return take("pin_memory", is_true(pin) ? "true" : "false", pin);
    }
    if (options_.parallel.offload.what == Offload::kNone) return;
    fall_back("pin_memory",
              options_.run.deepspeed_defaults == DeepSpeedVersion::k16 ? "false" : "true", pins[0]);
  }

  // Two of the three batch sizes determine the third.
  void batch() {
    const std::string all = "train_batch_size", micro = "train_micro_batch_size_per_gpu",
                      steps = "gradient_accumulation_steps";
    plain("per_device_train_batch_size", micro);
    plain("gradient_accumulation_steps", steps);
    const Value* total = find(all);
    if (total == nullptr || total->is_auto()) return;
    const int64_t ranks = data_ranks();
    const bool has_micro = is_said("per_device_train_batch_size", micro),
               has_steps = is_said("gradient_accumulation_steps", steps);
    const int64_t known = ranks * (has_micro ? options_.training.per_device_train_batch_size : 1) *
                          (has_steps ? options_.training.gradient_accumulation_steps : 1);
    const bool fits =
        has_micro && has_steps ? total->count() == known : total->count() % known == 0;
    check(fits, ErrorCode::kInvalidArgument, file_.where(*total), ": train_batch_size ",
          total->count(), " is ", has_micro && has_steps ? "not " : "no multiple of ", known, " = ",
          has_micro ? said("per_device_train_batch_size", micro) + " * " : "",
          has_steps ? said("gradient_accumulation_steps", steps) + " * " : "", ranks,
          " data-parallel ranks; change one of them or write \"auto\"");
    const std::string origin =
        concat(file_.where(*total), ", shared by ", ranks, " data-parallel ranks");
    if (!has_micro) {
      set("per_device_train_batch_size", std::to_string(total->count() / known), origin);
      if (!has_steps) set("gradient_accumulation_steps", "1", origin);
    } else if (!has_steps) {
      set("gradient_accumulation_steps", std::to_string(total->count() / known), origin);
    }
  }

  int64_t data_ranks() const {
    const int64_t others = options_.axes.sharers();
    return std::max<int64_t>(1, world_size_ / std::max<int64_t>(1, others));
  }
  bool is_said(const std::string& flag, const std::string& key) const {
    const Value* value = find(key);
    return (value && !value->is_auto()) || flags_.given(flag);
  }
  std::string said(const std::string& flag, const std::string& key) const {
    const Value* value = find(key);
    if (value && !value->is_auto()) return file_.quoted(key);
    return concat(flags_.text(flag), " (--", flag, ", ", flags_.origin(flag), ")");
  }

  void clipping() {
    plain("max_grad_norm", "gradient_clipping");
    fall_back("max_grad_norm", options_.run.deepspeed_defaults == DeepSpeedVersion::k16 ? "0" : "1",
              "gradient_clipping");
  }

  void optimizer() {
    if (find("optimizer") == nullptr) return;
    const std::string params = "optimizer.params.", type = find("optimizer.type")->text();
    const OptimizerRow& optim = *deepspeed_optimizer(type);
    const std::string name = optim.name;
    const bool l2 = type.size() == 4 && name == "adamw_torch" && find(params + "adam_w_mode") &&
                    !is_true(params + "adam_w_mode");  // of AdamW DeepSpeed does not look at it
    take("optim", l2 ? "adam" : name, "optimizer.type");
    const bool muon = name == "muon";
    std::string arguments = muon ? muon_rate(params) : "";
    for (const std::string key : {"momentum", "nesterov", "eps"}) {
      const Value* value = find(params + key);
      if (value == nullptr || value->is_auto()) continue;
      if (optim.epsilon && key == "eps") continue;  // --adam_epsilon
      arguments += concat(arguments.empty() ? "" : ",", key, "=", value->json.dump());
    }
    if (!arguments.empty()) {
      take("optim_args", arguments, muon ? "optimizer.type" : "optimizer.params");
    }
    const std::string rate = params + (muon && find(params + "adam_lr") ? "adam_lr" : "lr");
    plain("learning_rate", rate, kFile);
    if (optim.epsilon) plain("adam_epsilon", params + "eps", kFile);
    plain("weight_decay", params + "weight_decay", kFile);
    const std::string betas = params + "betas";
    for (const auto& [key, flag, value] : optim.deepspeed.defaults) {
      fall_back(flag, value, params + key);
    }
    for (const auto& [index, flag] : {std::pair{size_t{0}, "adam_beta1"}, {1, "adam_beta2"}}) {
      const Value* value = find(betas);
      if (value == nullptr) continue;
      if (value->is_auto()) {
        leave(flag, betas);
      } else {
        take(flag, value->json.at(index).dump(), betas, kFile);
      }
    }
    fall_back("learning_rate", muon ? "0.0003" : "0.001", rate);
  }

  // Learning rate of Muon's matrices as an argument; the others have "adam_lr" or "lr". A scheduler
  // with its own peak sets both.
  std::string muon_rate(const std::string& params) {
    const Value* schedule = find("scheduler.type");
    if (schedule != nullptr && schedule->text() != "WarmupCosineLR") return "";
    const Value* value = find(params + "muon_lr");
    if (value == nullptr) value = find(params + "lr");
    if (value == nullptr) return "lr=0.02";
    return "lr=" + (value->is_auto() ? flags_.text("learning_rate") : number_text(*value));
  }

  void scheduler() {
    const Value* type = find("scheduler.type");
    if (type == nullptr) return;
    const std::string params = "scheduler.params.";
    const bool cosine = type->text() == "WarmupCosineLR", plain_one = type->text() == "WarmupLR";
    take("lr_scheduler_type", type->text(), "scheduler.type", kFile);
    if (!cosine && find(params + "warmup_max_lr")) {
      plain("learning_rate", params + "warmup_max_lr", kFile);
    } else if (!cosine &&
               (!plain_one || options_.run.deepspeed_defaults == DeepSpeedVersion::k16)) {
      fall_back_to_peak();
    }
    plain("warmup_steps", params + "warmup_num_steps", kFile);
    fall_back("warmup_steps", "1000", params + "warmup_num_steps");
    JsonWriter kwargs;
    kwargs.begin_object();
    for (const char* name :
         {"warmup_min_lr", "total_num_steps", "warmup_type", "warmup_min_ratio", "cos_min_ratio"}) {
      const Value* value = find(params + name);
      if (value == nullptr || value->is_auto()) continue;
      kwargs.key(name);
      if (name == std::string("total_num_steps")) {
        kwargs.value(value->count());
      } else {
        kwargs.value(value->json);
      }
    }
    if (flags_.given("lr_scheduler_kwargs")) {
      flags_.add_notice(concat(file_.where(*type), ": the scheduler's parameters win over ",
                               "--lr_scheduler_kwargs"));
    }
    set("lr_scheduler_kwargs", kwargs.end_object().text(), file_.where(*find("scheduler")));
  }

  // Default peak of the scheduler, independent of the optimizer's rate.
  void fall_back_to_peak() {
    set("learning_rate", "0.001",
        concat("default of DeepSpeed ", name_of(options_.run.deepspeed_defaults)));
  }

  void notices() {
    for (const DeepSpeedFile::Remark& note : file_.notes()) {
      flags_.add_notice(concat(file_.path(), ":", note.line, ": ", note.text));
    }
    std::string idle;
    for (const DeepSpeedFile::Remark& one : file_.idle()) {
      idle += concat(idle.empty() ? "" : ", ", one.text.substr(0, one.text.find(": ")), " (line ",
                     one.line, ")");
    }
    if (!idle.empty()) {
      flags_.add_notice(concat(file_.path(), ": understood, without effect here: ", idle,
                               " (tessera-lint-ds says why)"));
    }
  }

  const DeepSpeedFile& file_;
  const int64_t world_size_;
  TrainOptions& options_;
  FlagSet& flags_;
};

}  // namespace

void apply_deepspeed(const DeepSpeedFile& file, int64_t world_size, TrainOptions& options,
                     FlagSet& flags) {
  const std::vector<std::string> findings = file.messages();
  if (!findings.empty()) {
    const size_t more = findings.size() - 1;
    fail(ErrorCode::kInvalidArgument, findings.front(),
         more == 0 ? "" : concat(" (and ", more, " more: tessera-lint-ds ", file.path(), ")"));
  }
  Applier(file, world_size, options, flags).run();
}

}  // namespace tessera::programs
