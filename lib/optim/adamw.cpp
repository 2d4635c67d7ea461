// SPDX-License-Identifier: MIT
#include "tessera/optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <set>

#include "lib/ops/moment_map.h"
#include "lib/ops/moments.h"
#include "lib/ops/update.h"
#include "lib/optim/description.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using Betas = std::pair<double, double>;

class AdamW : public Optimizer {
 public:
  AdamW(const AdamWConfig& config, const std::vector<OptimizerRange>& ranges) : config_(config) {
    if (ranges.empty()) {
      step_count_ = at::zeros({}, at::kDouble);
      return;
    }
    const auto options = at::TensorOptions(at::kFloat).device(ranges.front().kept().device());
    step_count_ = at::zeros({}, options.dtype(at::kDouble));
    for (const auto& range : ranges) {
      updates_.push_back(update_of(range));
      betas_.push_back(betas(range));
    }
    for (const bool small : {false, true}) keep_moments(ranges, small, options);
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
      updates.push_back(update_of(range));
      set_state(updates.back(), state);
      betas_of.push_back(betas(range));
    }
    update_all(updates, betas_of);
  }

  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  std::vector<StateFormat> state_formats(bool small) const override {
    if (!in_8_bits(small)) {
      const auto dtype = config_.moments == MomentsDtype::kBFloat16 ? at::kBFloat16 : at::kFloat;
      return {{"exp_avg", dtype}, {"exp_avg_sq", dtype}};
    }
    constexpr int64_t kBlock = ops::kMomentBlock;
    return {{"exp_avg", at::kByte},
            {"exp_avg_sq", at::kByte},
            {concat("exp_avg", kLargestOfBlocks), at::kFloat, kBlock},
            {concat("exp_avg_sq", kLargestOfBlocks), at::kFloat, kBlock}};
  }
  StateRules state_rules() const override {
    if (config_.moments != MomentsDtype::kInt8) return {};
    return {.block = ops::kMomentBlock, .small_numel = config_.min_8bit_size};
  }
  bool splits_masters() const override { return true; }
  std::string describe() const override {
    return described(config_.adam_w_mode ? "AdamW" : "Adam",
                     {{"beta1", config_.beta1},
                      {"beta2", config_.beta2},
                      {"epsilon", config_.epsilon},
                      {"weight_decay", config_.weight_decay},
                      {"moments", static_cast<double>(config_.moments)},
                      {"min_8bit_size", static_cast<double>(config_.min_8bit_size)}});
  }
  NamedTensors state(size_t range) const override {
    const ops::AdamWRange& update = updates_[range];
    const at::Tensor* const kept[] = {&update.exp_avg, &update.exp_avg_sq, &update.exp_avg_largest,
                                      &update.exp_avg_sq_largest};
    NamedTensors state;
    for (const StateFormat& format : state_formats(!update.exp_avg_largest.defined())) {
      state.emplace_back(format.name, *kept[state.size()]);
    }
    return state;
  }
  at::Tensor step_count() const override { return step_count_; }
  int64_t state_bytes() const override {
    int64_t sum = 0;
    for (const at::Tensor& moments : moments_) sum += static_cast<int64_t>(moments.nbytes());
    return sum;
  }

 private:
  bool in_8_bits(bool small) const { return config_.moments == MomentsDtype::kInt8 && !small; }

  // state: in the order of state_formats().
  static void set_state(ops::AdamWRange& update, const std::vector<at::Tensor>& state) {
    update.exp_avg = state[0];
    update.exp_avg_sq = state[1];
    if (state.size() == 2) return;
    update.exp_avg_largest = state[2];
    update.exp_avg_sq_largest = state[3];
  }

  // One buffer per format, with views for ranges.
  void keep_moments(const std::vector<OptimizerRange>& ranges, bool small,
                    const at::TensorOptions& options) {
    std::vector<std::vector<at::Tensor>> states(ranges.size());
    for (const StateFormat& format : state_formats(small)) {
      int64_t total = 0;
      for (const OptimizerRange& range : ranges) {
        if (range.small == small) total += format.numel(range.numel());
      }
      const at::Tensor all = at::zeros({total}, options.dtype(format.dtype));
      int64_t begin = 0;
      for (size_t i = 0; i < ranges.size(); ++i) {
        if (ranges[i].small != small) continue;
        const int64_t numel = format.numel(ranges[i].numel());
        states[i].push_back(all.narrow(0, begin, numel));
        begin += numel;
      }
      moments_.push_back(all);
    }
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (ranges[i].small == small) set_state(updates_[i], states[i]);
    }
  }

  // The range without its state.
  ops::AdamWRange update_of(const OptimizerRange& range) const {
    check_blocks(range);
    return {.parameter = range.parameter,
            .gradient = range.gradient,
            .exp_avg = {},
            .exp_avg_sq = {},
            .low_precision = range.low_precision,
            .weight_decay = range.decay(config_.weight_decay),
            .lr_factor = range.rule.lr_factor,
            .remainder = range.remainder};
  }
  void check_blocks(const OptimizerRange& range) const {
    if (!in_8_bits(range.small)) return;
    for (const RangePiece& piece : pieces_of(range)) {
      check(piece.offset % ops::kMomentBlock == 0 && piece.begin % ops::kMomentBlock == 0,
            ErrorCode::kInternal, "AdamW: moments in 8 bits: parameter ", piece.parameter.name,
            " is cut at element ", piece.offset, ", which lies at ", piece.begin,
            " of its range; both must be multiples of ", ops::kMomentBlock);
    }
  }
  Betas betas(const OptimizerRange& range) const {
    return range.rule.betas.value_or(Betas(config_.beta1, config_.beta2));
  }
  void update_equal(std::span<const ops::AdamWRange> updates, const Betas& betas) const {
    ops::adamw_update(updates, {betas.first, betas.second, config_.epsilon, config_.adam_w_mode},
                      scalars_);
  }
  // Updates ranges of equal betas and formats together.
  void update_all(std::span<const ops::AdamWRange> updates, std::span<const Betas> betas) const {
    if (updates.empty()) return;
    const auto key = [&](size_t i) {
      return std::pair(betas[i], updates[i].exp_avg.scalar_type());
    };
    std::set<decltype(key(0))> keys;
    for (size_t i = 1; i < updates.size(); ++i) {
      if (key(i) != key(0)) keys.insert({key(0), key(i)});
    }
    if (keys.empty()) return update_equal(updates, betas.front());
    for (const auto& equal : keys) {
      std::vector<ops::AdamWRange> of_equal;
      for (size_t i = 0; i < updates.size(); ++i) {
        if (key(i) == equal) of_equal.push_back(updates[i]);
      }
      update_equal(of_equal, equal.first);
    }
  }

  AdamWConfig config_;
  at::Tensor step_count_;
  std::vector<at::Tensor> moments_;       // by format
  std::vector<ops::AdamWRange> updates_;  // by range; moments are views of moments_
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
  check(config.min_8bit_size >= 0, ErrorCode::kInvalidArgument, "AdamW: min_8bit_size ",
        config.min_8bit_size, " must not be negative");
  return [config](const std::vector<OptimizerRange>& ranges) -> std::unique_ptr<Optimizer> {
    return std::make_unique<AdamW>(config, ranges);
  };
}

}  // namespace tessera
