// SPDX-License-Identifier: MIT
#include "benchmarks/strategies/bench_options.h"

#include <algorithm>

#include "lib/core/nearest.h"
#include "lib/settings/lists.h"
#include "lib/settings/table.h"
#include "lib/settings/train_flags.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/core/error.h"

namespace tessera::bench {
namespace {

using settings::Setting;

// Whether a step without data, schedule or checkpoints reads the setting.
bool is_read(const Setting& setting) {
  static const std::vector<std::string> names{"model_config", "max_seq_length",
                                              "padding_free", "gradient_accumulation_steps",
                                              "max_steps",    "max_grad_norm",
                                              "dtype",        "gradient_dtype",
                                              "reduce_dtype", "fp8",
                                              "fp8_layers",   "backend",
                                              "optim",        "optim_args",
                                              "moments_dtype"};
  const bool layout = settings::names_layout(setting) && setting.name != std::string("strategy");
  return layout || std::ranges::count(names, setting.name) > 0;
}

}  // namespace

Options::Options() {
  run.model.config = "bloom-tiny";
  run.data.max_seq_length = 128;
  run.training.max_steps = 10;
  run.training.learning_rate = 1e-4;
  run.training.weight_decay = 0.01;
  run.data.padding_free = PaddingFree::kTrue;
}

TrainOptions Options::of(const std::string& strategy) const {
  TrainOptions options = run;
  options.parallel.strategy = strategy;
  return options;
}

std::string Options::variant() const {
  const Options defaults;
  std::vector<std::string> all = settings::layout_tags(run);
  for (const char* name :
       {"gradient_dtype", "reduce_dtype", "fp8", "fp8_layers", "moments_dtype"}) {
    all.push_back(settings::find(name)->tag(run));
  }
  const auto add = [&](bool differs, const std::string& tag) {
    if (differs) all.push_back(tag);
  };
  add(rows != defaults.rows, "rows-" + rows);
  add(supervise != defaults.supervise, supervise);
  add(run.data.padding_free != defaults.run.data.padding_free, "padded");
  add(run.training.max_grad_norm != defaults.run.training.max_grad_norm,
      concat("clip", run.training.max_grad_norm));
  add(run.training.optim != defaults.run.training.optim, run.training.optim->name);
  add(!sync, "nosync");
  std::string text;
  for (const std::string& tag : all) {
    if (!tag.empty()) text += (text.empty() ? "" : " ") + tag;
  }
  return text;
}

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  programs::FlagSet flags("bench_strategies",
                          "Step time and memory of strategies, one row for each of --strategy and "
                          "--per_device_train_batch_size.");
  flags.section("Rows");
  flags.add("strategy", &options.strategies, "one or several, with commas between them");
  flags.add("per_device_train_batch_size", &options.micro_batches,
            "rows of a micro-batch, one or several numbers");
  flags.add("rows", &options.rows,
            "fixed: --max_seq_length random tokens each; else of lengths as SQuAD's",
            {"fixed", "padded", "left", "packed"});
  flags.add("supervise", &options.supervise, "which tokens the loss counts", {"all", "answer"});
  flags.add("warmup", &options.warmup, "steps before the --max_steps that are measured");
  flags.add("sync", &options.sync, "false: steps follow each other as in a run");
  flags.add("profile", &options.profile,
            "after the measured steps: the phases of a step, and what its kernels (on the CPU: "
            "operators) take");
  programs::add_flags(flags, options.run, is_read);
  flags.parse(arguments);
  if (flags.help_requested()) options.help = flags.help();
  const std::vector<std::string> known = strategy_names();
  for (const std::string& strategy : programs::items_of(options.strategies)) {
    check(std::ranges::count(known, strategy) > 0, ErrorCode::kInvalidArgument, "--strategy: '",
          strategy, "' is no strategy", nearest_hint(strategy, known));
  }
  for (const std::string& rows : programs::items_of(options.micro_batches)) {
    const bool number = !rows.empty() && rows.size() < 10 &&
                        std::ranges::all_of(rows, [](char c) { return c >= '0' && c <= '9'; });
    check(number && std::stoll(rows) > 0, ErrorCode::kInvalidArgument,
          "--per_device_train_batch_size: '", rows, "' is no number of rows");
  }
  check(options.run.training.max_steps >= 1 && options.warmup >= 0, ErrorCode::kInvalidArgument,
        "--max_steps is ", options.run.training.max_steps, " and --warmup ", options.warmup,
        "; at least 1 and 0");
  programs::validate_layout(options.run);
  return options;
}

}  // namespace tessera::bench
