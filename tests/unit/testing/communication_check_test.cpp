// SPDX-License-Identifier: MIT
// The conformance suite matches the ranks' operations without a run.
#include <ATen/ATen.h>

#include "tessera/backends/data_parallel/ddp.h"
#include "tessera/models/language_model.h"
#include "tessera/sharding/gradient_store.h"
#include "tessera/testing/strategy_conformance.h"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

enum class Way { kRight, kNoSum, kOneMore, kReadsValues };

class Own : public Ddp {
 public:
  Own(Communicator& data, Way way)
      : Ddp({.strategy = "ddp"}, data), way_(way), alone_(data.split_by([](int rank) {
          return Communicator::SplitArguments{rank, 0};
        })) {}

  StepResult forward_backward(std::span<const MicroBatch> batches,
                              const BackwardOptions& options) override {
    StepResult result = Ddp::forward_backward(batches, options);
    if (way_ == Way::kReadsValues) result.loss.item<float>();
    if (way_ == Way::kOneMore && data().rank() == 1) {
      data().all_reduce(at::zeros({3}, result.loss.options())).wait();
    }
    return result;
  }

 protected:
  std::unique_ptr<GradientStore> make_gradients() override {
    if (way_ != Way::kNoSum) return Ddp::make_gradients();
    return std::make_unique<FullGradients>(units(), *alone_, store_options(at::kFloat));
  }

 private:
  const Way way_;
  const std::unique_ptr<Communicator> alone_;
};

ConformanceWork small_work() {
  return {causal(sized("bloom", {.vocabulary = 64, .hidden = 16, .heads = 2, .layers = 2})),
          [](int64_t rows, uint64_t) {
            const at::Tensor ids = at::arange(rows * 4).view({rows, 4});
            return make_micro_batch(ids, ids + 1);
          }};
}

std::string violations(Way way, Promise promise, std::vector<std::string>* notes = nullptr) {
  return to_text(check_conformance(
      [way](const DeviceMesh& mesh) -> std::unique_ptr<Strategy> {
        return std::make_unique<Own>(mesh.axis(Axis::kData), way);
      },
      {.mesh = {.data = 2},
       .promise = promise,
       .work = small_work(),
       .only = {"communication"},
       .notes = notes}));
}

}  // namespace

TEST_CASE("a strategy of one's own whose ranks fit together has no finding") {
  std::vector<std::string> notes;
  CHECK(violations(Way::kRight, Promise::kExact, &notes).empty());
  CHECK(notes.empty());
}

TEST_CASE(
    "a sum over ranks that a strategy leaves out is found where it promises exact gradients") {
  const std::string text = violations(Way::kNoSum, Promise::kExact);
  INFO(text);
  CHECK(text.find("communication: rank 0, \"") == 0);
  CHECK(text.find("its gradient lacks that of rank 1") != std::string::npos);
  CHECK(violations(Way::kNoSum, Promise::kContract).empty());
}

TEST_CASE("an operation of one rank is found without a hang") {
  const std::string text = violations(Way::kOneMore, Promise::kContract);
  INFO(text);
  CHECK(text.find("all_reduce of 3 Float, sum") != std::string::npos);
  CHECK(text.find("rank 1") != std::string::npos);
}

TEST_CASE("a strategy that reads values is noted") {
  std::vector<std::string> notes;
  CHECK(violations(Way::kReadsValues, Promise::kExact, &notes).empty());
  REQUIRE(notes.size() == 1);
  CHECK(notes.front().find("cannot run without memory") != std::string::npos);
}
