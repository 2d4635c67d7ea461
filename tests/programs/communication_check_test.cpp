// SPDX-License-Identifier: MIT
// --check_communication with one rank that deviates from its strategy: the run ends with exit code
// 70 and names the rank, its operation and the tensor. No rank waits for ever.
#include "lib/run/communication_check.h"

#include <ATen/ATen.h>

#include <mutex>

#include "lib/comm/operation_scope.h"
#include "lib/testing/player.h"
#include "tessera/comm/launch.h"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"

namespace tessera {
namespace {

using programs::CommunicationCheck;
using testing::Player;

enum class Defect { kNone, kSkipped, kDoubled, kOtherCount, kOtherReduction, kOtherDtype };

// A rank's communicator that replaces one operation over one axis.
class Saboteur final : public Communicator {
 public:
  Saboteur(std::unique_ptr<Communicator> own, Communicator& inner, Defect defect, bool chosen)
      : own_(std::move(own)), inner_(inner), defect_(defect), chosen_(chosen) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  at::Device device() const override { return inner_.device(); }
  std::string transport() const override { return inner_.transport(); }
  int64_t bytes_sent() const override { return inner_.bytes_sent(); }
  void abort(const std::string& reason) override { inner_.abort(reason); }
  Work start(std::span<const Operation> operations) override {
    const OperationKind kind = operations.front().kind;
    const bool reduces = kind == OperationKind::kAllReduce || kind == OperationKind::kReduceScatter;
    if (!chosen_ || !reduces || operation_context().phase != std::string_view("reduce")) {
      return inner_.start(operations);
    }
    std::vector<Operation> changed(operations.begin(), operations.end());
    Operation& other = changed.front();
    switch (defect_) {
      case Defect::kNone:
        break;
      case Defect::kSkipped:
        return {};
      case Defect::kDoubled:
        first_ = inner_.start(operations);
        break;
      case Defect::kOtherCount:
        other.output = other.output.narrow(0, 0, other.output.numel() - 1);
        if (other.input.defined()) {
          other.input = other.input.narrow(0, 0, other.output.numel() * size());
        }
        break;
      case Defect::kOtherReduction:
        other.reduce = ReduceOp::kMax;
        break;
      case Defect::kOtherDtype:
        other.output = other.output.to(at::kHalf);
        if (other.input.defined()) other.input = other.input.to(at::kHalf);
        break;
    }
    return inner_.start(changed);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return wrap(inner_.split(color, key));
  }
  std::unique_ptr<Communicator> split_by(
      const std::function<SplitArguments(int)>& arguments) override {
    return wrap(inner_.split_by(arguments));
  }

 private:
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> part) {
    Communicator& inner = *part;
    return std::make_unique<Saboteur>(std::move(part), inner, defect_, chosen_);
  }

  const std::unique_ptr<Communicator> own_;  // null: the world, which outlives this
  Communicator& inner_;
  const Defect defect_;
  const bool chosen_;
  Work first_;  // for kDoubled
};

struct Job {
  std::string strategy;
  MeshExtents mesh;
};

struct JobResult {
  int code = 0;
  std::vector<std::string> errors;  // of the check
};

// Rank 1 has the defect.
JobResult run(const Job& job, Defect defect) {
  const ModelSpec model = testing::causal(
      testing::sized("bloom", {.vocabulary = 64, .hidden = 32, .heads = 2, .layers = 2}));
  const at::Tensor ids = at::arange(8).view({2, 4});
  const std::vector<MicroBatch> batches(2, make_micro_batch(ids, ids + 1));
  const ParallelConfig parallel{.strategy = job.strategy};
  const int ranks = job.mesh.pipeline * job.mesh.data * job.mesh.tensor;
  JobResult result;
  std::mutex mutex;
  result.code = run_job({.ranks = ranks}, [&](Communicator& world) {
    try {
      CommunicationCheck check(world);
      Saboteur mesh_world(nullptr, check.world(), defect, world.rank() == 1);
      const Player player(mesh_world, {.model = model, .mesh = job.mesh, .parallel = parallel});
      for (int step = 0; step < 2; ++step) {
        check.step_begins({.model = model,
                           .parallel = parallel,
                           .mesh = job.mesh,
                           .coordinate = coordinate_of(world.rank(), job.mesh),
                           .micro_batches = batches});
        player.strategy().forward_backward(batches);
        player.strategy().grad_norm_squared();
        player.strategy().optimizer_step(1e-3);
        const auto count = check.step_ends();
        tessera::check(count.has_value() == (step == 0), ErrorCode::kInternal, "step ", step);
      }
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      if (error.code() == ErrorCode::kInternal) result.errors.emplace_back(error.what());
      throw;
    }
  });
  return result;
}

TEST_CASE("what a rank does otherwise than its dry run ends the job with its name") {
  for (const Job& job :
       {Job{"ddp", {.data = 2}}, Job{"zero2", {.data = 3}}, Job{"zero3", {.data = 2}},
        Job{"fsdp", {.data = 2, .tensor = 2}}, Job{"zero1", {.pipeline = 2, .data = 2}}}) {
    CHECK(run(job, Defect::kNone).code == 0);
    for (const Defect defect : {Defect::kSkipped, Defect::kDoubled, Defect::kOtherCount,
                                Defect::kOtherReduction, Defect::kOtherDtype}) {
      INFO(job.strategy << ", defect " << static_cast<int>(defect));
      const JobResult result = run(job, defect);
      CHECK(result.code == exit_code(ErrorCode::kInternal));
      REQUIRE(result.errors.size() == 1);
      CHECK_THAT(result.errors.front(),
                 test::contains("communication check: the first step on rank 1 calls ") &&
                     test::contains("as operation ") &&
                     test::contains("where the dry run of the step has ") &&
                     test::contains(", in reduce, over the data axis (ranks "));
    }
  }
}

}  // namespace
}  // namespace tessera
