// SPDX-License-Identifier: MIT
#include "lib/run/program.h"

#include <ATen/Context.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>

#include "lib/comm/operation_scope.h"
#include "lib/core/failure.h"
#include "lib/interop/deepspeed.h"
#include "lib/interop/foreign_config.h"
#include "lib/interop/foreign_flags.h"
#include "lib/run/chats.h"
#include "lib/run/layout.h"
#include "lib/run/memory_advice.h"
#include "lib/run/output.h"
#include "lib/run/prepare.h"
#include "lib/run/rehearsal.h"
#include "lib/run/run_checkpoints.h"
#include "lib/run/run_task.h"
#include "lib/run/training_run.h"
#include "lib/settings/flags.h"
#include "lib/settings/idle_flags.h"
#include "lib/settings/layout.h"
#include "lib/settings/train_flags.h"
#include "tessera/comm/launch.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"
#include "tessera/run/training_program.h"
#include "tessera/train/stop_signal.h"

namespace tessera::programs {

bool speaks_first() {
  try {
    return detect_launch().rank == 0;
  } catch (const Error&) {
    return true;
  }
}

void set_numerics(const TrainOptions& options) {
  at::Context& context = at::globalContext();
  context.setAllowTF32CuBLAS(options.precision.tf32);
  context.setAllowTF32CuDNN(options.precision.tf32);
  if (options.run.deterministic) {
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*replace=*/0);
    context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
}

void check_ranks(const TrainOptions& options) {
  if (options.run.ranks == 1) return;
  const LaunchInfo launch = detect_launch();
  check(launch.world_size == 1, ErrorCode::kInvalidArgument, "--ranks ", options.run.ranks,
        " makes in-process ranks, but ", launch.launcher, " has started ", launch.world_size,
        " processes; use one of the two");
  check(options.run.backend == "auto" || options.run.backend == "local",
        ErrorCode::kInvalidArgument, "--ranks ", options.run.ranks, " needs --backend local; for ",
        options.run.backend, " start the program with mpirun -n ", options.run.ranks);
}

namespace {

// Without checkpoints only a lone process catches Ctrl-C, to finish its metrics; several would need
// a message per step to agree.
void note_signals(const TrainOptions& options, const LaunchInfo& launch,
                  std::optional<StopSignals>& signals) {
  if (!options.output.save_on_signal) return;
  if (options.output.save_strategy != SaveStrategy::kNo) {
    signals.emplace();
  } else if (launch.launcher == "threads" || launch.world_size == 1) {
    signals.emplace(std::vector<int>{SIGINT});
  }
}

// [Note: one date for all ranks]
// Rows are made before ranks are connected, and the date may change between two ranks. Ranks with
// another date than rank 0's make their rows again with that.
void take_first_date(const ProgramKind& kind, const TrainOptions& options, ControlChannel& control,
                     std::unique_ptr<RunTask>& task) {
  const std::string mine = task->template_date(), first = control.exchange(mine).front();
  if (mine.empty() || first.empty() || mine == first) return;
  TrainOptions dated = options;
  dated.data.template_date = first;
  task = kind.make_task(dated);
}

// Parses and validates the flags; throws on errors.
void read_flags(const ProgramKind& kind, const std::vector<std::string>& arguments, FlagSet& flags,
                TrainOptions& options) {
  kind.add_own_flags(flags);
  add_train_flags(flags, options, kind.program, find_foreign);
  flags.show_one_screen(kind.example);
  flags.parse({arguments.begin() + 1, arguments.end()});
  const int64_t world = options.run.ranks > 1 ? options.run.ranks : detect_launch().world_size;
  choose_strategy(flags, world, options);
  if (!options.run.deepspeed.empty()) {
    refuse_foreign_config(options.run.deepspeed);
    apply_deepspeed(DeepSpeedFile::read(options.run.deepspeed), world, options, flags);
  }
  for (const IdleFlag& idle : reset_idle_flags(flags, options, world)) flags.add_notice(idle.text);
  if (flags.help_requested() || flags.print_config_requested()) return;
  validate_options(options, kind.program);
  check(!options.data.packing || flags.given("max_seq_length"), ErrorCode::kInvalidArgument,
        "--packing needs --max_seq_length N, the length of its sequences");
  check_ranks(options);
  check_axes(options, world);
}

void answer(const FlagSet& flags) {
  if (!speaks_first()) return;
  const std::string text = flags.help_requested() ? flags.help() : flags.config_json() + "\n";
  std::fputs(text.c_str(), stdout);
  for (const std::string& notice : flags.notices()) log(LogLevel::kInfo, notice);
}

}  // namespace

int run_program(const ProgramKind& kind, int argc, char** argv) {
  exit_when_out_of_memory();
  const std::vector<std::string> arguments(argv, argv + argc);
  FlagSet flags(kind.name, kind.summary);
  TrainOptions options;
  std::unique_ptr<RunTask> task;
  std::unique_ptr<DirectoryLock> lock;
  std::exception_ptr problem;  // rethrown on the connected ranks, so that it is reported once
  try {
    read_flags(kind, arguments, flags, options);
    if (flags.help_requested() || flags.print_config_requested()) {
      answer(flags);
      return 0;
    }
    if (options.data.show_rows > 0) {
      if (speaks_first()) show_chats(options);
      return 0;
    }
    const bool locks = speaks_first() && !options.run.dry_run;
    if (options.run.recovery_test) {
      if (locks) lock = std::make_unique<DirectoryLock>(options.output.output_dir);
    } else {
      check_resume(options);
      check_output_directory(options);
      if (locks) lock = lock_output_directory(options);
      set_numerics(options);
      task = kind.make_task(options);
    }
  } catch (...) {
    problem = std::current_exception();
    options.run.ranks = 1;
    options.run.backend = "auto";
  }
  if (options.run.recovery_test && !problem) return recovery_test(flags, options);
  std::optional<StopSignals> signals;  // per process, whose threads may be several ranks
  std::once_flag connected;  // before connecting, signals end the process: nothing to save
  std::atomic<int> ended{0};
  const int status =
      run_job({.ranks = options.run.ranks > 1 ? static_cast<int>(options.run.ranks) : 0,
               .transport = options.run.backend},
              [&](Communicator& world, const LaunchInfo& launch, ControlChannel& control) {
                if (problem) std::rethrow_exception(problem);
                if (!options.run.dry_run) note_output_folder(options.output.output_dir);
                std::call_once(connected, [&] { note_signals(options, launch, signals); });
                take_first_date(kind, options, control, task);
                ended = execute({.task = *task,
                                 .flags = flags,
                                 .argv = arguments,
                                 .output_lock = lock.get(),
                                 .world = world,
                                 .launch = launch,
                                 .control = control,
                                 .signals = signals ? &*signals : nullptr});
              });
  return status != 0 ? status : ended.load();
}

ProgramKind finetune(Program program, const std::string& name, const std::string& summary) {
  return {.program = program,
          .name = name,
          .summary = summary,
          .example = "--model DIR --train_file F --output_dir out",
          .add_own_flags = [](FlagSet&) {},
          .make_task =
              [program](const TrainOptions& options) {
                return language_task(prepare(options, program));
              }};
}

}  // namespace tessera::programs

namespace tessera {

int run_training(const TrainingProgram& program, int argc, char** argv) {
  using namespace programs;
  return run_program({.program = Program::kOwn,
                      .name = program.name,
                      .summary = program.summary,
                      .example = "--output_dir out --strategy zero2 --ranks 2",
                      .add_own_flags =
                          [&](FlagSet& flags) {
                            flags.section(program.name);
                            for (const ProgramFlag& flag : program.flags) {
                              const auto add = [&](auto* variable) {
                                flags.add(flag.name, variable, flag.help, {}, flag.help);
                              };
                              std::visit(add, flag.variable);
                            }
                          },
                      .make_task =
                          [&](const TrainOptions& options) {
                            at::manual_seed(options.training.seed);
                            return own_task(options, program.make());
                          }},
                     argc, argv);
}

}  // namespace tessera
