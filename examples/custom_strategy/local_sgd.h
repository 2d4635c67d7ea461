// SPDX-License-Identifier: MIT
#pragma once
// Local SGD (Stich 2019, "Local SGD converges fast and communicates little"): ranks step on their
// own data and average parameters every `interval` steps.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <tessera/backends/sharding_strategy.h>
#include <tessera/core/error.h>

// Local SGD in fp32. With interval 1 and plain SGD it is data parallelism. Otherwise the model
// between two averages is the mean over ranks, which visitors see.
class LocalSgd : public tessera::ShardingStrategy {
 public:
  LocalSgd(const tessera::ParallelConfig& config, tessera::Communicator& data, int interval)
      : ShardingStrategy(config, data, /*rules=*/{}),  // nothing is sharded
        alone_(data.split_by(
            [](int rank) { return tessera::Communicator::SplitArguments{.color = rank}; })),
        interval_(interval) {
    tessera::check(config.precision.parameter == at::kFloat && interval > 0,
                   tessera::ErrorCode::kInvalidArgument,
                   "local_sgd: needs fp32 parameters and a positive interval");
  }
  std::string name() const override { return "local_sgd"; }
  void set_loss_scale(const at::Tensor& scale) override { loss_scale_ = scale; }

  // A rank's gradient replaces the whole batch's, which is the sum over ranks.
  tessera::StepResult forward_backward(std::span<const tessera::MicroBatch> batches,
                                       const tessera::BackwardOptions& options = {}) override {
    const at::Tensor ranks =
        at::full({}, data().size(), at::TensorOptions().dtype(at::kFloat).device(data().device()));
    ShardingStrategy::set_loss_scale(loss_scale_.defined() ? loss_scale_ * ranks : ranks);
    return ShardingStrategy::forward_backward(batches, options);
  }
  at::Tensor grad_norm_squared() override { return mean(ShardingStrategy::grad_norm_squared()); }

  void optimizer_step(double learning_rate, const at::Tensor& skip) override {
    ShardingStrategy::optimizer_step(learning_rate, skip);
    if (++steps_ % interval_ != 0) return;
    at::NoGradGuard no_grad;
    for (size_t unit = 0; unit < units().size(); ++unit) {
      at::Tensor flat = parameters_->owned(unit, 0);
      const at::Tensor average = mean(flat);
      flat.copy_(skip.defined() ? at::where(skip.ne(0), flat, average) : average);
    }
  }
  void visit_parameters(const tessera::ParameterVisitor& visitor) override {
    ShardingStrategy::visit_parameters([&](const tessera::VisitedParameter& p) {
      visitor({p.block, p.name, mean(p.value), p.placement});
    });
  }
  std::vector<tessera::StateTensor> state() override {
    tessera::fail(tessera::ErrorCode::kInvalidArgument,
                  "local_sgd: parameters and moments differ between ranks until they are averaged, "
                  "so there is no one state to save");
  }

 protected:
  std::unique_ptr<tessera::ParameterStore> make_parameters() override {
    auto store = ShardingStrategy::make_parameters();
    parameters_ = store.get();
    return store;
  }
  std::unique_ptr<tessera::GradientStore> make_gradients() override {
    return std::make_unique<tessera::FullGradients>(units(), *alone_, store_options(at::kFloat));
  }

 private:
  at::Tensor mean(const at::Tensor& tensor) const {
    at::Tensor sum = tensor.clone().contiguous();
    data().all_reduce(sum).wait();
    return sum / data().size();
  }

  std::unique_ptr<tessera::Communicator> alone_;
  int interval_, steps_ = 0;
  at::Tensor loss_scale_;
  tessera::ParameterStore* parameters_ = nullptr;
};
