// SPDX-License-Identifier: MIT
#include "lib/run/run_checkpoints.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <filesystem>

#include "lib/checkpoint/checkpoint_directory.h"
#include "lib/run/adapters.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;

// Rank 0's view, so that all ranks agree. False: perhaps the directory of a run.
bool is_checkpoint(const std::string& path, Communicator& world) {
  const at::Tensor found = at::full({1}, fs::exists(path + "/manifest.json") ? 1 : 0,
                                    at::TensorOptions(at::kLong).device(world.device()));
  world.broadcast(found, 0).wait();
  return found.item<int64_t>() != 0;
}

bool was_damaged(const std::string& skipped) { return !skipped.ends_with("was not finished"); }

LoadReport fill(const TrainOptions& options, const Checkpoint& checkpoint, Communicator& world,
                Strategy& strategy) {
  LoadReport report = load_checkpoint(world, checkpoint, state_of_run(strategy, options));
  strategy.state_restored();
  return report;
}

Resumed load(const TrainOptions& options, const std::string& path, Communicator& world,
             Strategy& strategy) {
  const Checkpoint checkpoint = open_checkpoint(world, path);
  Resumed resumed{path, RunState::from_json(checkpoint.run(), path)};
  const bool adapters = !resumed.run.adapter.empty();
  check(adapters == options.trains_adapters(), ErrorCode::kInvalidArgument, path,
        adapters ? ": is of a run with adapters (--lora_r), which this one is not"
                 : ": is of a run without adapters; this one has some (--lora_r)",
        "; give the same flags, or --resume_from_checkpoint none");
  const LoadReport report = fill(options, checkpoint, world, strategy);
  if (world.rank() != 0) return resumed;
  log(LogLevel::kInfo, "going on from ", path, ", step ", resumed.run.trainer.steps, ": ",
      report.bytes_read >> 20, " MiB read by this rank in ", report.load_s, " s");
  for (const std::string& name : report.unused) {
    log(LogLevel::kInfo, path, ": ", name, " is not used by this run");
  }
  return resumed;
}

}  // namespace

void check_resume(const TrainOptions& options) {
  const std::string& from = options.run.resume_from_checkpoint;
  check(from == "auto" || from == "none" || fs::is_directory(from), ErrorCode::kInvalidArgument,
        "--resume_from_checkpoint ", from,
        " is no directory; name a checkpoint or a run's --output_dir, or say auto or none");
}

bool continues_in_place(const TrainOptions& options) {
  const std::string& from = options.run.resume_from_checkpoint;
  if (from == "none") return false;
  if (from == "auto") return true;
  std::error_code error;
  const fs::path here = fs::weakly_canonical(options.output.output_dir, error);
  const fs::path there = fs::weakly_canonical(from, error);
  return there == here || there.parent_path() == here;
}

std::optional<Resumed> resume(const TrainOptions& options, Communicator& world,
                              Strategy& strategy) {
  const std::string& from = options.run.resume_from_checkpoint;
  if (from == "none") return std::nullopt;
  if (from != "auto" && is_checkpoint(from, world)) return load(options, from, world, strategy);
  const std::string directory = from == "auto" ? options.output.output_dir : from;
  std::vector<std::string> skipped;
  std::optional<int64_t> before;
  for (;;) {
    const FoundCheckpoint found = find_checkpoint(world, directory, before);
    skipped.insert(skipped.end(), found.skipped.begin(), found.skipped.end());
    if (found.path.empty()) break;
    try {
      Resumed resumed = load(options, found.path, world, strategy);
      for (const std::string& reason : skipped) {
        if (world.rank() == 0) log(LogLevel::kWarning, "skipped: ", reason);
      }
      return resumed;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDataLoss) throw;
      skipped.emplace_back(error.what());
      before = std::stoll(found.path.substr(found.path.rfind('-') + 1));
    }
  }
  std::erase_if(skipped, [](const std::string& reason) { return !was_damaged(reason); });
  check(skipped.empty(), ErrorCode::kDataLoss, "no checkpoint in ", directory,
        " loads: ", skipped.empty() ? "" : skipped.front(),
        "; remove them, or begin anew with --resume_from_checkpoint none");
  check(from == "auto", ErrorCode::kInvalidArgument, "--resume_from_checkpoint ", from,
        " holds no checkpoint");
  if (world.rank() == 0) {
    log(LogLevel::kInfo, directory, " holds no checkpoint to go on from: the run begins at step 0");
  }
  return std::nullopt;
}

std::string kept_fp8_layers(const TrainOptions& options, Communicator& world) {
  const std::string& from = options.run.resume_from_checkpoint;
  if (from == "none") return "";
  const bool named = from != "auto" && is_checkpoint(from, world);
  const std::string directory = from == "auto" ? options.output.output_dir : from;
  const std::string path = named ? from : find_checkpoint(world, directory).path;
  if (path.empty()) return "";
  return RunState::from_json(open_checkpoint(world, path).run(), path).fp8_layers;
}

void load_best(const BestOfRun& best, const TrainOptions& options, Communicator& world,
               Strategy& strategy) {
  const auto say = [&](LogLevel level, const auto&... text) {
    if (world.rank() == 0) log(level, text...);
  };
  const int64_t step = best.step.step;
  std::vector<std::string> directories{options.output.output_dir};
  if (best.resumed && step <= best.resumed->run.trainer.steps) {
    const std::string beside = fs::path(best.resumed->path).parent_path();
    directories.push_back(beside.empty() ? "." : beside);
  }
  std::string reasons;
  for (const std::string& directory : directories) {
    const std::string path = checkpoint_path(directory, step);
    std::string reason = path + " is not there";
    std::optional<Checkpoint> checkpoint;
    try {
      if (is_checkpoint(path, world)) {
        checkpoint = open_checkpoint(world, path);
        reason = path + " is of another run";
        const RunState state = RunState::from_json(checkpoint->run(), path);
        if (!state.is_best_of(best.run, best.step)) checkpoint.reset();
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDataLoss) throw;
      checkpoint.reset();
      reason = error.what();
    }
    if (checkpoint) {
      fill(options, *checkpoint, world, strategy);
      say(LogLevel::kInfo, "the model is that of step ", step, ", whose metric ", best.step.metric,
          " is the best: ", path);
      return;
    }
    if (reasons.find(reason) == reasons.npos) reasons += (reasons.empty() ? "" : "; ") + reason;
  }
  say(LogLevel::kWarning, "the model stays that of the last step, although step ", step,
      " is the best: ", reasons,
      "; with its checkpoint, tessera-checkpoint export writes that model");
}

}  // namespace tessera::programs
