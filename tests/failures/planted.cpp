// SPDX-License-Identifier: MIT
// One planted defect of rank 1 in a job whose other ranks are correct:
//   planted TRANSPORT CASE [checked]      (mpirun -n N, RANK and WORLD_SIZE; local: 3 ranks as
//   threads)
// planted.py runs all cases and knows the expected output of every rank; planted lists the cases.
#include <ATen/ATen.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <thread>

#include "lib/comm/operation_scope.h"
#include "tessera/comm/launch.h"
#include "tests/support/ranks.hpp"

namespace tessera::test {
namespace {

using Seconds = std::chrono::duration<double>;

struct Ranks {
  Communicator& world;
  Communicator& part;  // a split with the same ranks
  ControlChannel& control;
  bool threads;  // ranks of one process cannot die or be stopped alone

  bool wrong() const { return world.rank() == 1; }
  int last() const { return world.size() - 1; }
  at::Tensor tensor(int64_t count, at::ScalarType dtype = at::kFloat) const {
    return at::ones({count}, at::TensorOptions(dtype).device(world.device()));
  }
  // Waits on the host until the device is done.
  static void finish(Work work, const at::Tensor& tensor) {
    work.wait();
    tensor.cpu();
  }
  void sum(const char* label, int64_t count, at::ScalarType dtype = at::kFloat) const {
    const ForTensor of(label);
    const at::Tensor x = tensor(count, dtype);
    finish(world.all_reduce(x), x);
  }
  void gather(const char* label, int64_t count) const {
    const ForTensor of(label);
    const at::Tensor all = tensor(count * world.size());
    finish(world.all_gather(all, tensor(count)), all);
  }
  void give(const char* label, int64_t count, int root) const {
    const ForTensor of(label);
    const at::Tensor x = tensor(count);
    finish(world.broadcast(x, root), x);
  }
  void message(const char* label, int64_t count, int source, int destination) const {
    const ForTensor of(label);
    const at::Tensor x = tensor(count);
    finish(world.rank() == source ? world.send(x, destination) : world.recv(x, source), x);
  }
};

void rest(double seconds) { std::this_thread::sleep_for(Seconds(seconds)); }

struct Gone {};  // a thread that ends silently

void stop_or_die(const Ranks& ranks, int signal) {
  if (!ranks.threads) std::raise(signal);
  if (signal == SIGKILL) throw Gone();
  rest(4);  // a thread cannot be stopped alone, only block
}

// Operations of the ranks in the backward pass of step 3.
const std::map<std::string, std::function<void(const Ranks&)>>& cases() {
  static const std::map<std::string, std::function<void(const Ranks&)>> all = {
      {"right", [](const Ranks& r) { r.sum("h.7.weight", 1000); }},
      {"slow_in_time",
       [](const Ranks& r) {
         if (r.wrong()) rest(0.7);
         r.sum("h.7.weight", 1000);
       }},
      {"slow",
       [](const Ranks& r) {
         if (r.wrong()) rest(4);
         r.sum("h.7.weight", 1000);
       }},
      {"dead",
       [](const Ranks& r) {
         if (r.wrong()) stop_or_die(r, SIGKILL);
         r.sum("h.7.weight", 1000);
       }},
      {"stopped",
       [](const Ranks& r) {
         if (r.wrong()) stop_or_die(r, SIGSTOP);
         r.sum("h.7.weight", 1000);
       }},
      {"skipped",
       [](const Ranks& r) {
         if (!r.wrong()) r.sum("h.7.weight", 1000);
         r.gather("h.8.weight", 1000);
       }},
      {"skipped_last",
       [](const Ranks& r) {
         if (!r.wrong()) r.sum("h.7.weight", 1000);
         r.control.exchange("");
       }},
      {"count", [](const Ranks& r) { r.sum("h.7.weight", r.wrong() ? 500 : 1000); }},
      {"count_late",  // the first rank's call decides which of the others is wrong
       [](const Ranks& r) {
         if (r.world.rank() == 0) rest(0.9);  // 0.4 s after rank 1
         r.sum("h.7.weight", r.wrong() ? 500 : 1000);
       }},
      {"count_of_gather", [](const Ranks& r) { r.gather("h.7.weight", r.wrong() ? 200 : 300); }},
      {"dtype",
       [](const Ranks& r) { r.sum("h.7.weight", 1000, r.wrong() ? at::kHalf : at::kFloat); }},
      {"order",
       [](const Ranks& r) {
         r.sum(r.wrong() ? "h.8.weight" : "h.7.weight", r.wrong() ? 400 : 1000);
         r.sum(r.wrong() ? "h.7.weight" : "h.8.weight", r.wrong() ? 1000 : 400);
       }},
      {"operation",
       [](const Ranks& r) {
         r.wrong() ? r.gather("h.8.weight", 1000) : r.sum("h.7.weight", 1000);
       }},
      {"root", [](const Ranks& r) { r.give("h.7.weight", 1000, r.wrong() ? r.last() : 0); }},
      {"partner",
       [](const Ranks& r) {
         if (r.world.rank() == 0) r.message("h.7.activations", 1000, 1, 0);
         // Two ranks: it receives as well. Three: it sends to the other one.
         if (r.wrong() && r.last() == 1) r.message("h.8.activations", 1000, 0, 1);
         if (r.wrong() && r.last() > 1) r.message("h.8.activations", 1000, 1, r.last());
         r.control.exchange("");
       }},
      {"partner_later",  // as above, on an existing connection
       [](const Ranks& r) {
         if (r.world.rank() < 2) r.message("h.6.activations", 1000, 1, 0);
         if (r.world.rank() == 0) r.message("h.7.activations", 1000, 1, 0);
         r.control.exchange("");
       }},
      {"message_count",
       [](const Ranks& r) {
         if (r.world.rank() < 2) r.message("h.7.activations", r.wrong() ? 900 : 1000, 1, 0);
         r.control.exchange("");
       }},
      {"phase",
       [](const Ranks& r) {
         if (!r.wrong()) return r.sum("h.7.weight", 1000);
         const InPhase phase("evaluation");
         const ForTensor of("loss");
         const at::Tensor x = r.tensor(3);
         Ranks::finish(r.part.all_reduce(x), x);
       }},
      {"step",
       [](const Ranks& r) {
         r.sum("h.8.weight", 1000);
         if (!r.wrong()) r.sum("h.7.weight", 400);
         note_step(4);
         r.sum("h.8.weight", 1000);
       }},
      {"closing",  // a communicator whose peer has died silently
       [](const Ranks& r) {
         const auto more = r.world.split(0, r.world.rank());
         const ForTensor of("h.7.weight");
         const at::Tensor x = r.tensor(1000);
         Ranks::finish(more->all_reduce(x), x);
         r.control.exchange("");
         if (r.wrong()) stop_or_die(r, SIGKILL);
       }},
      {"barrier",
       [](const Ranks& r) {
         const ForTensor of("end of epoch");
         if (!r.wrong()) r.world.barrier();
         r.control.exchange("");
       }},
  };
  return all;
}

}  // namespace
}  // namespace tessera::test

int main(int argc, char** argv) {
  using namespace tessera;
  const std::string transport = argc > 1 ? argv[1] : "", name = argc > 2 ? argv[2] : "";
  const auto chosen = test::cases().find(name);
  if (chosen == test::cases().end()) {
    for (const auto& [each, run] : test::cases()) std::printf("%s\n", each.c_str());
    return argc > 1 ? 2 : 0;
  }
  const bool threads = transport == "local";
  const bool checked = argc > 3 && std::string(argv[3]) == "checked";
  return run_job({.ranks = threads ? 3 : 0, .transport = transport, .debug_collectives = checked},
                 [&](Communicator& world, const LaunchInfo&, ControlChannel& control) {
                   const auto part = world.split(0, world.rank());
                   const test::Ranks ranks{world, *part, control, threads};
                   note_step(2);
                   const InPhase phase("backward");
                   ranks.sum("h.6.weight", 1000);
                   note_step(3);
                   if (world.rank() == 1) test::rest(0.5);  // the others have arrived by then
                   try {
                     chosen->second(ranks);
                     ranks.sum("h.6.weight", 1000);
                   } catch (const test::Gone&) {
                   }
                 });
}
