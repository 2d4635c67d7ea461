// SPDX-License-Identifier: MIT
#include "lib/testing/fuzz_compare.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "backends/check_config.h"
#include "lib/testing/fuzz_agreement.h"
#include "lib/testing/fuzz_calls.h"
#include "lib/testing/fuzz_difference.h"
#include "lib/testing/fuzz_moments.h"
#include "lib/testing/fuzz_run.h"
#include "lib/testing/fuzz_tolerances.h"
#include "tessera/core/error.h"
#include "tessera/core/split_master.h"

namespace tessera::testing {
namespace {

using GradientOf = std::function<OracleGradient(const OracleDtypes&)>;

class OracleCheck {
 public:
  OracleCheck(const FuzzCase& c, const FuzzModel& model, const RunRecord& run, double* worst)
      : model_(model),
        worst_(worst),
        oracle_(model.of_rank ? model.of_rank(0) : model.plain.value_or(model.model),
                {.seed = c.seed,
                 .adamw = {.beta1 = c.beta1,
                           .beta2 = c.beta2,
                           .epsilon = c.epsilon,
                           .weight_decay = c.weight_decay,
                           .moments = moments_of(c),
                           .min_8bit_size = c.min_8bit_size},
                 .optimizer = c.optimizer,
                 .forward = model.forward,
                 .seeds = model.seeds,
                 .fp8 = c.parallel.precision.fp8,
                 .fp8_layers = fp8_layers_of(c.parallel.precision.fp8_layers),
                 .frozen = c.parallel.precision.frozen}) {
    enter(c, run);
  }

  // Steps from here on have this case's layout.
  void enter(const FuzzCase& c, const RunRecord& run) {
    c_ = c;
    moments_ = &run.moments;
    same_kernels_ = !run.other_kernels;
    const bool own_blocks = !model_.forward && !model_.plain;
    exact_ = (own_blocks || model_.same_terms) && c.mesh.tensor == 1 && same_kernels_;
    const PrecisionConfig& precision = c.parallel.precision;
    sample_ = {precision.parameter, precision.parameter};
    reference_ = exact_ ? sample_ : OracleDtypes{precision.parameter, model_.widest};
    const bool hybrid = c.parallel.shard_ranks > 0 && c.parallel.shard_ranks < c.mesh.sharding();
    const bool held_twice =
        c.mesh.pipeline > 1 && (oracle_.tied() || c.parallel.pipeline.shared_vocabulary);
    sums_.gradient = precision.gradient_dtype();
    sums_.wire = precision.reduce_dtype();
    sums_.further_sums = static_cast<int>(hybrid) + static_cast<int>(held_twice);
    sums_.additions = run.rounded_additions ? std::max(c.ranks() - 1, 1) : 1;
  }

  void check_initial(const RankRecord& rank) {
    Named expected = oracle_.by_name(oracle_.parameters());
    const bool settles = c_.parallel.precision.parameter == at::kBFloat16 &&
                         state_needs(optimizer_of(c_)).splits_masters;
    for (const auto& entry : oracle_.entries()) {
      if (settles && !entry.matrix) settle(expected[entry.name] = expected[entry.name].clone());
    }
    // Frozen parameters have no master, even in 16-bit training.
    for (const auto& [name, value] : oracle_.frozen()) {
      expected[name] = value.to(at::kFloat).to(sample_.weights).to(at::kFloat);
    }
    require_bits("initial parameter", rank.initial, expected);
  }

  // Checks steps [first, end); the record starts at `first`.
  void check_steps(const FuzzWork& work, const RankRecord& rank, size_t first, size_t end) {
    const Named* before = &rank.initial;
    auto evaluation = rank.evaluations.begin();
    const auto evaluations_at = [&](size_t steps_done) {
      for (; evaluation != rank.evaluations.end() && evaluation->steps_done == steps_done;
           ++evaluation) {
        check_evaluation(work.evaluation, *evaluation);
      }
    };
    for (size_t s = first; s < end; ++s) {
      const StepRecord& step = rank.steps[s - first];
      evaluations_at(s);
      at_ = concat(" at step ", s);
      check_step(work.steps[s], step, *before);
      if (oracle_.follows_moments()) check_moments_of(s, step.skipped);
      before = &step.parameters;
    }
    if (end < work.steps.size()) return;
    require_bits("final parameter", rank.final, *before);
    evaluations_at(end);
  }

 private:
  void within(const std::string& what, double error, double tolerance) {
    if (tolerance > 0) *worst_ = std::max(*worst_, error / tolerance);
    require(error <= tolerance, what, at_, " is off by ", error, ", allowed are ", tolerance);
  }

  // Of sums in the compute dtype, or of products in 8 bits.
  double roundoff() const {
    const double own = unit_roundoff(sample_.compute);
    return c_.parallel.precision.fp8 == Fp8::kOff ? own : std::max(own, kFp8Roundoff);
  }

  // Dtypes of sample `number` of the rounding noise.
  OracleDtypes sample(size_t number) const { return {sample_.weights, sample_.compute, number}; }

  // run(dtypes): losses of the same micro-batches.
  void check_losses(const std::string& what, double loss, double targets,
                    const std::optional<std::vector<double>>& counters, const OracleLoss& expected,
                    const std::function<OracleLoss(const OracleDtypes&)>& run) {
    require(targets == expected.targets, what, " has target count ", targets, at_, ", expected ",
            expected.targets);
    double size = 0, noise_squared = 0;
    for (double term : expected.terms) size += std::abs(term);
    const auto tolerance = [&] {
      if (exact_) return kLossRoundings * 0x1p-24 * size;
      return kNoise * std::sqrt(noise_squared) + kFloor * roundoff() * size;
    };
    const double error = std::abs(loss - expected.loss);
    for (size_t k = 0; !exact_ && k < kSamples && !(error <= tolerance()); ++k) {
      const OracleLoss sampled = run(sample(k));
      double noise = 0;
      for (size_t i = 0; i < expected.terms.size(); ++i) {
        noise += std::abs(sampled.terms[i] - expected.terms[i]);
      }
      noise_squared += noise * noise;
    }
    within(concat(what, " ", loss, " (expected ", expected.loss, ")"), error, tolerance());
    if (exact_) {
      require(!counters || *counters == expected.counters, what, ": counters differ", at_);
    }
  }

  void check_evaluation(const GlobalBatch& batch, const EvaluationRecord& record) {
    at_ = concat(" after ", record.steps_done, " steps");
    const auto run = [&](const OracleDtypes& dtypes) { return oracle_.evaluate(batch, dtypes); };
    check_losses("evaluation loss", record.loss, record.targets, record.counters, run(reference_),
                 run);
    if (!record.loss_of_scores) return;
    const double of_scores = *record.loss_of_scores;
    within(
        concat("loss ", of_scores, " of the predicted scores (evaluation loss ", record.loss, ")"),
        std::abs(of_scores - record.loss),
        kScoreRoundings * unit_roundoff(c_.parallel.precision.parameter) *
            std::max(1.0, record.loss));
  }

  void check_step(const GlobalBatch& batch, const StepRecord& step, const Named& before) {
    const double scale = c_.loss_scale > 0 ? c_.loss_scale : 1;
    calls_ = calls_of(batch, c_.calls);
    const GradientOf run = [&](const OracleDtypes& dtypes) {
      return oracle_.gradient(batch, scale, dtypes, calls_.divisor);
    };
    const OracleGradient expected = run(reference_);
    const OracleGradient sample = exact_ ? expected : run(sample_);
    const bool in_range = finite(sample);
    if (in_range || std::isfinite(step.loss)) {
      check_losses("loss", step.loss, step.targets, step.counters, expected, run);
    }
    if (!std::isfinite(step.norm) || step.skipped) {
      // The norm is the root of an fp32 sum of squares.
      const auto squares = [&] { return sample.sum().square().sum().item<double>(); };
      // Whether another order of factors may overflow gradients inside the model.
      const auto inside = [&] {
        constexpr double kOrder = 4;
        return c_.parallel.precision.parameter == at::kHalf &&
               !overflow_free(oracle_.gradient(batch, kOrder * scale, sample_, calls_.divisor));
      };
      require(std::isfinite(step.norm) || !in_range || squares() > 1e38 || inside(), "norm is ",
              step.norm, at_, ", but no gradient is out of range");
    }
    for (const auto& [name, frozen] : oracle_.frozen()) {
      require(!step.gradients.contains(name) || !step.gradients.at(name).any().item<bool>(),
              "frozen parameter ", name, " has a gradient", at_);
    }
    const GradientOf measure = [&](const OracleDtypes& dtypes) {
      OracleGradient gradient = run(dtypes);
      for (double part = 2; part <= scale && !overflow_free(gradient); part *= 2) {
        gradient = oracle_.gradient(batch, scale / part, dtypes, calls_.divisor);
        gradient.parts.mul_(part);
      }
      return gradient;
    };
    if (std::isfinite(step.norm)) {
      check_gradient(step, expected, overflow_free(sample) ? sample : measure(sample_), measure);
    }
    oracle_.advance_statistics(batch.front(), reference_);
    check_update(step, before);
    // A user's own strategies need not expose buffers.
    if (!step.buffers.empty()) check_statistics(step.buffers);
  }

  void check_statistics(const Named& shown) {
    for (auto& [name, expected] : oracle_.statistics()) {
      require(shown.contains(name), "running statistic ", name, " is missing", at_);
      const at::Tensor& value = shown.at(name);
      if (exact_) require_bits("running statistic" + at_, {{name, value}}, {{name, expected}});
      const double error = (value - expected).abs().max().item<double>();
      within(concat("running statistic ", name), error,
             kStatisticRoundings * 0x1p-24 * (1 + expected.abs().max().item<double>()));
      expected = value.clone();
    }
  }

  static bool overflow_free(const OracleGradient& gradient) {
    return gradient.parts.isfinite().all().item<bool>();
  }

  // True if far enough below the largest 16-bit number for any order of sums.
  bool finite(const OracleGradient& gradient) const {
    const at::Tensor size = gradient.parts.abs().sum({0, 1, 2});
    const bool half = sums_.gradient == at::kHalf || sums_.wire == at::kHalf;
    const double largest = size.numel() == 0 ? 0 : size.max().item<double>() * calls_.factor;
    return std::isfinite(largest) && std::isfinite(gradient.loss) && largest < (half ? 3e4 : 1e37);
  }

  void check_gradient(const StepRecord& step, const OracleGradient& expected,
                      const OracleGradient& sample, const GradientOf& run) {
    sums_.ranks = expected.parts.size(0);
    sums_.micro_batches = expected.parts.size(1);
    sums_.uses = expected.parts.size(2);
    sums_.calls = calls_.count;
    for (const auto& entry : oracle_.entries()) {
      require(step.gradients.contains(entry.name), "gradient ", entry.name, " is missing", at_);
    }
    const at::Tensor shown = oracle_.flat(step.gradients), sum = expected.sum();
    const at::Tensor size = sample.parts.abs().sum({0, 1, 2});
    const at::Tensor error = (shown - sum).abs();
    const at::Tensor roundings = size * sums_.relative() + sums_.absolute();
    if (exact_) {
      elementwise("gradient", shown, sum, error, roundings);
      check_wire(expected.parts, error, size);
    } else {
      check_noisy_gradient(shown, sum, size, roundings, sample.sum(), run);
    }
    const double scale = c_.loss_scale > 0 ? c_.loss_scale : 1;
    const double norm = shown.norm().item<double>() / scale;
    within(concat("norm ", step.norm, " of gradients with norm ", norm), std::abs(step.norm - norm),
           norm_tolerance(c_.ranks()) * norm + 1e-30);
    const double clip = c_.max_norm > 0 ? std::min(1.0, c_.max_norm / (step.norm + 1e-6)) : 1;
    within(concat("clip factor ", step.clip), std::abs(step.clip - clip), kClipRoundings * 0x1p-24);
  }

  void check_noisy_gradient(const at::Tensor& shown, const at::Tensor& sum, const at::Tensor& size,
                            const at::Tensor& roundings, const at::Tensor& sampled,
                            const GradientOf& run) {
    std::vector<at::Tensor> noises{sampled - sum};
    const double whole = size.norm().item<double>();
    for (const auto& entry : oracle_.entries()) {
      const auto norm = [&](const at::Tensor& flat) {
        return flat.narrow(0, entry.offset, entry.numel).norm().item<double>();
      };
      const double share = std::sqrt(double(entry.numel) / double(size.numel()));
      const double of_whole = norm(sum) < kCancelled * whole ? kCancelledFloor : kWholeFloor;
      const double floor = roundoff() * (kFloor * norm(size) + of_whole * whole) +
                           (c_.mesh.tensor * c_.mesh.context * c_.mesh.expert > 1
                                ? sums_.wire_noise() * whole * share
                                : 0);
      const auto tolerance = [&] {
        double squares = 0;
        for (const at::Tensor& noise : noises) squares += std::pow(norm(noise), 2);
        return kNoise * std::sqrt(squares) + floor + norm(roundings);
      };
      const double error = norm(shown - sum);
      while (error > tolerance() && noises.size() < kSamples) {
        noises.push_back(run(sample(noises.size())).sum() - sum);
      }
      within(concat("gradient ", entry.name, " of norm ", norm(sum)), error, tolerance());
    }
  }

  void check_wire(const at::Tensor& parts, const at::Tensor& error, const at::Tensor& size) {
    if (sums_.gradient != at::kFloat || sums_.wire == at::kFloat || sums_.further_sums > 0) return;
    if (sums_.additions > 1 || sums_.calls > 1) return;
    at::Tensor of_ranks = parts.sum(2);  // [ranks, micro-batches, elements]
    const bool often = sharding_rules(c_.parallel, c_.mesh).shards_gradients;
    if (!often) of_ranks = of_ranks.sum(1, /*keepdim=*/true);
    at::Tensor variance = variance_of_sum(of_ranks.flatten(0, 1), sums_.wire);
    if (sums_.ranks > 1) variance = variance + variance_of_sum(of_ranks.sum(0), sums_.wire);
    const double expected = variance.sum().item<double>();
    if (expected == 0) return;
    const double elements = expected * expected / variance.square().sum().item<double>();
    const double in_fp32 = (size * (sums_.relative_in_fp32() * 0x1p-24)).norm().item<double>();
    const double factor = kRmsSlack + kRmsDeviations * std::sqrt(0.8 / elements);
    within("rounding to the wire's dtype", error.norm().item<double>(),
           std::sqrt(factor * expected) + in_fp32);
  }

  void elementwise(const std::string& what, const at::Tensor& actual, const at::Tensor& expected,
                   const at::Tensor& error, const at::Tensor& bound) {
    for (const auto& entry : oracle_.entries()) {
      if (entry.numel == 0) continue;
      const auto part = [&](const at::Tensor& flat) {
        return flat.narrow(0, entry.offset, entry.numel);
      };
      const at::Tensor share = (part(error) / (part(bound) + 1e-300)).nan_to_num(1e300);
      const auto index = share.argmax().item<int64_t>();
      const double worst = share[index].item<double>();
      *worst_ = std::max(*worst_, worst);
      require(worst <= 1, what, " ", entry.name, "[", index, "]", at_, " is ",
              part(actual)[index].item<double>(), ", expected ",
              part(expected)[index].item<double>(), ", allowed are ",
              part(bound)[index].item<double>());
    }
  }

  void check_moments_of(size_t step, bool skipped) {
    const Named& shown = moments_->at(step);
    if (skipped) {
      check_moments_unchanged(shown, moments_before_, at_);
    } else {
      *worst_ = std::max(*worst_, check_moments(c_, oracle_, shown, at_));
    }
    moments_before_ = shown;
  }

  void check_update(const StepRecord& step, const Named& before) {
    for (const auto& [name, value] : oracle_.frozen()) {
      require_bits("frozen parameter" + at_, {{name, step.parameters.at(name)}},
                   {{name, before.at(name)}});
    }
    if (step.skipped) {
      require_bits("parameter of a skipped step" + at_, step.parameters, before);
      return;
    }
    const at::Tensor start = oracle_.parameters();
    const at::Tensor size =
        oracle_.update(oracle_.flat(step.gradients) * step.update_scale, step.learning_rate,
                       /*exact=*/calls_.count == 1 && same_kernels_);
    const at::Tensor predicted = oracle_.parameters(), shown = oracle_.flat(step.parameters);
    const at::Tensor bound =
        0x1p-24 * (kParameterRoundings * (start.abs() + predicted.abs()) + kUpdateRoundings * size);
    elementwise("parameter", shown, predicted, (shown - predicted).abs(), bound);
    oracle_.parameters() = shown;
  }

  FuzzCase c_;
  const FuzzModel& model_;
  double* worst_;
  bool exact_ = true, same_kernels_ = true;
  Oracle oracle_;
  OracleDtypes reference_, sample_;
  SumOfTerms sums_{};
  StepCalls calls_;
  const std::vector<Named>* moments_ = nullptr;
  Named moments_before_;
  std::string at_;
};

}  // namespace

std::string compare_with_oracle(const FuzzCase& c, const FuzzModel& model, const FuzzWork& work,
                                const RunRecord& run, double* worst) {
  return text_of_difference([&] {
    require_ranks_agree(run);
    require(!model.seeds || !model.seeds->ambiguous(), "seeds of micro-batches are not distinct");
    OracleCheck oracle_check(c, model, run, worst);
    oracle_check.check_initial(run.ranks.front());
    oracle_check.check_steps(work, run.ranks.front(), 0, work.steps.size());
  });
}

std::string compare_resumed(const FuzzCase& c, const FuzzCase& then, const FuzzModel& model,
                            const FuzzWork& work, const FuzzWork& then_work, const RunRecord& run,
                            const RunRecord& resumed, double* worst) {
  const auto stop = static_cast<size_t>(c.resume);
  const RankRecord &before = run.ranks.front(), &after = resumed.ranks.front();
  const std::string text = text_of_difference([&] {
    require_ranks_agree(resumed);
    require(!model.seeds || !model.seeds->ambiguous(), "seeds of micro-batches are not distinct");
    require_bits("restored parameter", after.initial, before.steps[stop - 1].parameters);
    const bool same_layout = to_line(then) == to_line(without_resume(c));
    for (size_t s = stop; same_layout && s < before.steps.size(); ++s) {
      const StepRecord &step = after.steps[s - stop], &expected = before.steps[s];
      const std::string at = concat(" at step ", s);
      require_same("loss" + at, step.loss, expected.loss);
      require_same("norm" + at, step.norm, expected.norm);
      require_bits("gradient" + at, step.gradients, expected.gradients);
      require_bits("parameter" + at, step.parameters, expected.parameters);
      if (!run.moments.empty()) require_bits("state" + at, resumed.moments[s], run.moments[s]);
    }
    OracleCheck oracle_check(c, model, run, worst);
    oracle_check.check_steps(work, before, 0, stop);
    oracle_check.enter(then, resumed);
    oracle_check.check_steps(then_work, after, stop, work.steps.size());
  });
  return text.empty() ? text : "resumed: " + text;
}

}  // namespace tessera::testing
