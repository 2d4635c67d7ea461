// SPDX-License-Identifier: MIT
// A rank that fails, over TCP, one process per rank:
//   ending_ranks slow|leave RANK
// slow: the rank throws, and its unwinding takes five seconds. leave: an exception leaves the scope
// of the rank's own Bootstrap. Every rank prints when it failed or learned of it.
#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "tessera/comm/launch.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

// Seconds of a clock shared by all processes of a host.
void say(const char* what) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  std::printf("%s at %.3f\n", what, std::chrono::duration<double>(now).count());
  std::fflush(stdout);
}

struct SlowToEnd {
  ~SlowToEnd() {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    say("unwound");
  }
};

void wait_for_others(Communicator& world) {
  try {
    const at::Tensor x = at::ones({1000});
    while (true) world.all_reduce(x).wait();
  } catch (const Error&) {
    say("heard");
    throw;
  }
}

int slow(int bad) {
  return run_job({.transport = "tcp"},
                 [&](Communicator& world, const LaunchInfo&, ControlChannel&) {
                   const SlowToEnd slow_to_end;
                   if (world.rank() != bad) {
                     wait_for_others(world);
                   } else {
                     try {  // exceptions caught inside are not reported
                       fail(ErrorCode::kInvalidArgument, "this is caught");
                     } catch (const Error&) {
                     }
                     say("failed");
                     fail(ErrorCode::kDataLoss, "this rank gives up");
                   }
                 });
}

int leave(int bad) {
  try {
    const auto bootstrap = make_bootstrap();
    try {  // not the final exception
      throw std::runtime_error("this is caught");
    } catch (const std::exception&) {
    }
    if (bootstrap->rank() == bad) {
      say("failed");
      throw std::runtime_error("this rank gives up");
    }
    bootstrap->exchange("");
  } catch (const std::exception& error) {
    say("heard");
    std::printf("because: %s\n", error.what());
    return 5;
  }
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  const int bad = argc > 2 ? std::stoi(argv[2]) : 0;
  return how == "leave" ? tessera::leave(bad) : tessera::slow(bad);
}
