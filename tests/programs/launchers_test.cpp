// SPDX-License-Identifier: MIT
// Choice of the launcher for a comparison's rows.
#include "lib/compare/launchers.h"

#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"
#include "tests/support/text.hpp"

using namespace tessera;
using namespace tessera::programs;
using tessera::test::has;

namespace {

const LaunchersHere kCpuBuild{.mpi = true, .mpirun = "/bin/mpirun"};
const LaunchersHere kWheel{.gpus = true, .torchrun = "/venv/bin/torchrun"};
const RowToLaunch kSingle{.name = "single-1", .alone = true, .on_gpus = true};
const RowToLaunch kZero2{.name = "zero2-2", .on_gpus = true};

std::string refusal(const std::string& asked, const LaunchersHere& here,
                    const std::vector<RowToLaunch>& rows) {
  return error_of(ErrorCode::kInvalidArgument, [&] { choose_launcher(asked, here, rows); });
}

TEST_CASE("comparison: auto takes MPI's mpirun, torchrun for GPUs, else threads") {
  const std::vector<RowToLaunch> rows{kSingle, kZero2};
  CHECK(choose_launcher("auto", kCpuBuild, rows) == "mpirun");
  CHECK(choose_launcher("auto", kWheel, rows) == "torchrun");
  LaunchersHere here = kWheel;
  here.mpi = true;
  here.mpirun = "/bin/mpirun";
  CHECK(choose_launcher("auto", here, rows) == "mpirun");
  here.mpi = false;  // a wheel on a host with Open MPI
  CHECK(choose_launcher("auto", here, rows) == "torchrun");
  here.torchrun = "";
  CHECK(choose_launcher("auto", here, rows) == "mpirun");
  here.mpirun = "";
  CHECK(has(refusal("auto", here, rows), "neither torchrun nor mpirun is in PATH"));
  CHECK(choose_launcher("auto", here, {kSingle}) == "threads");  // nothing to launch
  here.gpus = false;
  CHECK(choose_launcher("auto", here, rows) == "threads");
}

TEST_CASE("comparison: ranks on the CPU are not set beside a GPU") {
  const std::string said = refusal("threads", kWheel, {kSingle, kZero2});
  for (const char* part : {"--launcher threads: the ranks of zero2-2 would be on the CPU",
                           "single-1 on a GPU", "--launcher torchrun", "--backend local"}) {
    CHECK(has(said, part));
  }
  // Without a row on a GPU, or with rows restricted to the CPU.
  CHECK(choose_launcher("threads", kWheel, {kZero2}) == "threads");
  CHECK(choose_launcher("threads", kCpuBuild, {kSingle, kZero2}) == "threads");
  RowToLaunch single = kSingle, several = kZero2;
  single.on_gpus = several.on_gpus = false;
  CHECK(choose_launcher("threads", kWheel, {single, several}) == "threads");
  CHECK(choose_launcher("auto", kWheel, {single, several}) == "threads");
}

TEST_CASE("comparison: a launcher that is asked for is there, or refused") {
  CHECK(choose_launcher("torchrun", kWheel, {kZero2}) == "torchrun");
  CHECK(has(refusal("torchrun", kCpuBuild, {kZero2}), "it comes with Python's torch"));
  CHECK(has(refusal("mpirun", kWheel, {kZero2}), "mpirun was not found"));
  CHECK(has(refusal("srun", kWheel, {kZero2}), "batch script of Slurm"));
  CHECK(launch_command("torchrun", kWheel, "4") ==
        std::vector<std::string>{"/venv/bin/torchrun", "--standalone", "--no-python",
                                 "--nproc-per-node=4"});
  CHECK(launch_command("threads", kWheel, "4").empty());
}

TEST_CASE("comparison: the exit code of torchrun's first failed rank") {
  const std::string summary =
      "[1]:\n  exitcode  : 5 (pid: 7)\n------\nRoot Cause (first observed failure):\n[0]:\n"
      "  time      : 2026-11-28_13:45:13\n  rank      : 0 (local_rank: 0)\n  exitcode  : ";
  CHECK(exit_code_of_torchrun(summary + "3 (pid: 8)\n") == 3);
  CHECK(exit_code_of_torchrun(summary + "-9 (pid: 8)\n") == 137);
  CHECK_FALSE(exit_code_of_torchrun("ModuleNotFoundError: No module named 'torch'\n"));
  CHECK_FALSE(exit_code_of_torchrun("Root Cause (first observed failure):\n"));
}

}  // namespace
