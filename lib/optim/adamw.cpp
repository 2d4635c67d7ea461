#include "tessera/optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "lib/ops/update.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

class AdamW : public Optimizer {
 public:
  AdamW(const AdamWConfig& config, const std::vector<OptimizerRange>& ranges) : config_(config) {
    int64_t total = 0;
    for (const auto& range : ranges) total += range.parameter.numel();
    if (ranges.empty()) {
      step_count_ = at::zeros({});
      return;
    }
    const auto options = ranges.front().parameter.options().requires_grad(false);
    step_count_ = at::zeros({}, options);
    moments_ = at::zeros({2, total}, options);
    int64_t offset = 0;
    for (const auto& range : ranges) {
      const int64_t numel = range.parameter.numel();
      updates_.push_back({range.parameter, range.gradient, moments_[0].narrow(0, offset, numel),
                          moments_[1].narrow(0, offset, numel), range.low_precision, decay(range)});
      offset += numel;
    }
  }

  size_t range_count() const override { return updates_.size(); }

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
    ops::adamw_update(std::span(updates_).subspan(first, count), options(), scalars_);
  }

  void update(std::span<const ExternalRange> ranges) const override {
    at::NoGradGuard no_grad;
    std::vector<ops::AdamWRange> updates;
    for (const auto& [range, state] : ranges) {
      updates.push_back(
          {range.parameter, range.gradient, state[0], state[1], range.low_precision, decay(range)});
    }
    ops::adamw_update(updates, options(), scalars_);
  }

  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  NamedTensors state(size_t range) const override {
    return {{"exp_avg", updates_[range].exp_avg}, {"exp_avg_sq", updates_[range].exp_avg_sq}};
  }
  at::Tensor step_count() const override { return step_count_; }
  int64_t state_bytes() const override {
    return moments_.defined() ? static_cast<int64_t>(moments_.nbytes()) : 0;
  }

 private:
  ops::AdamWOptions options() const { return {config_.beta1, config_.beta2, config_.epsilon}; }
  double decay(const OptimizerRange& range) const {
    return range.weight_decay ? config_.weight_decay : 0.0;
  }

  AdamWConfig config_;
  at::Tensor moments_, step_count_;
  std::vector<ops::AdamWRange> updates_;  // by range; the moments are views of moments_
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
  return [config](const std::vector<OptimizerRange>& ranges) -> std::unique_ptr<Optimizer> {
    return std::make_unique<AdamW>(config, ranges);
  };
}

}  // namespace tessera
