#include "tessera/optim/adamw.h"

#include <ATen/ATen.h>

#include "tessera/core/error.h"
#include "tessera/ops/update.h"

namespace tessera {
namespace {

class AdamW : public Optimizer {
 public:
  AdamW(const AdamWConfig& config, std::vector<OptimizerRange> ranges)
      : config_(config), ranges_(std::move(ranges)) {
    int64_t total = 0;
    for (const auto& range : ranges_) total += range.parameter.numel();
    if (ranges_.empty()) {
      step_count_ = at::zeros({});
      return;
    }
    const auto options = ranges_.front().parameter.options().requires_grad(false);
    step_count_ = at::zeros({}, options);
    moments_ = at::zeros({2, total}, options);
    int64_t offset = 0;
    for (const auto& range : ranges_) {
      const int64_t numel = range.parameter.numel();
      exp_avg_.push_back(moments_[0].narrow(0, offset, numel));
      exp_avg_sq_.push_back(moments_[1].narrow(0, offset, numel));
      offset += numel;
    }
  }

  size_t range_count() const override { return ranges_.size(); }

  void begin_step(const StepScalars& scalars) override {
    at::NoGradGuard no_grad;
    scalars_ = {scalars.learning_rate, step_count_, scalars.gradient_scale, scalars.skip};
    if (scalars.skip.defined()) {
      step_count_.add_(scalars.skip.eq(0));
    } else {
      step_count_.add_(1);
    }
  }

  void update(size_t first, size_t count) override {
    at::NoGradGuard no_grad;
    for (size_t i = first; i < first + count; ++i) {
      const OptimizerRange& range = ranges_[i];
      ops::AdamWOptions options{config_.beta1, config_.beta2, config_.epsilon,
                                range.weight_decay ? config_.weight_decay : 0.0};
      ops::adamw_update(range.parameter, range.gradient, exp_avg_[i], exp_avg_sq_[i],
                        range.low_precision, options, scalars_);
    }
  }

  std::vector<std::pair<std::string, at::Tensor>> state(size_t range) const override {
    return {{"exp_avg", exp_avg_[range]}, {"exp_avg_sq", exp_avg_sq_[range]}};
  }
  at::Tensor step_count() const override { return step_count_; }
  int64_t state_bytes() const override {
    return moments_.defined() ? static_cast<int64_t>(moments_.nbytes()) : 0;
  }

 private:
  AdamWConfig config_;
  std::vector<OptimizerRange> ranges_;
  at::Tensor moments_, step_count_;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_;  // views of moments_
  ops::AdamWScalars scalars_;
};

}  // namespace

OptimizerFactory make_adamw(const AdamWConfig& config) {
  check(config.beta1 >= 0 && config.beta1 < 1 && config.beta2 >= 0 && config.beta2 < 1,
        ErrorCode::kInvalidArgument, "AdamW: betas ", config.beta1, ", ", config.beta2,
        " must lie in [0, 1)");
  check(config.epsilon > 0, ErrorCode::kInvalidArgument, "AdamW: epsilon ", config.epsilon,
        " must be positive");
  check(config.weight_decay >= 0, ErrorCode::kInvalidArgument, "AdamW: weight decay ",
        config.weight_decay, " must not be negative");
  return [config](std::vector<OptimizerRange> ranges) -> std::unique_ptr<Optimizer> {
    return std::make_unique<AdamW>(config, std::move(ranges));
  };
}

}  // namespace tessera
