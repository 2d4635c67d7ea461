// SPDX-License-Identifier: MIT
// The conformance suite with one process per rank:
//   mpirun -n 4 conformance_processes TRANSPORT [checked|fail|kill|stuck|restart|idle|meet]
// checked compares every collective across ranks. fail: rank 1 throws while the others wait. kill:
// it dies silently. stuck: it never calls the collective. None may hang. restart: rank 1 fails in
// torchrun's first attempt. idle: all wait for each other for ever. meet: they end at once.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tessera/comm/launch.h"
#include "tessera/core/log.h"
#include "tests/conformance/communicator_conformance.hpp"
#include "tests/support/ranks.hpp"

namespace tessera::test {
namespace {

void run_all(Communicator& world, const LaunchInfo& launch) {
  for (const ConformanceCase& each : conformance_cases()) {
    try {
      log(LogLevel::kDebug, each.name);
      each.run(world);
      if (world.device().is_cpu()) continue;
      world.barrier();
    } catch (const Error& error) {
      throw Error(error.code(), concat(each.name, ": ", error.what()));
    }
  }
  world.barrier();
  if (world.rank() == 0) {
    std::printf("%zu cases conform: %s, %d ranks, %d on this host, %s, started by %s\n",
                conformance_cases().size(), world.transport().c_str(), world.size(),
                launch.local_size, world.device().str().c_str(), launch.launcher.c_str());
  }
}

void fail_at_first(const Communicator& world) {
  const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  require(attempt != nullptr, "torchrun says which attempt this is");
  const bool first = std::string(attempt) == "0";
  if (first && world.rank() == 1) fail(ErrorCode::kDataLoss, "this rank gives up in attempt 0");
}

void misbehave(Communicator& world, ControlChannel& control, const std::string& how) {
  const auto half = world.split(world.rank() % 2, 0);
  if (how == "idle") {
    if (world.rank() == 0) std::printf("all %d ranks are here\n", world.size());
    std::fflush(stdout);
    half->barrier();
    while (true) {
      control.exchange("");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
  const at::Tensor x = at::ones({1000}, at::TensorOptions(at::kFloat).device(world.device()));
  const at::Tensor all = at::empty({world.size() * x.numel()}, x.options());
  world.all_gather(all, x).wait();  // so that the ranks are connected
  if (world.rank() == 1) {
    if (how == "kill") std::raise(SIGKILL);
    if (how == "stuck") control.exchange("nobody else comes here");
    fail(ErrorCode::kDataLoss, "this rank gives up");
  }
  const std::string message = require_error(
      ErrorCode::kUnavailable,
      [&] {
        while (true) {
          world.all_gather(all, x).wait();
          world.all_reduce(x).wait();
          x.cpu();  // a GPU's current stream must not wait for ever either
        }
      },
      "waiting for a failed rank");
  fail(ErrorCode::kUnavailable, message);
}

}  // namespace
}  // namespace tessera::test

int main(int argc, char** argv) {
  using namespace tessera;
  const std::string transport = argc > 1 ? argv[1] : "auto";
  const std::string how = argc > 2 ? argv[2] : "";
  const bool checked = how == "checked";
  return run_job({.transport = transport, .debug_collectives = checked},
                 [&](Communicator& world, const LaunchInfo& launch, ControlChannel& control) {
                   require_same_on_all_ranks(control, "the transport", transport);
                   if (how == "restart") test::fail_at_first(world);
                   if (how == "meet") return;
                   how.empty() || checked || how == "restart"
                       ? test::run_all(world, launch)
                       : test::misbehave(world, control, how);
                 });
}
