// SPDX-License-Identifier: MIT
// Blocks that share all-gathers and reduce-scatters (ParallelConfig::coalesce_bytes): fewer
// messages, equal bits.
#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/testing/player.h"
#include "tests/support/forwarding_communicator.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Six layers of 16,384 bytes.
const ToyConfig kMessages{.vocabulary = 32, .hidden = 32, .layers = 6};
constexpr int64_t kAlone = 1, kTwoLayers = 20'000, kAll = 1 << 30;

// Messages of one step.
struct Count {
  int gathers = 0, scatters = 0;
};

// Counts messages; a group counts as one.
class CountingCommunicator final : public test::ForwardingCommunicator {
 public:
  CountingCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<Count> count)
      : ForwardingCommunicator(std::move(inner)), count_(std::move(count)) {}
  Work start(std::span<const Operation> operations) override {
    const auto any = [&](OperationKind kind) {
      return std::ranges::any_of(operations, [&](const Operation& o) { return o.kind == kind; });
    };
    count_->gathers += any(OperationKind::kAllGather) ? 1 : 0;
    count_->scatters += any(OperationKind::kReduceScatter) ? 1 : 0;
    return inner_->start(operations);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<CountingCommunicator>(inner_->split(color, key), count_);
  }

 private:
  std::shared_ptr<Count> count_;
};

struct Trained {
  std::vector<at::Tensor> numbers;  // losses, norms, and finally parameters
  Count last;                       // messages of the last step
};

Trained train(ParallelConfig config, int64_t coalesce_bytes, int accumulation = 1) {
  config.coalesce_bytes = coalesce_bytes;
  if (config.strategy == "zero3") config.persistence_threshold = 0;
  Trained first;
  test::run_ranks(2, [&](Communicator& comm) {
    const auto count = std::make_shared<Count>();
    CountingCommunicator counted(comm.split(0, comm.rank()), count);
    const Player player(counted, {toy_language_model(kMessages), {.data = 2}, config});
    Strategy& strategy = player.strategy();
    Trained trained;
    for (int step = 0; step < 3; ++step) {
      *count = {};
      std::vector<MicroBatch> batches;
      for (int m = 0; m < accumulation; ++m) {
        batches.push_back(toy_micro_batch(kMessages, 10 * step + m + comm.rank(), 2, 3));
      }
      trained.numbers.push_back(strategy.forward_backward(batches).loss.clone());
      trained.numbers.push_back(strategy.grad_norm_squared().clone());
      strategy.optimizer_step(1e-2);
      trained.last = *count;
    }
    strategy.visit_parameters([&](const VisitedParameter& parameter) {
      trained.numbers.push_back(parameter.value.clone());
    });
    if (comm.rank() == 0) first = std::move(trained);
  });
  return first;
}

void require_equal(const Trained& a, const Trained& b) {
  REQUIRE(a.numbers.size() == b.numbers.size());
  for (size_t i = 0; i < a.numbers.size(); ++i) {
    INFO("number " << i);
    CHECK(a.numbers[i].equal(b.numbers[i]));
  }
}

}  // namespace

TEST_CASE("blocks that share messages end with the bits of blocks that do not") {
  for (const std::string strategy : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    for (int variant = 0; variant < 6; ++variant) {
      ParallelConfig config{.strategy = strategy, .bucket_bytes = 1};
      config.overlap = variant != 1;
      config.prefetch_blocks = variant == 2 ? 0 : variant == 3 ? 3 : 1;
      if (variant == 4) config.precision.reduce = at::kBFloat16;
      if (variant == 5 && strategy == "fsdp") config.reshard_after_forward = false;
      const Trained alone = train(config, kAlone, 2);
      for (const int64_t bytes : {kTwoLayers, kAll}) {
        INFO(strategy << ", variant " << variant << ", messages of " << bytes);
        require_equal(train(config, bytes, 2), alone);
      }
    }
  }
}

TEST_CASE("blocks that share messages end with the same bits where state is offloaded") {
  for (const std::string strategy : {"zero1", "zero2", "zero3", "fsdp"}) {
    for (const auto what : {Offload::kOptimizer, Offload::kOptimizerAndParameters}) {
      if (what == Offload::kOptimizerAndParameters && strategy < "zero3" && strategy != "fsdp") {
        continue;
      }
      for (const auto step : {OffloadStep::kHost, OffloadStep::kDevice}) {
        ParallelConfig config{.strategy = strategy};
        config.offload = {.what = what, .step = step, .threads = 1, .chunk_numel = 1000};
        const Trained alone = train(config, kAlone);
        INFO(strategy << ", offload " << static_cast<int>(what) << ", step "
                      << static_cast<int>(step));
        require_equal(train(config, kTwoLayers), alone);
        require_equal(train(config, kAll), alone);
      }
    }
  }
}

TEST_CASE("two layers a message are half as many messages") {
  struct Row {
    std::string strategy;
    Count alone, two, all;
  };
  // The six layers and the head share slots; the table, which two blocks use, is separate. Two
  // slots keep what backward needs first; it gathers the rest again.
  const std::vector<Row> rows{
      {"zero1", {8, 8}, {5, 4}, {2, 1}},  // a bucket also takes the table
      {"zero2", {8, 8}, {5, 5}, {2, 2}},
      {"zero3", {13, 8}, {7, 5}, {2, 2}},
      {"fsdp", {13, 8}, {7, 5}, {2, 2}},
  };
  for (const Row& row : rows) {
    const ParallelConfig config{.strategy = row.strategy, .bucket_bytes = 1};
    const auto check_count = [&](int64_t bytes, const Count& expected) {
      const Count seen = train(config, bytes).last;
      INFO(row.strategy << ", messages of " << bytes);
      CHECK(seen.gathers == expected.gathers);
      CHECK(seen.scatters == expected.scatters);
    };
    check_count(kAlone, row.alone);
    check_count(kTwoLayers, row.two);
    check_count(kAll, row.all);
    check_count(/*bytes=*/0, row.alone);  // as two ranks request by default
  }
}
