// SPDX-License-Identifier: MIT
#include "benchmarks/collectives/collectives.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <sstream>

#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera::bench {

const char* collective_name(Collective collective) {
  const char* names[] = {"all_reduce", "all_gather", "reduce_scatter",
                         "all_to_all", "broadcast",  "send_recv"};
  return names[static_cast<int>(collective)];
}

double bus_factor(Collective collective, int ranks) {
  const double n = ranks;
  switch (collective) {
    case Collective::kAllReduce:
      return 2 * (n - 1) / n;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      return (n - 1) / n;
    case Collective::kBroadcast:
    case Collective::kSendRecv:
      return 1;
  }
  return 1;
}

std::string Measurement::pack() const {
  return concat(static_cast<int>(collective), " ", bytes, " ", repeats);
}

Measurement Measurement::unpack(const std::string& text) {
  Measurement what;
  int collective = 0;
  std::istringstream(text) >> collective >> what.bytes >> what.repeats;
  what.collective = static_cast<Collective>(collective);
  return what;
}

namespace {

// Sends to the next rank and receives from the previous one.
void ring_shift(Communicator& comm, const at::Tensor& out, const at::Tensor& in) {
  Group group(comm);
  comm.send(out, (comm.rank() + 1) % comm.size());
  comm.recv(in, (comm.rank() + comm.size() - 1) % comm.size());
  group.end().wait();
}

void run_once(Communicator& comm, Collective collective, const at::Tensor& full,
              const at::Tensor& other, const at::Tensor& part) {
  switch (collective) {
    case Collective::kAllReduce:
      return comm.all_reduce(full).wait();
    case Collective::kAllGather:
      return comm.all_gather(full, part).wait();
    case Collective::kReduceScatter:
      return comm.reduce_scatter(part, full).wait();
    case Collective::kAllToAll:
      return comm.all_to_all(other, full).wait();
    case Collective::kBroadcast:
      return comm.broadcast(full, 0).wait();
    case Collective::kSendRecv:
      return ring_shift(comm, full, other);
  }
}

}  // namespace

double measure(Communicator& comm, ControlChannel& control, const Measurement& what) {
  constexpr int kWarmUp = 2;
  const auto options = at::TensorOptions(at::kFloat).device(comm.device());
  const int64_t part_count = std::max<int64_t>(1, what.bytes / 4 / comm.size());
  const at::Tensor full = at::zeros({part_count * comm.size()}, options);
  const at::Tensor part = at::zeros({part_count}, options);
  const bool moves =
      what.collective == Collective::kSendRecv || what.collective == Collective::kAllToAll;
  const at::Tensor other = moves ? at::zeros_like(full) : at::Tensor();
  const auto run = [&](int times) {
    for (int i = 0; i < times; ++i) run_once(comm, what.collective, full, other, part);
    synchronize_device(comm.device());
  };
  run(kWarmUp);
  comm.barrier();
  const auto start = std::chrono::steady_clock::now();
  run(what.repeats);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  double slowest = 0;
  for (const std::string& seconds : control.exchange(std::to_string(elapsed.count()))) {
    slowest = std::max(slowest, std::stod(seconds));
  }
  return slowest / what.repeats;
}

}  // namespace tessera::bench
