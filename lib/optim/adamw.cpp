#include "tessera/optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>

#include "lib/ops/update.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using Betas = std::pair<double, double>;

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
      updates_.push_back(update_of(range, moments_[0].narrow(0, offset, numel),
                                   moments_[1].narrow(0, offset, numel)));
      betas_.push_back(betas(range));
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
    update_all(std::span(updates_).subspan(first, count), std::span(betas_).subspan(first, count));
  }

  void update(std::span<const ExternalRange> ranges) const override {
    at::NoGradGuard no_grad;
    std::vector<ops::AdamWRange> updates;
    std::vector<Betas> betas_of;
    for (const auto& [range, state] : ranges) {
      updates.push_back(update_of(range, state[0], state[1]));
      betas_of.push_back(betas(range));
    }
    update_all(updates, betas_of);
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
  ops::AdamWRange update_of(const OptimizerRange& range, const at::Tensor& exp_avg,
                            const at::Tensor& exp_avg_sq) const {
    return {.parameter = range.parameter,
            .gradient = range.gradient,
            .exp_avg = exp_avg,
            .exp_avg_sq = exp_avg_sq,
            .low_precision = range.low_precision,
            .weight_decay = range.decay(config_.weight_decay),
            .lr_factor = range.rule.lr_factor};
  }
  Betas betas(const OptimizerRange& range) const {
    return range.rule.betas.value_or(Betas(config_.beta1, config_.beta2));
  }
  void update_equal(std::span<const ops::AdamWRange> updates, const Betas& betas) const {
    ops::adamw_update(updates, {betas.first, betas.second, config_.epsilon, config_.adam_w_mode},
                      scalars_);
  }
  // Ranges of equal betas at once, wherever they stand.
  void update_all(std::span<const ops::AdamWRange> updates, std::span<const Betas> betas) const {
    if (updates.empty()) return;
    if (std::ranges::count(betas, betas.front()) == std::ssize(betas)) {
      return update_equal(updates, betas.front());
    }
    for (const Betas& equal : std::set(betas.begin(), betas.end())) {
      std::vector<ops::AdamWRange> of_equal;
      for (size_t i = 0; i < updates.size(); ++i) {
        if (betas[i] == equal) of_equal.push_back(updates[i]);
      }
      update_equal(of_equal, equal);
    }
  }

  AdamWConfig config_;
  at::Tensor moments_, step_count_;
  std::vector<ops::AdamWRange> updates_;  // by range; the moments are views of moments_
  std::vector<Betas> betas_;              // by range
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
