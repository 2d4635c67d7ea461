// SPDX-License-Identifier: MIT
#include "lib/compare/compare.h"

// tessera-compare --strategies ddp,zero1,zero2,zero3 --rank_counts 2,4 --output_dir out <flags of
// tessera-finetune-squad>: runs the same work with every strategy, each in child processes.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "lib/compare/comparison.h"
#include "lib/interop/foreign_flags.h"
#include "lib/settings/require.h"
#include "tessera/comm/bootstrap.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

constexpr const char* kSummary =
    "The same work under a list of strategies, each in processes of its own.";
constexpr const char* kSection = "Comparison";

void add_flags(FlagSet& flags, CompareOptions& o) {
  flags.section(kSection);
  flags.add("task", &o.task, "which program runs", {"squad", "causal", "classification", "chat"},
            "which program runs");
  flags.add("strategies", &o.strategies, "the rows, each on each of --rank_counts", {},
            "the rows, one each");
  flags.add("rank_counts", &o.rank_counts, "numbers of ranks", {}, "numbers of ranks, as 2,4");
  flags.add("deepspeed", &o.deepspeed,
            "rows of these DeepSpeed configuration files, instead of --strategies unless both are "
            "given",
            {}, "rows of DeepSpeed files");
  flags.add(
      "peer", &o.peer,
      "rows that other trainers run on the same work: hf (transformers.Trainer), peft (the same "
      "with its adapters), torch, each also with -compile, deepspeed",
      {}, "other trainers: hf, peft, torch");
  flags.add("python", &o.python, "of the peers: has torch and transformers");
  flags.add("rows", &o.rows,
            "instead of these: FILE with one row a line, its number of ranks and its flags; lines "
            "that begin with -- hold flags for all",
            {}, "FILE with one row a line");
  flags.add("reference", &o.reference, "single on one rank is the first row");
  flags.add("baseline", &o.baseline,
            "the ROW whose memory and runtime the others' are set against; the first unless given");
  flags.add("repeat", &o.repeat, "runs of every row: median, standard deviation and minimum", {},
            "runs of every row");
  flags.add("scaling", &o.scaling,
            "strong: a step has the same rows in every row; weak: every rank has the same rows",
            {"strong", "weak"}, "same step, or same work a rank");
  flags.add("global_batch_size", &o.global_batch_size,
            "rows of an optimizer step in every run; 0: the batch of the largest run");
  flags.add("largest_batch", &o.largest_batch,
            "find the largest batch of a rank, up to this, for every row, and run it with that; "
            "with --global_batch_size among its divisors",
            {}, "search up to this batch; 0: none");
  flags.add("launcher", &o.launcher,
            "auto: mpirun where this build has MPI, else torchrun where there are GPUs, else "
            "threads, which are ranks on the CPU",
            {"auto", "mpirun", "srun", "threads", "torchrun"}, "how ranks are started");
  flags.add("tolerance", &o.tolerance,
            "largest relative difference; 0: 1e-5 in fp32, 2e-2 in 16 bit");
  flags.add("output_dir", &o.output_dir,
            "one folder per run, logs, compare.json, comparison.csv, report.html; rows that it has "
            "are not run again",
            {}, "runs, tables, report.html");
  flags.add("overwrite_output_dir", &o.overwrite_output_dir, "replace an earlier comparison");
}

Program program_of(const std::string& task) {
  if (task == "squad") return Program::kSquad;
  if (task == "chat") return Program::kChat;
  return task == "causal" ? Program::kText : Program::kClassification;
}

// Puts the flags of the --rows file before those of the command line, which override them.
std::vector<std::string> with_flags_of_file(const std::vector<std::string>& arguments) {
  FlagSet flags("tessera-compare", "");
  CompareOptions options;
  add_flags(flags, options);
  flags.parse_known(arguments);
  if (options.rows.empty()) return arguments;
  std::vector<std::string> all = overridden(flags_of_all_rows(options.rows), arguments);
  all.insert(all.end(), arguments.begin(), arguments.end());
  return all;
}

// Flags that each row sets itself.
std::vector<std::string> chosen_here(bool weak) {
  std::vector<std::string> names{"strategy", "ranks", "gradient_accumulation_steps", "dry_run"};
  if (weak) std::erase(names, "gradient_accumulation_steps");
  return names;
}

// Includes the started program's flags.
std::string help_text(const std::vector<std::string>& given, const CompareOptions& asked) {
  FlagSet flags("tessera-compare", kSummary);
  CompareOptions options;
  TrainOptions train;
  add_flags(flags, options);
  const FlagSet own = flags;
  const Program program = program_of(asked.task);
  const std::vector<std::string> chosen = chosen_here(asked.scaling == "weak");
  add_flags(flags, train, [&](const settings::Setting& setting) {
    return setting.is_of(program) && !flags.has(setting.name) &&
           std::ranges::count(chosen, setting.name) == 0;
  });
  flags.explain([&](const std::string& name) {
    return own.has(name) ? std::vector<std::string>() : facts_of(name, program);
  });
  flags.understand_foreign(find_foreign);
  flags.show_one_screen("--model M --train_file F --rank_counts 2 --output_dir out");
  flags.parse(given);
  return flags.help();
}

}  // namespace

int run_compare(const std::vector<std::string>& given) {
  FlagSet flags("tessera-compare", kSummary);
  CompareOptions options;
  add_flags(flags, options);
  const std::vector<std::string> passed = flags.parse_known(with_flags_of_file(given));
  if (flags.help_requested()) {
    std::fputs(help_text(given, options).c_str(), stdout);
    return 0;
  }
  if (flags.given("deepspeed") && !flags.given("strategies")) options.strategies.clear();
  const bool no_file = options.rows.empty();
  require(no_file || (options.deepspeed.empty() && options.peer.empty()),
          "--rows says all rows: write --deepspeed and --peer into them");
  require(no_file || !flags.given("strategies"), "--rows says all rows; leave out --strategies");
  const bool weak = options.scaling == "weak";
  const Program program = program_of(options.task);
  FlagSet train_flags("tessera-finetune-" + options.task, "");
  TrainOptions train;
  add_train_flags(train_flags, train, program, find_foreign);
  train_flags.parse(passed);
  if (train_flags.print_config_requested()) {
    std::printf("%s\n", train_flags.config_json().c_str());
    return 0;
  }
  for (const std::string& name : chosen_here(weak)) {
    require(!train_flags.given(name), "--", name,
            " is chosen by tessera-compare for every row; see --help");
  }
  const LaunchInfo launch = detect_launch();
  require(launch.world_size == 1, "tessera-compare starts its own ranks; run it without ",
          launch.launcher);
  const char* defect = std::getenv("TESSERA_COMPARE_DEFECT");  // such as zero2-4
  return Comparison(options,
                    {.program = program,
                     .arguments = passed,
                     .strategies = options.strategies,
                     .deepspeed = options.deepspeed,
                     .peers = options.peer,
                     .rank_counts = options.rank_counts,
                     .rows_file = options.rows,
                     .reference = options.reference,
                     .weak_scaling = weak,
                     .global_batch_size = options.global_batch_size,
                     .largest_batch = options.largest_batch > 0},
                    defect == nullptr ? "" : defect)
      .run();
}

}  // namespace tessera::programs
