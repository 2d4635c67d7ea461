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

// Reductions run through a tensor in segments, which bounds the memory for the others' parts.
constexpr int64_t kSegmentBytes = 8 << 20;
constexpr uint64_t kMessages = uint64_t{1} << 63;  // their sequences are apart from collectives'

class TcpWork final : public Work::Impl {
 public:
  TcpWork(std::shared_ptr<Operation> operation, std::shared_ptr<const Job> job)
      : operation_(std::move(operation)), job_(std::move(job)) {}
  void wait() override {
    const PhaseScope phase(Phase::kCommunication);
    const bool in_time = job_->mesh->wait(*operation_, collective_timeout());
    if (in_time && operation_->error.empty()) return;
    job_->report(operation_->call, in_time ? operation_->error : "");
    job_->mesh->throw_if_aborted();
  }

 private:
  std::shared_ptr<Operation> operation_;
  std::shared_ptr<const Job> job_;
};

// Elements of a tensor by index and count, as bytes.
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

// The r-th of `parts` nearly equal parts.
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

// What the steps of one operation do. Captured by them, so it does not own the operation.
struct Steps {
  std::shared_ptr<const Group> group;
  Operation* operation;

  int rank() const { return group->rank; }
  int size() const { return static_cast<int>(group->world_ranks.size()); }
  void add(std::function<void()> step) const { operation->steps.push_back(std::move(step)); }

  void send(int to, uint64_t step, const Elements& elements, Range range) const {
    group->mesh->send(*operation, group->world_ranks[to], step, elements.at(range.begin),
                      elements.bytes(range.count));
  }
  void receive(int from, uint64_t step, const Elements& elements, Range range) const {
    group->mesh->receive(*operation, group->world_ranks[from], step, elements.at(range.begin),
                         elements.bytes(range.count));
  }
  // Each rank begins with its right neighbour, so that not all turn to rank 0 first.
  template <typename Fn>
  void for_each_peer(Fn fn) const {
    for (int i = 1; i < size(); ++i) fn((rank() + i) % size());
  }
  // parts[r] of the other ranks and `own`, added in rank order.
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

}  // namespace

TcpCommunicator::TcpCommunicator(std::string name, int rank, std::vector<int> world_ranks,
                                 std::shared_ptr<const Job> job)
    : CommunicatorBase("tcp", std::move(name), at::kCPU, rank,
                       static_cast<int>(world_ranks.size()), job->log),
      id_(xxh3_64(this->name().data(), this->name().size())),
      group_(std::make_shared<Group>(job->mesh.get(), rank, std::move(world_ranks))),
      job_(std::move(job)) {}

std::shared_ptr<Operation> TcpCommunicator::operation_on(std::vector<at::Tensor> tensors) {
  auto operation = std::make_shared<Operation>();
  operation->call = call();
  const Call text = operation->call.text();
  const uint64_t kind = text.is_message() ? kMessages : 0;
  operation->communicator = id_;
  operation->sequence = kind | static_cast<uint64_t>(text.sequence);
  const std::string what = kind == 0 ? text.operation + text.data : text.data;
  operation->what = xxh3_64(what.data(), what.size());
  operation->tensors = std::move(tensors);
  operation->call.started();
  return operation;
}

Work TcpCommunicator::launch(const std::shared_ptr<Operation>& operation) {
  job_->mesh->start(operation);
  return Work(std::make_shared<TcpWork>(operation, job_));
}

// [Note: steps of all_reduce] Segment s is exchanged in step s: everybody sends each rank its part.
// In step s + 1 that rank adds the parts up and sends the sum to all, who receive it in place: what
// they had there has gone out by then.
Work TcpCommunicator::start_all_reduce(const at::Tensor& tensor, ReduceOp op) {
  const auto operation = operation_on({tensor});
  if (size() == 1) return launch(operation);
  const Steps steps{group_, operation.get()};
  const Elements elements(tensor);
  const auto segments = segments_of(tensor.numel(), kSegmentBytes / elements.size);
  const auto parts = std::make_shared<std::vector<at::Tensor>>(size());
  const auto part = [=](size_t s, int r) { return part_of(segments[s], r, steps.size()); };
  for (size_t s = 0; s <= segments.size() && !segments.empty(); ++s) {
    steps.add([=, dtype = tensor.scalar_type()] {
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
  return launch(operation);
}

Work TcpCommunicator::start_reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                           ReduceOp op) {
  const auto operation = operation_on({output, input});
  const Steps steps{group_, operation.get()};
  const Elements from(input), to(output);
  const int64_t count = output.numel();
  const auto segments =
      segments_of(count, std::max<int64_t>(1, kSegmentBytes / from.size / size()));
  const auto parts = std::make_shared<std::vector<at::Tensor>>(size());
  for (size_t s = 0; s <= segments.size() && !segments.empty(); ++s) {
    steps.add([=, dtype = output.scalar_type()] {
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
  return launch(operation);
}

Work TcpCommunicator::start_all_gather(const at::Tensor& output, const at::Tensor& input) {
  const auto operation = operation_on({output, input});
  const Steps steps{group_, operation.get()};
  const Elements from(input), to(output);
  const int64_t count = input.numel();
  char* own = to.at(rank() * count);
  if (own != from.data && count > 0) std::memcpy(own, from.data, from.bytes(count));
  steps.add([=] {
    steps.for_each_peer([&](int r) {
      steps.send(r, 0, to, {steps.rank() * count, count});
      steps.receive(r, 0, to, {r * count, count});
    });
  });
  return launch(operation);
}

Work TcpCommunicator::start_broadcast(const at::Tensor& tensor, int root) {
  const auto operation = operation_on({tensor});
  const Steps steps{group_, operation.get()};
  const Elements elements(tensor);
  steps.add([=, all = Range{0, tensor.numel()}] {
    if (steps.rank() != root) return steps.receive(root, 0, elements, all);
    steps.for_each_peer([&](int r) { steps.send(r, 0, elements, all); });
  });
  return launch(operation);
}

Work TcpCommunicator::start_send(const at::Tensor& tensor, int destination) {
  const auto operation = operation_on({tensor});
  const Steps steps{group_, operation.get()};
  steps.add([=, elements = Elements(tensor), all = Range{0, tensor.numel()}] {
    steps.send(destination, 0, elements, all);
  });
  return launch(operation);
}

Work TcpCommunicator::start_recv(const at::Tensor& tensor, int source) {
  const auto operation = operation_on({tensor});
  const Steps steps{group_, operation.get()};
  steps.add([=, elements = Elements(tensor), all = Range{0, tensor.numel()}] {
    steps.receive(source, 0, elements, all);
  });
  return launch(operation);
}

void TcpCommunicator::report(const LoggedCall& call, const std::string& cause) {
  job_->report(call, cause);
  job_->mesh->throw_if_aborted();
}

void TcpCommunicator::run_barrier() {
  const at::Tensor nothing = at::empty({0}, at::kByte);
  const auto operation = operation_on({nothing});
  const Steps steps{group_, operation.get()};
  steps.add([=, elements = Elements(nothing)] {
    steps.for_each_peer([&](int r) {
      steps.send(r, 0, elements, {0, 0});
      steps.receive(r, 0, elements, {0, 0});
    });
  });
  launch(operation).wait();
}

std::unique_ptr<Communicator> TcpCommunicator::run_split(int color, int key) {
  const Part part = agree_on_part(color, key);
  std::vector<int> world_ranks;
  for (int r : part.ranks) world_ranks.push_back(group_->world_ranks[r]);
  return std::make_unique<TcpCommunicator>(name_of_part(color), part.rank,
                                           std::move(world_ranks), job_);
}

}  // namespace tessera::tcp
