// SPDX-License-Identifier: MIT
#include "lib/run/rehearsal.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <random>

#include "backends/strategy_kinds.h"
#include "lib/core/clock.h"
#include "lib/core/integer_of.h"
#include "lib/core/number_text.h"
#include "lib/metrics/statistics.h"
#include "lib/run/child_run.h"
#include "lib/run/output.h"
#include "lib/run/rehearsal_progress.h"
#include "tessera/comm/launch.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;

// The first save follows steps that fill memory and caches. A rank is killed during or after the
// second one.
constexpr int64_t kSaveSteps = 6, kStepsCompared = 3;
constexpr int64_t kNeverReached = 1'000'000;
constexpr int64_t kFirstTimed = 3;
constexpr double kAllowedCost = 0.01;
// Allowed relative difference of a loss: for sums in any order on a GPU, and for different dropout
// masks.
constexpr double kAllowed = 0.02, kAllowedElsewhere = 0.1;

using Settings = std::vector<std::pair<std::string, std::string>>;

std::string config_text(const FlagSet& flags, const Settings& changes) {
  std::map<std::string, std::string> values;
  for (const auto& [name, setting] : Json::parse(flags.config_json(), {}, "flags").members()) {
    if (setting.at("origin").as_string() != "default") values[name] = setting.at("value").dump();
  }
  for (const auto& [name, text] : changes) values[name] = JsonWriter().value(text).text();
  for (const char* name : {"recovery_test", "load_best_model_at_end", "overwrite_output_dir"}) {
    values.erase(name);
  }
  JsonWriter json(2);
  json.begin_object();
  for (const auto& [name, value] : values) json.key(name).scalar(value);
  return json.end_object().text() + "\n";
}

double largest_difference(const RehearsalProgress& run, const RehearsalProgress& reference,
                          int64_t first) {
  double largest = 0;
  for (const auto& [step, values] : run.steps) {
    const auto other = reference.steps.find(step);
    if (step < first || other == reference.steps.end()) continue;
    const double difference =
        std::abs(values.loss - other->second.loss) / std::abs(other->second.loss);
    largest = std::isnan(difference) ? difference : std::max(largest, difference);
  }
  return largest;
}

// Run by every rank; only rank 0 reads and prints.
class Rehearsal {
 public:
  Rehearsal(const FlagSet& flags, const TrainOptions& options, const LaunchInfo& launch,
            ControlChannel& control)
      : flags_(flags),
        options_(options),
        launch_(launch),
        control_(control),
        folder_(options.output.output_dir + "/rehearsal"),
        prints_(control.rank() == 0) {}

  void perform() {
    if (prints_) make_folder();
    control_.exchange("");
    train_and_kill();
    go_on();
    go_on_elsewhere();
    if (!prints_) return;
    std::error_code error;
    fs::remove_all(folder_, error);
  }

 private:
  void make_folder() const {
    check(!fs::exists(folder_) || fs::exists(folder_ + "/run.json"), ErrorCode::kInvalidArgument,
          folder_, " is not of a rehearsal; move it away, or choose another --output_dir");
    std::error_code error;
    fs::remove_all(folder_, error);
    fs::create_directories(folder_, error);
    check(fs::is_directory(folder_), ErrorCode::kDataLoss, folder_,
          ": cannot be created: ", error.message());
  }

  // Writes the configuration of one run of the rehearsal; returns its path.
  std::string config(const std::string& name, const Settings& changes) const {
    Settings all = {{"output_dir", folder_ + "/run"},
                    {"resume_from_checkpoint", "none"},
                    {"save_strategy", "steps"},
                    {"save_steps", std::to_string(kSaveSteps)},
                    {"save_total_limit", "0"},
                    {"max_steps", std::to_string(kNeverReached)},
                    {"eval_steps", "-1"},
                    {"logging_steps", "1"},
                    {"report_to", "jsonl"},
                    {"save_final", "false"},
                    {"backend", options_.run.backend == "mpi" ? "auto" : options_.run.backend}};
    all.insert(all.end(), changes.begin(), changes.end());
    const std::string path = folder_ + "/" + name + ".json";
    if (prints_) write_text_file(path, config_text(flags_, all));
    control_.exchange("");
    return path;
  }

  template <typename... Parts>
  void say(const Parts&... parts) const {
    if (!prints_) return;
    std::printf("rehearsal: %s\n", concat(parts...).c_str());
    std::fflush(stdout);
  }

  // Trains, measures one save, and kills a rank after the second save has begun.
  void train_and_kill() {
    say("training on ", launch_.world_size, " rank(s), saving every ", kSaveSteps, " steps");
    ChildRun run(launch_, control_, folder_, config("run", {}));
    const auto second_save = [&] {
      undisturbed_ = rehearsal_progress(folder_ + "/run");
      return undisturbed_.saved && undisturbed_.last() >= 2 * kSaveSteps;
    };
    if (!run.run_until(second_save)) run.fail_as_it_did("training and saving");
    const auto draws = control_.exchange(std::to_string(std::random_device()()));
    const int victim =
        static_cast<int>(std::stoul(draws[0]) % static_cast<size_t>(control_.size()));
    const double begin = now_s();
    run.kill(victim);
    run.wait();
    if (prints_) {
      report_save();
      keep_first_checkpoint();
    }
    say("rank ", victim, " killed behind step ", undisturbed_.last(), "; all ranks had ended ",
        seconds(now_s() - begin), " later");
  }

  // Deletes later checkpoints, which would leave no steps to compare.
  void keep_first_checkpoint() const {
    for (int64_t step = 2 * kSaveSteps;; step += kSaveSteps) {
      std::error_code error;
      if (fs::remove_all(concat(folder_, "/run/checkpoint-", step), error) == 0) return;
    }
  }

  void report_save() {
    std::vector<double> before;
    double around = 0;
    for (const auto& [step, values] : undisturbed_.steps) {
      if (step >= kFirstTimed && step < kSaveSteps) before.push_back(values.time_s);
      if (step >= kSaveSteps && step < 2 * kSaveSteps) around += values.time_s;
    }
    const double step_s = metrics::describe(before).median;
    const Json& saved = *undisturbed_.saved;
    const double stall = saved.at("stall_s").as_double() - saved.at("waited_s").as_double();
    const double bytes = saved.at("bytes").as_double(), write = saved.at("write_s").as_double();
    // Writing may also slow down the concurrent steps.
    const double cost = std::max(stall, around - static_cast<double>(kSaveSteps) * step_s -
                                            saved.at("waited_s").as_double());
    say("a step takes ", seconds(step_s), "; a checkpoint has ", gigabytes(bytes), " GB");
    say("a save stalls the run for ", seconds(stall), ", ", percent(stall / (10 * step_s)),
        " of ten steps; it is complete after ", seconds(write), ", ", gigabytes(bytes / write),
        " GB/s; with slower steps beside it, it costs ", seconds(cost));
    const double interval = std::max(cost / kAllowedCost, write);
    const int64_t steps = integer_of(std::ceil(interval / step_s));
    say("a save every ", steps, " steps (", seconds(interval), ") costs ", percent(cost / interval),
        ": --save_steps ", steps);
  }

  void go_on() {
    const std::string path =
        config("resumed", {{"resume_from_checkpoint", "auto"}, {"save_strategy", "no"}});
    const double begin = now_s();
    double first_step_s = 0;
    RehearsalProgress progress;
    ChildRun run(launch_, control_, folder_, path);
    const bool well = run.run_until([&] {
      progress = rehearsal_progress(folder_ + "/run");
      const bool begun = progress.has_gone_on_from(kSaveSteps);
      if (begun && first_step_s == 0) first_step_s = now_s() - begin;
      return begun && progress.steps.size() >= kStepsCompared;
    });
    if (!well) run.fail_as_it_did("going on from the checkpoint");
    run.kill_all();
    run.wait();
    if (!prints_) return;
    const int64_t first = progress.steps.begin()->first;
    const double difference = largest_difference(progress, undisturbed_, first);
    say("gone on from the checkpoint: step ", first, " was done ", seconds(first_step_s),
        " after the start; ",
        difference == 0
            ? "the losses are those of before, bit for bit"
            : concat("losses differ by at most ", difference,
                     options_.run.deterministic ? "" : " (--deterministic: by nothing)"));
    const bool exact = options_.run.deterministic || gpu_count() == 0;
    judge(difference, exact ? 0 : kAllowed, "the same layout");
  }

  void go_on_elsewhere() {
    Settings changes = other_layout(options_, launch_.world_size);
    const Json now = Json::parse(flags_.config_json(), {}, "flags");
    std::string layout;
    for (const auto& [name, value] : changes) {
      const Json old = now.at(name).at("value");
      if ((old.is_string() ? old.as_string() : old.dump()) == value) continue;
      layout += concat(" --", name, " ", value);
    }
    changes.insert(changes.end(),
                   {{"output_dir", folder_ + "/elsewhere"},
                    {"save_strategy", "no"},
                    {"resume_from_checkpoint", concat(folder_, "/run/checkpoint-", kSaveSteps)}});
    const std::string path = config("elsewhere", changes);
    RehearsalProgress progress;
    const double begin = now_s();
    ChildRun run(launch_, control_, folder_, path);
    const bool well = run.run_until([&] {
      progress = rehearsal_progress(folder_ + "/elsewhere");
      return !progress.steps.empty();
    });
    if (!well) run.fail_as_it_did("going on from the checkpoint as" + layout);
    run.kill_all();
    run.wait();
    if (!prints_) return;
    const double difference = largest_difference(progress, undisturbed_, kSaveSteps + 1);
    say("gone on as", layout, ": step ", progress.steps.begin()->first, " was done ",
        seconds(now_s() - begin), " after the start; its loss differs by ", difference);
    judge(difference, kAllowedElsewhere, "another layout");
  }

  void judge(double difference, double allowed, const char* layout) const {
    check(difference <= allowed, ErrorCode::kDataLoss, "rehearsal: the run that went on under ",
          layout, " has other losses: the largest relative difference is ", difference,
          ", allowed is ", allowed, "; its files are in ", folder_);
  }

  static std::string seconds(double s) {
    return printed(s < 1 ? "%.1f ms" : "%.2f s", s < 1 ? s * 1e3 : s);
  }
  static std::string percent(double ratio) { return printed("%.2g %%", ratio * 100); }
  static std::string gigabytes(double bytes) { return printed("%.3g", bytes / 1e9); }

  const FlagSet& flags_;
  const TrainOptions& options_;
  const LaunchInfo& launch_;
  ControlChannel& control_;
  const std::string folder_;
  const bool prints_;
  RehearsalProgress undisturbed_;
};

}  // namespace

Settings other_layout(const TrainOptions& options, int world_size) {
  const int64_t ranks = options.run.ranks > 1 ? options.run.ranks : world_size;
  const int64_t data = ranks / options.axes.sharers();
  const int64_t batch = options.global_batch_size(data);
  const char* offload =
      options.parallel.offload.what == Offload::kOptimizer ? "optimizer+params" : "optimizer";
  if (ranks == 1)
    return {{"offload", options.parallel.offload.what == Offload::kNone ? "optimizer" : "none"}};
  if (batch % ranks != 0)
    return {{"offload", options.parallel.offload.what == Offload::kNone ? "optimizer" : "none"}};
  int64_t rows = std::min(options.training.per_device_train_batch_size, batch / ranks);
  while (batch / ranks % rows != 0) --rows;
  return {{"strategy", name_of(StrategyKind::kZero3)},
          {"offload", offload},
          {"pipeline_parallel", "1"},
          {"pipeline_chunks", "1"},
          {"context_parallel", "1"},
          {"expert_parallel", "1"},
          {"context_attention", "auto"},
          {"tensor_parallel", "1"},
          {"sequence_parallel", "false"},
          {"per_device_train_batch_size", std::to_string(rows)},
          {"gradient_accumulation_steps", std::to_string(batch / ranks / rows)}};
}

int recovery_test(const FlagSet& flags, const TrainOptions& options) {
  // Leaves the GPUs to the run.
  const std::string transport = detect_launch().world_size > 1 ? "tcp" : "local";
  return run_job({.transport = transport},
                 [&](Communicator&, const LaunchInfo& launch, ControlChannel& control) {
                   Rehearsal(flags, options, launch, control).perform();
                 });
}

}  // namespace tessera::programs
