// SPDX-License-Identifier: MIT
#include "lib/compare/launchers.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "lib/compare/child.h"
#include "lib/settings/require.h"
#include "tessera/comm/bootstrap.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

constexpr const char* kOnTheCpu = "compare on the CPU with --launcher threads --backend local";

}  // namespace

LaunchersHere launchers_here() {
  LaunchersHere here{.mpirun = find_in_path("mpirun"),
                     .srun = find_in_path("srun"),
                     .torchrun = find_in_path("torchrun")};
  for (const TransportInfo& transport : describe_transports({})) {
    here.mpi |= transport.name == "mpi";
    here.gpus |= transport.name == "nccl" && transport.unusable_because.empty();
  }
  return here;
}

std::string choose_launcher(const std::string& asked, const LaunchersHere& here,
                            const std::vector<RowToLaunch>& rows) {
  require(asked != "mpirun" || !here.mpirun.empty(), "--launcher mpirun: mpirun was not found");
  require(asked != "srun" || !here.srun.empty(),
          "--launcher srun: srun was not found; it is for a batch script of Slurm");
  require(asked != "torchrun" || !here.torchrun.empty(),
          "--launcher torchrun: torchrun was not found in PATH; it comes with Python's torch "
          "(activate its environment)");
  if (asked != "auto" && asked != "threads") return asked;
  const auto on_gpu = [&](bool alone) {
    return std::ranges::find_if(rows, [&](const RowToLaunch& row) {
      return here.gpus && row.on_gpus && row.alone == alone;
    });
  };
  const auto several = on_gpu(/*alone=*/false), one = on_gpu(/*alone=*/true);
  if (asked == "threads") {
    require(several == rows.end() || one == rows.end(), "--launcher threads: the ranks of ",
            several == rows.end() ? "" : several->name, " would be on the CPU, but ",
            one == rows.end() ? "" : one->name, " on a GPU; use --launcher torchrun or mpirun, or ",
            kOnTheCpu);
    return asked;
  }
  if (here.mpi && !here.mpirun.empty()) return "mpirun";
  if (several == rows.end()) return "threads";
  if (!here.torchrun.empty()) return "torchrun";
  require(!here.mpirun.empty(), "--launcher auto: the ranks of ", several->name,
          " use GPUs and need a process each, but neither torchrun nor mpirun is in PATH; activate "
          "the environment of Python's torch, or ",
          kOnTheCpu);
  return "mpirun";  // ranks connect over TCP
}

std::vector<std::string> launch_command(const std::string& launcher, const LaunchersHere& here,
                                        const std::string& ranks) {
  if (launcher == "mpirun") {
    std::vector<std::string> command{here.mpirun, "--oversubscribe", "--bind-to", "none", "-n",
                                     ranks};
    if (geteuid() == 0) command.push_back("--allow-run-as-root");
    return command;
  }
  if (launcher == "srun") {
    return {here.srun, "--cpu-bind=none", "--kill-on-bad-exit=1", "--ntasks=" + ranks};
  }
  if (launcher == "torchrun") {
    return {here.torchrun, "--standalone", "--no-python", "--nproc-per-node=" + ranks};
  }
  return {};
}

std::optional<int> exit_code_of_torchrun(const std::string& log) {
  const size_t cause = log.rfind("Root Cause (first observed failure)");
  const size_t key = cause == std::string::npos ? cause : log.find("exitcode", cause);
  const size_t number = key == std::string::npos ? key : log.find_first_of("-0123456789", key);
  if (number == std::string::npos) return std::nullopt;
  int code = 0;
  const auto [end, error] = std::from_chars(log.data() + number, log.data() + log.size(), code);
  if (error != std::errc()) return std::nullopt;
  return code < 0 ? 128 - code : code;
}

}  // namespace tessera::programs
