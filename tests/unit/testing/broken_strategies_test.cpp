// SPDX-License-Identifier: MIT
// The conformance suite must be able to fail: data parallelism with one planted defect at a time.
#include <ATen/ATen.h>

#include "tessera/backends/data_parallel/ddp.h"
#include "tessera/core/error.h"
#include "tessera/optim/sgd.h"
#include "tessera/testing/strategy_conformance.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Overrides any of Ddp's functions; the others are Ddp's.
class Broken : public Ddp {
 public:
  Broken(Communicator& data, std::string defect)
      : Ddp({.strategy = "ddp"}, data),
        alone_(data.split(data.rank(), 0)),
        defect_(std::move(defect)) {}

  void attach(const ModelSpec& model, const BuildContext& context,
              const OptimizerFactory& optimizer) override {
    if (is("attaches twice") && attached_) return;
    attached_ = true;
    BuildContext changed = context;
    if (is("other weights on every rank")) changed.seed += static_cast<uint64_t>(data().rank());
    if (is("other weights")) changed.seed += 1;
    Ddp::attach(model, changed, optimizer);
  }
  void set_loss_scale(const at::Tensor& scale) override {
    if (!is("ignores the loss scale")) Ddp::set_loss_scale(scale);
  }
  StepResult forward_backward(std::span<const MicroBatch> batches,
                              const BackwardOptions& options) override {
    if (is("accepts an empty step") && batches.empty()) return evaluate(batches);
    if (is("drops a micro-batch") && batches.size() > 1) batches = batches.first(1);
    check(!is("fails on one rank") || data().rank() == 0 || ++steps_ < 2, ErrorCode::kInternal,
          "planted");
    StepResult result = Ddp::forward_backward(batches, options);
    if (is("its own loss") && data().rank() == 1) result.loss = result.loss * 1.5;
    if (is("counts its own targets")) result.target_count = result.target_count / data().size();
    if (is("overwrites results")) {
      if (!loss_.defined()) loss_ = at::empty_like(result.loss);
      result.loss = loss_.copy_(result.loss);
    }
    if (is("NaN without targets") && result.target_count.item<double>() == 0) {
      result.loss = result.loss / 0;
    }
    return result;
  }
  StepResult evaluate(std::span<const MicroBatch> batches) override {
    if (is("accepts an empty step") && batches.empty()) {
      return {at::zeros({}), at::zeros({}), at::zeros({0})};
    }
    const StepResult result = Ddp::evaluate(batches);
    if (is("evaluation changes parameters")) {
      for (const auto& unit : units()) unit.handles[0][0].detach().mul_(1.001);
    }
    return result;
  }
  at::Tensor grad_norm_squared() override {
    return is("half the norm") ? Ddp::grad_norm_squared() / 2 : Ddp::grad_norm_squared();
  }
  void scale_gradients(const at::Tensor& factor) override {
    if (is("ignores scaling")) return;
    Ddp::scale_gradients(is("scales for ever") && last_factor_.defined() ? last_factor_ * factor
                                                                         : factor);
    if (is("scales for ever")) last_factor_ = factor;
  }
  void optimizer_step(double learning_rate, const at::Tensor& skip) override {
    if (is("scales for ever") && last_factor_.defined()) Ddp::scale_gradients(last_factor_);
    if (is("climbs")) Ddp::scale_gradients(at::full({}, -1.0F));
    Ddp::optimizer_step(is("a learning rate of its own") ? 1e-2
                        : is("learns nothing")           ? 0
                                                         : learning_rate,
                        is("never skips") ? at::Tensor() : skip);
    if (is("grows")) memory_ += 64;
  }
  void visit_parameters(const ParameterVisitor& visitor) override {
    int visited = 0;
    Ddp::visit_parameters([&](const VisitedParameter& p) {
      if (is("forgets a parameter") && visited++ == 3) return;
      if (is("visits twice") && visited++ == 3) visitor(p);
      const at::Tensor value = is("visits flat parameters") ? p.value.flatten() : p.value;
      visitor({p.block, p.name, value, p.placement});
    });
  }
  std::vector<StateTensor> state() override {
    std::vector<StateTensor> state = Ddp::state();
    if (is("leaves a tensor out of its state")) state.erase(state.begin());
    for (StateTensor& piece : state) {
      if (is("names no replicas")) piece.replicas.clear();
      if (is("moments are not restored") && piece.kind == "exp_avg") {
        piece.value = piece.value.clone();
      }
    }
    return state;
  }
  StrategyMemory memory() const override {
    StrategyMemory memory = Ddp::memory();
    memory.buffer_bytes += memory_;
    if (is("holds nothing")) memory = {};
    if (is("negative memory")) memory.gradient_bytes = -1;
    return memory;
  }
  int64_t parameter_count() const override {
    return Ddp::parameter_count() + (is("counts one too many") ? 1 : 0);
  }

 protected:
  std::unique_ptr<GradientStore> make_gradients() override {
    if (!is("no all-reduce")) return Ddp::make_gradients();
    return std::make_unique<FullGradients>(units(), *alone_, store_options(at::kFloat));
  }

 private:
  bool is(const char* defect) const { return defect_ == defect; }

  std::unique_ptr<Communicator> alone_;
  std::string defect_;
  bool attached_ = false;
  int steps_ = 0;
  int64_t memory_ = 0;
  at::Tensor loss_, last_factor_;
};

std::string violations(const std::string& defect, const std::vector<std::string>& checks) {
  const StrategyFactory make = [&](const DeviceMesh& mesh) {
    return std::make_unique<Broken>(mesh.axis(Axis::kData), defect);
  };
  return to_text(check_conformance(make, {.only = checks}));
}

}  // namespace

TEST_CASE("every planted defect is found by the check that is there for it") {
  REQUIRE(violations("", {}) == "");
  for (const auto& [defect, check] : std::vector<std::pair<std::string, std::string>>{
           {"attaches twice", "misuse"},
           {"accepts an empty step", "misuse"},
           {"other weights", "parameters"},
           {"forgets a parameter", "parameters"},
           {"visits twice", "parameters"},
           {"visits flat parameters", "parameters"},
           {"counts one too many", "parameters"},
           {"other weights on every rank", "ranks agree"},
           {"its own loss", "ranks agree"},
           {"no all-reduce", "ranks agree"},
           {"fails on one rank", "ranks agree"},
           {"counts its own targets", "results"},
           {"drops a micro-batch", "results"},
           {"overwrites results", "results"},
           {"half the norm", "gradients"},
           {"ignores scaling", "scaling"},
           {"scales for ever", "scaling"},
           {"a learning rate of its own", "scaling"},
           {"ignores the loss scale", "loss scale"},
           {"evaluation changes parameters", "evaluation"},
           {"never skips", "skip"},
           {"leaves a tensor out of its state", "state"},
           {"names no replicas", "state"},
           {"moments are not restored", "state"},
           {"a learning rate of its own", "learning rate 0"},
           {"learns nothing", "learning"},
           {"climbs", "learning"},
           {"NaN without targets", "unsupervised"},
           {"grows", "memory"},
           {"holds nothing", "memory"},
           {"negative memory", "memory"},
           {"no all-reduce", "trajectory"},
           {"half the norm", "exact gradients"},
           {"drops a micro-batch", "accumulation"}}) {
    INFO(defect);
    CHECK(violations(defect, {check}) != "");
  }
}

TEST_CASE("findings are told one a line") {
  CHECK(to_text({{"skip", "a"}, {"memory", "b"}}) == "skip: a\nmemory: b\n");
  CHECK(conformance_checks(Promise::kContract).size() + 3 ==
        conformance_checks(Promise::kExact).size());
}
