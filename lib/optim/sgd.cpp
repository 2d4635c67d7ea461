#include "tessera/optim/sgd.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "tessera/core/error.h"

namespace tessera {
namespace {

class Sgd : public Optimizer {
 public:
  Sgd(const SgdConfig& config, std::vector<OptimizerRange> ranges)
      : config_(config), ranges_(std::move(ranges)) {
    refuse_betas(ranges_, "SGD");
    for (const auto& range : ranges_) {
      if (!step_count_.defined()) step_count_ = at::zeros({}, range.parameter.options());
      if (config_.momentum != 0) momentum_.push_back(at::zeros_like(range.parameter));
    }
    if (!step_count_.defined()) step_count_ = at::zeros({});
  }

  size_t range_count() const override { return ranges_.size(); }

  void begin_step(const StepScalars& scalars) override {
    at::NoGradGuard no_grad;
    scalars_ = scalars;
    if (!scalars_.skip.defined()) scalars_.skip = at::zeros_like(step_count_);
    step_count_.add_(scalars_.skip.eq(0));
  }

  void update(size_t first, size_t count) override {
    for (size_t i = first; i < first + count; ++i) {
      update_range(ranges_[i], config_.momentum != 0 ? momentum_[i] : at::Tensor());
    }
  }

  void update(std::span<const ExternalRange> ranges) const override {
    for (const auto& [range, state] : ranges) {
      update_range(range, config_.momentum != 0 ? state[0] : at::Tensor());
    }
  }

  std::vector<std::string> state_names() const override {
    if (config_.momentum == 0) return {};
    return {"momentum"};
  }
  NamedTensors state(size_t range) const override {
    if (momentum_.empty()) return {};
    return {{"momentum", momentum_[range]}};
  }
  at::Tensor step_count() const override { return step_count_; }
  int64_t state_bytes() const override {
    int64_t sum = 0;
    for (const auto& tensor : momentum_) sum += static_cast<int64_t>(tensor.nbytes());
    return sum;
  }

 private:
  void update_range(const OptimizerRange& range, const at::Tensor& buffer) const {
    at::NoGradGuard no_grad;
    const at::Tensor keep = scalars_.skip.ne(0);
    at::Tensor direction = range.gradient.to(at::kFloat);
    if (scalars_.gradient_scale.defined()) direction = direction * scalars_.gradient_scale;
    if (const double decay = range.decay(config_.weight_decay); decay != 0) {
      direction = direction + range.parameter * decay;
    }
    if (buffer.defined()) {
      // torch.optim.SGD starts the buffer with the first gradient; from zeros the recurrence gives
      // the same.
      const at::Tensor momentum = buffer * config_.momentum + direction;
      buffer.copy_(at::where(keep, buffer, momentum));
      direction = config_.nesterov ? direction + momentum * config_.momentum : momentum;
    }
    if (range.rule.lr_factor != 1) direction = direction * range.rule.lr_factor;
    const at::Tensor updated = range.parameter - direction * scalars_.learning_rate;
    range.parameter.copy_(at::where(keep, range.parameter, updated));
    if (range.low_precision.defined()) range.low_precision.copy_(range.parameter);
  }

  SgdConfig config_;
  std::vector<OptimizerRange> ranges_;
  std::vector<at::Tensor> momentum_;
  at::Tensor step_count_;
  StepScalars scalars_;
};

}  // namespace

OptimizerFactory make_sgd(const SgdConfig& config) {
  check(config.momentum >= 0 && config.momentum < 1, ErrorCode::kInvalidArgument, "SGD: momentum ",
        config.momentum, " must lie in [0, 1)");
  check(config.weight_decay >= 0, ErrorCode::kInvalidArgument, "SGD: weight decay ",
        config.weight_decay, " must not be negative");
  check(!config.nesterov || config.momentum > 0, ErrorCode::kInvalidArgument,
        "SGD: nesterov needs a momentum");
  return [config](std::vector<OptimizerRange> ranges) -> std::unique_ptr<Optimizer> {
    return std::make_unique<Sgd>(config, std::move(ranges));
  };
}

}  // namespace tessera
