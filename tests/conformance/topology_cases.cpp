// SPDX-License-Identifier: MIT
// Messages between pairs, groups of operations, sub-groups, and mixtures of them.
#include "tests/conformance/cases.hpp"

namespace tessera::test {
namespace {

at::Tensor blank(const Communicator& comm, int64_t count, at::ScalarType dtype = at::kFloat) {
  return at::zeros({count}, at::TensorOptions(dtype).device(comm.device()));
}

void ring_shift(Communicator& comm) {
  if (comm.size() == 1) return;
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t count : {1, 1023, 300'000}) {
      const at::Tensor out = values(comm, comm.rank(), count, dtype);
      const at::Tensor in = blank(comm, count, dtype);
      Work sent = comm.send(out, next);
      comm.recv(in, previous).wait();
      sent.wait();
      require_bit_equal(in, values(comm, previous, count, dtype), concat("ring of ", dtype));
    }
  }
}

void every_pair_in_order(Communicator& comm) {
  std::vector<Work> works;
  std::vector<at::Tensor> received;
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    for (int k = 0; k < 3; ++k) {
      works.push_back(comm.send(values(comm, 10 * comm.rank() + k, 50 + k, at::kInt), peer));
      received.push_back(blank(comm, 50 + k, at::kInt));
      works.push_back(comm.recv(received.back(), peer));
    }
  }
  for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
  size_t i = 0;
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    for (int k = 0; k < 3; ++k) {
      require_bit_equal(received[i++], values(comm, 10 * peer + k, 50 + k, at::kInt),
                        concat("message ", k, " from ", peer));
    }
  }
}

// As in a pipeline: many messages forward before the first returns, with collectives in between.
void messages_beside_collectives(Communicator& comm) {
  constexpr int kMessages = 4;
  constexpr int64_t kCount = 200'000;
  const int rank = comm.rank();
  const bool has_next = rank + 1 < comm.size();
  std::vector<Work> sends;
  for (int m = 0; m < kMessages; ++m) {
    at::Tensor x = rank == 0 ? values(comm, m, kCount, at::kFloat) : blank(comm, kCount);
    if (rank > 0) comm.recv(x, rank - 1).wait();
    if (has_next) sends.push_back(comm.send(x + 1, rank + 1));
    at::Tensor sum = at::ones({10}, x.options());
    comm.all_reduce(sum).wait();
    require_bit_equal(sum, at::full_like(sum, comm.size()), "a sum between messages");
  }
  for (int m = 0; m < kMessages; ++m) {
    at::Tensor gradient = values(comm, 100 + m, kCount, at::kFloat);
    if (has_next) comm.recv(gradient, rank + 1).wait();
    require_bit_equal(gradient,
                      values(comm, 100 + m, kCount, at::kFloat) + (comm.size() - 1 - rank),
                      concat("gradient ", m));
    if (rank > 0) sends.push_back(comm.send(gradient + 1, rank - 1));
  }
  for (Work& work : sends) work.wait();
}

// A pending message must not be taken for a part of an all_to_all.
void messages_beside_all_to_all(Communicator& comm) {
  if (comm.size() == 1) return;
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  Work sent = comm.send(at::full_like(blank(comm, 9), 100 + comm.rank()), next);
  const at::Tensor parts = blank(comm, 9 * comm.size());
  comm.all_to_all(parts, at::full_like(parts, comm.rank())).wait();
  const at::Tensor message = blank(comm, 9);
  comm.recv(message, previous).wait();
  sent.wait();
  for (int r = 0; r < comm.size(); ++r) {
    require_bit_equal(parts.narrow(0, 9 * r, 9), at::full_like(message, r), "a part");
  }
  require_bit_equal(message, at::full_like(message, 100 + previous), "the message");
}

void grouped_operations(Communicator& comm) {
  const at::Tensor a = values(comm, comm.rank(), 1000, at::kFloat);
  const at::Tensor b = values(comm, comm.rank(), 77, at::kInt);
  const at::Tensor gathered = blank(comm, 5 * comm.size());
  const at::Tensor part = values(comm, comm.rank(), 5, at::kFloat);
  const at::Tensor in = blank(comm, 333);
  const int peer = comm.size() - 1 - comm.rank();  // symmetric exchange, allowed in a group
  Group group(comm);
  require(!comm.all_reduce(a).pending(), "an operation of a group has no handle of its own");
  comm.all_reduce(b, ReduceOp::kMax);
  comm.all_gather(gathered, part);
  if (peer != comm.rank()) {
    comm.send(values(comm, comm.rank(), 333, at::kFloat), peer);
    comm.recv(in, peer);
  }
  group.end().wait();
  require_bit_equal(a, reduced(comm, 1000, at::kFloat, ReduceOp::kSum, 0), "first of the group");
  require_bit_equal(b, reduced(comm, 77, at::kInt, ReduceOp::kMax, 0), "second of the group");
  for (int r = 0; r < comm.size(); ++r) {
    require_bit_equal(gathered.narrow(0, 5 * r, 5), values(comm, r, 5, at::kFloat), "third");
  }
  if (peer != comm.rank()) {
    require_bit_equal(in, values(comm, peer, 333, at::kFloat), "exchange in the group");
  }
  Group empty(comm);
  empty.end().wait();
}

void sub_groups(Communicator& comm) {
  auto parity = comm.split(comm.rank() % 2, -comm.rank());  // reversed order
  const int members = (comm.size() + 1 - comm.rank() % 2) / 2;
  require(parity->size() == members, "split has ", parity->size(), " ranks, expected ", members);
  require(parity->rank() == members - 1 - comm.rank() / 2, "rank ", parity->rank(),
          " in the split with reversed keys");
  require(parity->device() == comm.device() && parity->transport() == comm.transport(),
          "a split has the device and transport of its parent");
  at::Tensor sum = at::full({3}, comm.rank(), at::TensorOptions(at::kLong).device(comm.device()));
  parity->all_reduce(sum).wait();
  int64_t expected = 0;
  for (int r = comm.rank() % 2; r < comm.size(); r += 2) expected += r;
  require(sum[0].item<int64_t>() == expected, "sum over equal parity is ", sum[0].item<int64_t>());
  auto alone = parity->split(parity->rank(), 0);
  require(alone->size() == 1 && alone->rank() == 0, "a split of one");
  all_operations_alone(*alone);
  // Both are in flight at once.
  at::Tensor outer = values(comm, comm.rank(), 60'000, at::kFloat);
  at::Tensor inner = at::ones({60'000}, outer.options());
  Work first = comm.all_reduce(outer);
  Work second = parity->all_reduce(inner);
  second.wait();
  first.wait();
  require_bit_equal(inner, at::full_like(inner, members), "inner sum");
  require_bit_equal(outer, reduced(comm, 60'000, at::kFloat, ReduceOp::kSum, 0), "outer sum");
}

void refused_arguments(Communicator& comm) {
  const at::Tensor x = blank(comm, 6);
  const auto refuse = [&](const std::function<void()>& fn, const char* what) {
    require_error(ErrorCode::kInvalidArgument, fn, what);
  };
  refuse([&] { comm.all_reduce(x.view({2, 3}).t()); }, "a strided tensor");
  refuse([&] { comm.all_reduce(x.to(at::kBool)); }, "bool");
  refuse([&] { comm.all_gather(x, blank(comm, 7)); }, "sizes of all_gather");
  const std::vector<int64_t> long_counts(static_cast<size_t>(comm.size()) + 1, 0);
  refuse([&] { comm.all_to_all(x, x.to(at::kDouble)); }, "dtypes of all_to_all");
  refuse([&] { comm.all_to_all(blank(comm, 0), blank(comm, 0), long_counts, long_counts); },
         "counts of all_to_all");
  refuse([&] { comm.broadcast(x, comm.size()); }, "a root that is no rank");
  refuse([&] { comm.recv(x, comm.rank()); }, "receiving from itself");
  comm.barrier();
}

}  // namespace

void all_operations_alone(Communicator& comm) {
  const at::Tensor x = values(comm, 3, 100, at::kHalf);
  comm.all_reduce(x).wait();
  require_bit_equal(x, values(comm, 3, 100, at::kHalf), "all_reduce of one rank");
  const at::Tensor y = blank(comm, 100, at::kHalf);
  comm.all_gather(y, x).wait();
  require_bit_equal(y, x, "all_gather of one rank");
  const at::Tensor z = blank(comm, 100, at::kHalf);
  comm.reduce_scatter(z, x).wait();
  require_bit_equal(z, x, "reduce_scatter of one rank");
  comm.reduce_scatter(x, x).wait();
  const at::Tensor w = blank(comm, 100, at::kHalf);
  comm.all_to_all(w, x).wait();
  require_bit_equal(w, x, "all_to_all of one rank");
  comm.broadcast(x, 0).wait();
  require_bit_equal(x, z, "broadcast of one rank");
  comm.barrier();
  require(comm.bytes_sent() == 0, "one rank sends nothing");
}

std::vector<ConformanceCase> topology_cases() {
  return {{"ring shift", ring_shift},
          {"every pair in order", every_pair_in_order},
          {"messages beside collectives", messages_beside_collectives},
          {"messages beside all_to_all", messages_beside_all_to_all},
          {"groups", grouped_operations},
          {"sub-groups", sub_groups},
          {"refused arguments", refused_arguments}};
}

std::vector<ConformanceCase> conformance_cases() {
  std::vector<ConformanceCase> cases = collective_cases();
  for (ConformanceCase& each : topology_cases()) cases.push_back(std::move(each));
  return cases;
}

}  // namespace tessera::test
