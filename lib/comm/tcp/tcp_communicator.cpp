// SPDX-License-Identifier: MIT
#include "lib/comm/tcp/tcp_communicator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "lib/comm/collective_timeout.h"
#include "lib/comm/reduce_kernels.h"
#include "lib/core/hash.h"
#include "tessera/core/error.h"
#include "tessera/core/phase_clock.h"

namespace tessera::tcp {
namespace {

// Segment size of reductions, which bounds the memory for other ranks' parts.
constexpr int64_t kSegmentBytes = 8 << 20;
// Keeps their sequence numbers apart from collectives'.
constexpr uint64_t kMessages = uint64_t{1} << 63;

class TcpWork final : public Work::Impl {
 public:
  TcpWork(std::shared_ptr<Transfer> transfer, std::shared_ptr<const Job> job)
      : transfer_(std::move(transfer)), job_(std::move(job)) {}
  void wait() override {
    const PhaseScope phase(Phase::kCommunication);
    const bool in_time = job_->mesh->wait(*transfer_, collective_timeout());
    if (in_time && transfer_->error.empty()) return;
    job_->report(transfer_->call, in_time ? transfer_->error : "");
    job_->mesh->throw_if_aborted();
  }

 private:
  std::shared_ptr<Transfer> transfer_;
  std::shared_ptr<const Job> job_;
};

// A tensor's elements by index and count, as bytes.
struct Elements {
  explicit Elements(const at::Tensor& tensor)
      : data(static_cast<char*>(tensor.data_ptr())),
        size(static_cast<int64_t>(tensor.itemsize())) {}
  char* at(int64_t index) const { return data + index * size; }
  size_t bytes(int64_t count) const { return static_cast<size_t>(count * size); }

  char* data;
  int64_t size;
};

struct Range {
  int64_t begin, count;
};

// Part r of `parts` nearly equal parts.
Range part_of(Range whole, int64_t r, int64_t parts) {
  const int64_t begin = whole.count * r / parts, end = whole.count * (r + 1) / parts;
  return {whole.begin + begin, end - begin};
}

std::vector<Range> segments_of(int64_t count, int64_t most) {
  std::vector<Range> segments;
  for (int64_t begin = 0; begin < count; begin += most) {
    segments.push_back({begin, std::min(most, count - begin)});
  }
  return segments;
}

// Helpers for an operation's steps. Captured by the steps, so it does not own the transfer.
struct Steps {
  std::shared_ptr<const Group> group;
  Transfer* transfer;

  int rank() const { return group->rank; }
  int size() const { return static_cast<int>(group->world_ranks.size()); }
  void add(std::function<void()> step) const { transfer->steps.push_back(std::move(step)); }

  void send(int to, uint64_t step, const Elements& elements, Range range) const {
    group->mesh->send(*transfer, group->world_ranks[to], step, elements.at(range.begin),
                      elements.bytes(range.count));
  }
  void receive(int from, uint64_t step, const Elements& elements, Range range) const {
    group->mesh->receive(*transfer, group->world_ranks[from], step, elements.at(range.begin),
                         elements.bytes(range.count));
  }
  // Starts with the right neighbour, so that not all ranks start with rank 0.
  template <typename Fn>
  void for_each_peer(Fn fn) const {
    for (int i = 1; i < size(); ++i) fn((rank() + i) % size());
  }
  // Adds parts[r] of the other ranks and `own` in rank order.
  void reduce(const std::vector<at::Tensor>& parts, at::ScalarType dtype, ReduceOp op,
              const void* own, void* result, int64_t count) const {
    std::vector<ReduceInput> inputs;
    for (int r = 0; r < size(); ++r) {
      inputs.push_back({r == rank() ? own : parts[r].const_data_ptr(), 0});
    }
    const ReduceOutput output{result, 0};
    reduce_elements(dtype, op, inputs, {&output, 1}, count);
  }
};

// [Note: steps of all_reduce]
// Step s exchanges segment s: every rank sends each rank its part. In step s + 1 a rank adds the
// parts and sends the sum to all. They receive it in place, since their own data has been sent by
// then.
void add_all_reduce(const Steps& steps, const Operation& o) {
  const Elements elements(o.output);
  const auto segments = segments_of(o.output.numel(), kSegmentBytes / elements.size);
  const auto parts = std::make_shared<std::vector<at::Tensor>>(steps.size());
  const auto part = [=](size_t s, int r) { return part_of(segments[s], r, steps.size()); };
  for (size_t s = 0; s <= segments.size() && !segments.empty(); ++s) {
    steps.add([=, dtype = o.output.scalar_type(), op = o.reduce] {
      if (s > 0) {
        const Range mine = part(s - 1, steps.rank());
        char* own = elements.at(mine.begin);
        steps.reduce(*parts, dtype, op, own, own, mine.count);
        steps.for_each_peer([&](int r) {
          steps.send(r, 2 * s + 1, elements, mine);
          steps.receive(r, 2 * s + 1, elements, part(s - 1, r));
        });
      }
      if (s == segments.size()) return;
      const Range mine = part(s, steps.rank());
      steps.for_each_peer([&](int r) {
        (*parts)[r] = at::empty({mine.count}, dtype);
        steps.send(r, 2 * s, elements, part(s, r));
        steps.receive(r, 2 * s, Elements((*parts)[r]), {0, mine.count});
      });
    });
  }
}

void add_reduce_scatter(const Steps& steps, const Operation& o) {
  const Elements from(o.input), to(o.output);
  const int64_t count = o.output.numel();
  const auto segments =
      segments_of(count, std::max<int64_t>(1, kSegmentBytes / from.size / steps.size()));
  const auto parts = std::make_shared<std::vector<at::Tensor>>(steps.size());
  for (size_t s = 0; s <= segments.size() && !segments.empty(); ++s) {
    steps.add([=, dtype = o.output.scalar_type(), op = o.reduce] {
      if (s > 0) {
        const Range mine = segments[s - 1];
        const char* own = from.at(steps.rank() * count + mine.begin);
        steps.reduce(*parts, dtype, op, own, to.at(mine.begin), mine.count);
      }
      if (s == segments.size()) return;
      const Range mine = segments[s];
      steps.for_each_peer([&](int r) {
        (*parts)[r] = at::empty({mine.count}, dtype);
        steps.send(r, s, from, {r * count + mine.begin, mine.count});
        steps.receive(r, s, Elements((*parts)[r]), {0, mine.count});
      });
    });
  }
}

void add_all_gather(const Steps& steps, const Operation& o) {
  const Elements from(o.input), to(o.output);
  const int64_t count = o.input.numel();
  char* own = to.at(steps.rank() * count);
  if (own != from.data && count > 0) std::memcpy(own, from.data, from.bytes(count));
  steps.add([=] {
    steps.for_each_peer([&](int r) {
      steps.send(r, 0, to, {steps.rank() * count, count});
      steps.receive(r, 0, to, {r * count, count});
    });
  });
}

void add_broadcast(const Steps& steps, const Operation& o) {
  const Elements elements(o.output);
  steps.add([=, root = o.peer, all = Range{0, o.output.numel()}] {
    if (steps.rank() != root) return steps.receive(root, 0, elements, all);
    steps.for_each_peer([&](int r) { steps.send(r, 0, elements, all); });
  });
}

void add_all_to_all(const Steps& steps, const Operation& o) {
  const PartRanges taken(o.output, o.output_counts, steps.size());
  const PartRanges given(o.input, o.input_counts, steps.size());
  const Elements from(o.input), to(o.output);
  const int own = steps.rank();
  if (given.count(own) > 0) {
    std::memcpy(to.at(taken.begin(own)), from.at(given.begin(own)), from.bytes(given.count(own)));
  }
  steps.add([=] {
    steps.for_each_peer([&](int r) {
      steps.send(r, 0, from, {given.begin(r), given.count(r)});
      steps.receive(r, 0, to, {taken.begin(r), taken.count(r)});
    });
  });
}

void add_message(const Steps& steps, const Operation& o) {
  const bool sends = o.kind == OperationKind::kSend;
  steps.add(
      [=, peer = o.peer, elements = Elements(o.tensor()), all = Range{0, o.tensor().numel()}] {
        sends ? steps.send(peer, 0, elements, all) : steps.receive(peer, 0, elements, all);
      });
}

}  // namespace

TcpCommunicator::TcpCommunicator(std::string name, int rank, std::vector<int> world_ranks,
                                 std::shared_ptr<const Job> job)
    : CommunicatorBase("tcp", std::move(name), at::kCPU, rank, static_cast<int>(world_ranks.size()),
                       job->log),
      id_(xxh3_64(this->name().data(), this->name().size())),
      group_(std::make_shared<Group>(job->mesh.get(), rank, std::move(world_ranks))),
      job_(std::move(job)) {}

std::shared_ptr<Transfer> TcpCommunicator::transfer_of(const LoggedCall& call) {
  auto transfer = std::make_shared<Transfer>();
  transfer->call = call;
  const Call text = call.text();
  const uint64_t kind = text.is_message() ? kMessages : 0;
  transfer->communicator = id_;
  transfer->sequence = kind | static_cast<uint64_t>(text.sequence);
  const std::string what = kind == 0 ? text.operation + text.data : text.data;
  transfer->what = xxh3_64(what.data(), what.size());
  call.started();
  return transfer;
}

Work TcpCommunicator::launch(const std::shared_ptr<Transfer>& transfer) {
  job_->mesh->start(transfer);
  return Work(std::make_shared<TcpWork>(transfer, job_));
}

Work TcpCommunicator::start_one(const Request& request) {
  const Operation& o = *request.operation;
  const auto transfer = transfer_of(request.call);
  transfer->tensors = {o.output, o.input};
  const Steps steps{group_, transfer.get()};
  switch (o.kind) {
    case OperationKind::kAllReduce:
      add_all_reduce(steps, o);
      break;
    case OperationKind::kAllGather:
      add_all_gather(steps, o);
      break;
    case OperationKind::kReduceScatter:
      add_reduce_scatter(steps, o);
      break;
    case OperationKind::kAllToAll:
      add_all_to_all(steps, o);
      break;
    case OperationKind::kBroadcast:
      add_broadcast(steps, o);
      break;
    case OperationKind::kSend:
    case OperationKind::kRecv:
      add_message(steps, o);
      break;
    case OperationKind::kBarrier:
      break;
  }
  return launch(transfer);
}

void TcpCommunicator::report(const LoggedCall& call, const std::string& cause) {
  job_->report(call, cause);
  job_->mesh->throw_if_aborted();
}

void TcpCommunicator::run_barrier(const LoggedCall& call) {
  const at::Tensor nothing = at::empty({0}, at::kByte);
  const auto transfer = transfer_of(call);
  const Steps steps{group_, transfer.get()};
  steps.add([=, elements = Elements(nothing)] {
    steps.for_each_peer([&](int r) {
      steps.send(r, 0, elements, {0, 0});
      steps.receive(r, 0, elements, {0, 0});
    });
  });
  launch(transfer).wait();
}

std::unique_ptr<Communicator> TcpCommunicator::run_split(int color, int key,
                                                         const LoggedCall& call) {
  const Part part = agree_on_part(color, key, call);
  std::vector<int> world_ranks;
  for (int r : part.ranks) world_ranks.push_back(group_->world_ranks[r]);
  return std::make_unique<TcpCommunicator>(name_of_part(color), part.rank, std::move(world_ranks),
                                           job_);
}

}  // namespace tessera::tcp
