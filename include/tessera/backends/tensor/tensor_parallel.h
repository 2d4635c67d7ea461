#pragma once
// Tensor parallelism (Shoeybi et al. 2019) around any other strategy.
#include <memory>
#include <string>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/comm/communicator.h"

namespace tessera {

struct TensorParallelOptions {
  bool sequence_parallel = false;  // norms and residuals on the rank's own tokens only
};

// Tells the blocks to build themselves for the tensor axis (BuildContext::tensor): they sum
// activations inside forward and backward, and say where each parameter lies. The inner strategy,
// which knows the mesh (ShardingStrategy::set_mesh), does the rest. All ranks of the axis get the
// same micro-batches and return the same results.
class TensorParallel final : public Strategy {
 public:
  TensorParallel(std::unique_ptr<Strategy> inner, Communicator& tensor,
                 const TensorParallelOptions& options = {});
  std::string name() const override;

  // Throws Error(kInvalidArgument) when the ranks cannot share the model (tensor_parallel_problem),
  // or a block builds a parameter that is neither cut nor marked as held by all ranks.
  void attach(const ModelSpec& model, const BuildContext& context,
              const OptimizerFactory& optimizer) override;
  void set_loss_scale(const at::Tensor& scale) override { inner_->set_loss_scale(scale); }
  StepResult forward_backward(std::span<const MicroBatch> micro_batches) override {
    return inner_->forward_backward(micro_batches);
  }
  StepResult evaluate(std::span<const MicroBatch> micro_batches) override {
    return inner_->evaluate(micro_batches);
  }
  void end_of_data(Pass pass, int64_t done) override { inner_->end_of_data(pass, done); }
  std::vector<at::Tensor> predict(std::span<const MicroBatch> micro_batches,
                                  const ScoreSelection& select = {}) override {
    return inner_->predict(micro_batches, select);
  }
  bool continues_rows() const override { return inner_->continues_rows(); }
  at::Tensor grad_norm_squared() override { return inner_->grad_norm_squared(); }
  void scale_gradients(const at::Tensor& factor) override { inner_->scale_gradients(factor); }
  void optimizer_step(double learning_rate, const at::Tensor& skip = {}) override {
    inner_->optimizer_step(learning_rate, skip);
  }
  void visit_parameters(const ParameterVisitor& visitor) override {
    inner_->visit_parameters(visitor);
  }
  void visit_gradients(const ParameterVisitor& visitor) override {
    inner_->visit_gradients(visitor);
  }
  void visit_buffers(const ParameterVisitor& visitor) override { inner_->visit_buffers(visitor); }
  std::vector<StateTensor> state() override { return inner_->state(); }
  void state_restored() override { inner_->state_restored(); }
  StrategyMemory memory() const override { return inner_->memory(); }
  OffloadReport offload_report() override { return inner_->offload_report(); }
  int64_t extra_bytes_sent() const override { return inner_->extra_bytes_sent(); }
  int64_t parameter_count() const override { return inner_->parameter_count(); }
  Strategy& inner() { return *inner_; }

 private:
  std::unique_ptr<Strategy> inner_;
  Communicator& tensor_;
  TensorParallelOptions options_;
};

}  // namespace tessera
