// tessera-compare --strategies ddp,zero1,zero2,zero3 --rank_counts 2,4 --output_dir out <flags of
// tessera-finetune-squad> The same work under every strategy, each in child processes, against one
// process on its own.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <thread>

#include "examples/common/output.h"
#include "examples/common/prepare.h"
#include "examples/compare/child.h"
#include "examples/compare/comparison_table.h"
#include "examples/compare/rows.h"
#include "tessera/comm/bootstrap.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;

struct CompareOptions {
  std::string task = "squad", strategies = "ddp,zero1,zero2,zero3,fsdp", rank_counts = "2,4", rows;
  std::string launcher = "auto", output_dir;
  int64_t global_batch_size = 0;
  double tolerance = 0;
  bool overwrite_output_dir = false;
};

void add_flags(FlagSet& flags, CompareOptions& o) {
  flags.section("Comparison (all other flags go to the fine-tuning program)");
  flags.add("task", &o.task, "which program runs", {"squad", "causal", "classification"});
  flags.add("strategies", &o.strategies, "the rows; single on one rank is always the reference");
  flags.add("rank_counts", &o.rank_counts, "each strategy runs on each of these numbers of ranks");
  flags.add("rows", &o.rows,
            "instead of the two: FILE with one row a line, its number of ranks and its flags");
  flags.add("global_batch_size", &o.global_batch_size,
            "rows of an optimizer step in every run; 0: the batch of the largest run");
  flags.add("launcher", &o.launcher, "auto: mpirun where it is found, else threads",
            {"auto", "mpirun", "threads"});
  flags.add("tolerance", &o.tolerance,
            "largest relative difference; 0: 1e-5 in fp32, 2e-2 in 16 bit");
  flags.add("output_dir", &o.output_dir, "one folder per run, logs, comparison.csv");
  flags.add("overwrite_output_dir", &o.overwrite_output_dir, "replace an earlier comparison");
}

class Comparison {
 public:
  // arguments: of every row. defect: name of a row whose learning rate is planted 1 % too high, to
  // show that verdicts can fail; usually empty.
  Comparison(const CompareOptions& options, Prepared prepared, std::vector<std::string> arguments,
             std::string defect)
      : options_(options),
        prepared_(std::move(prepared)),
        arguments_(std::move(arguments)),
        defect_(std::move(defect)) {
    check_options();
  }

  // Returns the exit code.
  int run();

 private:
  void check_options();
  void run_row(ComparisonRow& row);
  std::vector<std::string> command_of(const ComparisonRow& row) const;
  LayoutCost formula_of(const ComparisonRow& row) const;
  double tolerance() const {
    return options_.tolerance > 0 ? options_.tolerance : default_tolerance(prepared_.options.dtype);
  }
  std::string folder_of(const ComparisonRow& row) const {
    return options_.output_dir + "/" + row.name;
  }

  const CompareOptions& options_;
  Prepared prepared_;
  std::vector<std::string> arguments_;
  std::string defect_;
  std::vector<std::string> environment_;
  bool uses_mpirun_ = false;
  std::vector<ComparisonRow> rows_;
};

template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  check(condition, ErrorCode::kInvalidArgument, parts...);
}

// Makes the list of rows; all of them must be possible.
void Comparison::check_options() {
  require(!options_.output_dir.empty(), "give --output_dir DIR");
  require(options_.overwrite_output_dir || !fs::exists(options_.output_dir) ||
              (fs::is_directory(options_.output_dir) && fs::is_empty(options_.output_dir)),
          "--output_dir ", options_.output_dir,
          " is not empty; choose another directory, or add --overwrite_output_dir");
  require(options_.tolerance >= 0, "--tolerance is ", options_.tolerance, "; it must be positive");
  rows_ = make_rows({.program = prepared_.program,
                     .arguments = arguments_,
                     .strategies = options_.strategies,
                     .rank_counts = options_.rank_counts,
                     .rows_file = options_.rows,
                     .global_batch_size = options_.global_batch_size});
  const bool known = std::ranges::any_of(rows_, [&](const auto& r) { return r.name == defect_; });
  require(defect_.empty() || known, "TESSERA_COMPARE_DEFECT: no row is called ", defect_);
  // Every rank of every row gets the same number of cores, so that the rows compare.
  int64_t most_ranks = 1;
  for (const auto& row : rows_) most_ranks = std::max(most_ranks, row.ranks);
  environment_.push_back("OMPI_MCA_mpi_yield_when_idle=1");
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    const int64_t cores = std::thread::hardware_concurrency();
    environment_.push_back(concat("OMP_NUM_THREADS=", std::max<int64_t>(1, cores / most_ranks)));
  }
  const auto transports = available_transports();
  const bool mpi = std::find(transports.begin(), transports.end(), "mpi") != transports.end() &&
                   !find_in_path("mpirun").empty();
  require(mpi || options_.launcher != "mpirun",
          "--launcher mpirun: mpirun was not found, or this build has no MPI");
  uses_mpirun_ = mpi && options_.launcher != "threads";
}

std::vector<std::string> Comparison::command_of(const ComparisonRow& row) const {
  std::vector<std::string> command;
  if (row.ranks > 1 && uses_mpirun_) {
    command = {"mpirun", "--oversubscribe", "--bind-to", "none", "-n", std::to_string(row.ranks)};
    if (geteuid() == 0) command.push_back("--allow-run-as-root");
  }
  command.push_back(program_folder() + "/tessera-finetune-" + options_.task);
  command.insert(command.end(), arguments_.begin(), arguments_.end());
  auto add = [&](const std::string& flag, const std::string& value) {
    command.push_back("--" + flag);
    command.push_back(value);
  };
  command.insert(command.end(), row.flags.begin(), row.flags.end());
  add("output_dir", folder_of(row));
  if (row.ranks > 1 && !uses_mpirun_) add("ranks", std::to_string(row.ranks));
  if (!defect_.empty()) {
    add("learning_rate",
        concat(prepared_.options.learning_rate * (row.name == defect_ ? 1.01 : 1)));
  }
  return command;
}

// After the run, which says how long its rows were.
LayoutCost Comparison::formula_of(const ComparisonRow& row) const {
  LayoutPlan plan = layout_plan(prepared_.model, row.options, static_cast<int>(row.ranks));
  plan.on_gpu = !row.run.device.starts_with("cpu");
  plan.tokens = static_cast<double>(row.run.tokens_per_step) /
                static_cast<double>(plan.mesh.data * plan.accumulation);
  plan.activation_elements = plan.tokens * static_cast<double>(prepared_.config().hidden);
  return largest_layout_cost(plan);
}

void Comparison::run_row(ComparisonRow& row) {
  std::printf("%-24s ... ", row.name.c_str());
  std::fflush(stdout);
  const std::string log = options_.output_dir + "/logs/" + row.name + ".log";
  const ChildResult child = run_child(command_of(row), log, environment_);
  row.exit_code = child.exit_code;
  row.wall_s = child.wall_s;
  if (child.exit_code == 0) {
    row.run = read_run(folder_of(row));
    row.formula = formula_of(row);
  } else {
    // 137: killed, which is how the kernel ends a process when memory runs out
    const bool memory =
        child.exit_code == exit_code(ErrorCode::kResourceExhausted) || child.exit_code == 137;
    row.outcome = memory ? Outcome::kOutOfMemory : Outcome::kFailed;
    row.message = last_error_line(log);
  }
  const ComparisonRow& reference = rows_.front();
  if (!row.is_reference && row.outcome == Outcome::kFinished &&
      reference.outcome == Outcome::kFinished) {
    row.parity = compare_runs(row.run, reference.run, tolerance());
    row.judged = true;
  }
  std::printf("%.1f s, %s\n", row.wall_s, row.verdict().c_str());
  if (!row.message.empty()) std::printf("  %s\n", row.message.c_str());
}

int Comparison::run() {
  std::error_code error;
  if (options_.overwrite_output_dir) fs::remove_all(options_.output_dir, error);
  fs::create_directories(options_.output_dir + "/logs", error);
  check(!error, ErrorCode::kDataLoss, "--output_dir ", options_.output_dir, ": ", error.message());
  for (ComparisonRow& row : rows_) run_row(row);
  std::printf("\n%s on %s\n%s\n", prepared_.model.name.c_str(), prepared_.train_path.c_str(),
              comparison_text(rows_, tolerance()).c_str());
  write_text_file(options_.output_dir + "/comparison.csv", comparison_csv(rows_));
  std::printf("files: %s/comparison.csv, <row>/metrics.jsonl, <row>/final/, logs/<row>.log\n",
              options_.output_dir.c_str());
  int code = 0;
  for (const ComparisonRow& row : rows_) {
    if (!row.failed()) continue;
    if (row.outcome == Outcome::kFailed) return row.exit_code;
    std::printf("%s differs from the reference; worst parameter: %s\n", row.name.c_str(),
                row.parity.worst_parameter.c_str());
    code = exit_code(ErrorCode::kNumerics);
  }
  return code;
}

// The arguments without one flag and its value.
std::vector<std::string> without_flag(const std::vector<std::string>& arguments,
                                      const std::string& flag) {
  std::vector<std::string> kept;
  bool dropping = false;
  for (const std::string& argument : arguments) {
    if (argument.starts_with("--")) {
      dropping = argument == "--" + flag || argument.starts_with("--" + flag + "=");
    }
    if (!dropping) kept.push_back(argument);
  }
  return kept;
}

int run_compare(const std::vector<std::string>& arguments) {
  FlagSet flags("tessera-compare",
                "The same work under a list of strategies, each in processes of its own.");
  CompareOptions options;
  add_flags(flags, options);
  std::vector<std::string> passed = flags.parse_known(arguments);
  if (flags.help_requested()) {
    std::fputs(flags.help().c_str(), stdout);
    return 0;
  }
  const Program program = options.task == "squad"    ? Program::kSquad
                          : options.task == "causal" ? Program::kText
                                                     : Program::kClassification;
  FlagSet train_flags("tessera-finetune-" + options.task, "");
  TrainOptions train;
  add_train_flags(train_flags, train, program);
  train_flags.parse(passed);
  if (train_flags.print_config_requested()) {
    std::printf("%s\n", train_flags.config_json().c_str());
    return 0;
  }
  for (const char* name : {"strategy", "ranks", "gradient_accumulation_steps", "dry_run"}) {
    require(!train_flags.given(name), "--", name,
            " is chosen by tessera-compare for every row; see --help");
  }
  require(detect_launch().world_size == 1, "tessera-compare starts its own ranks; run it without ",
          detect_launch().launcher);
  train.output_dir = options.output_dir;
  validate_options(train, program);
  const char* defect = std::getenv("TESSERA_COMPARE_DEFECT");  // e.g. zero2-4
  if (defect != nullptr) passed = without_flag(passed, "learning_rate");
  return Comparison(options, prepare(train, program), passed, defect == nullptr ? "" : defect)
      .run();
}

}  // namespace
}  // namespace tessera::programs

int main(int argc, char** argv) {
  try {
    return tessera::programs::run_compare({argv + 1, argv + argc});
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return tessera::exit_code(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 70;
  }
}
