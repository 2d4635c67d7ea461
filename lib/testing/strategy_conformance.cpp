// SPDX-License-Identifier: MIT
#include "tessera/testing/strategy_conformance.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <set>

#include "lib/testing/checks.h"
#include "tessera/core/error.h"
#include "tessera/optim/sgd.h"

namespace tessera::testing {
namespace {

// The norm is summed in another order than by the interface's own sum.
constexpr double kNormTolerance = 1e-4;

Named initial_parameters(const ModelSpec& model) {
  Named parameters;
  std::set<std::string> aliases;
  for (const TiedParameter& tie : model.tied) {
    aliases.insert(tie.alias_block + "." + tie.alias_parameter);
  }
  for (const BlockBuilder& builder : model.blocks) {
    for (const Parameter& parameter : builder.build({.seed = CheckedPlayer::kSeed})->parameters()) {
      const std::string name = builder.name + "." + parameter.name;
      if (!aliases.contains(name)) parameters.emplace(name, parameter.tensor.detach().clone());
    }
  }
  return parameters;
}

Named minus(const Named& a, const Named& b) {
  Named result;
  for (const auto& [name, value] : a) result[name] = value - b.at(name);
  return result;
}

double squared_norm(const Named& tensors) {
  double sum = 0;
  for (const auto& [name, value] : tensors) {
    sum += value.to(at::kDouble).square().sum().item<double>();
  }
  return sum;
}

// All ranks reject misuse, and the strategy stays usable.
void check_misuse(const Subject& subject, Violations& violations) {
  violations.take(subject.play([](CheckedPlayer& p) {
    p.expect_error("forward_backward() before attach()",
                   [&] { p.strategy().forward_backward(p.share(0)); });
    p.expect_error("state() before attach()", [&] { p.strategy().state(); });
  }));
  violations.take(subject.play([](CheckedPlayer& p) {
    p.expect(!p.strategy().name().empty(), "name() is empty");
    p.attach();
    p.expect_error("a second attach()", [&] { p.attach(); });
    p.expect_error("a step without micro-batches", [&] { p.strategy().forward_backward({}); });
    p.expect_error("an evaluation without micro-batches", [&] { p.strategy().evaluate({}); });
    p.expect_error("an update before any gradient", [&] { p.strategy().optimizer_step(0.1); });
    p.forward_backward(p.share(0));
    p.expect_error("a second step before the update",
                   [&] { p.strategy().forward_backward(p.share(0)); });
    for (const double rate : {-1.0, std::nan("")}) {
      p.expect_error(concat("a learning rate of ", rate),
                     [&] { p.strategy().optimizer_step(rate); });
    }
    p.strategy().optimizer_step(0.1);
    p.train(1);
  }));
}

// Every parameter once, in full, with the seed's values, equal on all ranks.
void check_parameters(const Subject& subject, Violations& violations) {
  const auto expected = initial_parameters(subject.options.work.model);
  int64_t count = 0;
  for (const auto& [name, value] : expected) count += value.numel();
  const auto results = subject.play([&](CheckedPlayer& p) {
    p.attach();
    p.read_parameters();
    p.expect(
        p.strategy().parameter_count() == count,
        concat("parameter_count() is ", p.strategy().parameter_count(), " instead of ", count));
  });
  violations.take(results);
  violations.add("initial parameters", difference(results.front().parameters, expected, 1e-6));
}

void check_ranks(const Subject& subject, Violations& violations) {
  const auto results = subject.play([](CheckedPlayer& p) {
    p.attach();
    for (uint64_t step = 0; step < 3; ++step) p.train(step);
    p.evaluate(0);
    p.read_parameters();
  });
  violations.take(results);
  const RankResult& first = results.front();
  for (size_t rank = 1; rank < results.size(); ++rank) {
    const RankResult& other = results[rank];
    const std::string of = concat(" of rank ", rank, " (compared with rank 0)");
    violations.add("loss" + of, difference(other.loss, first.loss, 0));
    violations.add("target_count" + of, difference(other.targets, first.targets, 0));
    violations.add("gradient norm" + of, difference(other.norm, first.norm, 0));
    for (size_t i = 0; i < first.counters.size(); ++i) {
      violations.add("counters" + of, difference(other.counters[i], first.counters[i], 0));
    }
    violations.add("parameters" + of, difference(other.parameters, first.parameters, 0));
  }
}

// Results of a step: finite, over the targets of all ranks, and readable after the next step.
void check_results(const Subject& subject, Violations& violations) {
  const int data_ranks = subject.options.mesh.data;
  double targets = 0;
  for (int rank = 0; rank < data_ranks * CheckedPlayer::kMicroBatches; ++rank) {
    targets += static_cast<double>(
        subject.options.work.batch(CheckedPlayer::kRows, static_cast<uint64_t>(rank)).target_count);
  }
  violations.take(subject.play([&](CheckedPlayer& p) {
    p.attach();
    const StepResult result = p.strategy().forward_backward(p.share(0));
    const double loss = result.loss.item<double>();
    p.expect(std::isfinite(loss) && loss > 0, concat("loss of the first step is ", loss));
    p.expect(result.target_count.item<double>() == targets,
             concat("target_count is ", result.target_count.item<double>(),
                    ", the micro-batches of all ranks have ", targets));
    p.strategy().optimizer_step(0.1);
    p.train(1);
    p.evaluate(2);
    p.expect(result.loss.item<double>() == loss, "a later step overwrites the loss of an earlier");
  }));
}

void check_gradients(const Subject& subject, Violations& violations) {
  const auto expected = initial_parameters(subject.options.work.model);
  const auto results = subject.play([](CheckedPlayer& p) {
    p.attach();
    p.train(0);  // makes optimizer state and old gradients
    p.forward_backward(p.share(1));
    p.result().norm = {p.strategy().grad_norm_squared().item<double>()};
    p.read_gradients();
  });
  violations.take(results);
  double mean = 0;
  for (const RankResult& result : results) {
    for (const auto& [name, value] : expected) {
      const auto found = result.gradients.find(name);
      violations.expect(found != result.gradients.end() && found->second.sizes() == value.sizes(),
                        "the gradient of " + name + " is not visited in its full shape");
    }
    mean += squared_norm(result.gradients) / static_cast<double>(results.size());
  }
  violations.add("grad_norm_squared() beside the visited gradients (mean over ranks)",
                 difference(results.front().norm, {mean}, kNormTolerance));
}

// scale_gradients() multiplies for one step; the given learning rate is used.
void check_scaling(const Subject& subject, Violations& violations) {
  auto play = [&](const Changes& options) {
    const auto results = subject.play([&](CheckedPlayer& p) {
      p.attach(make_sgd({}));
      p.train(0, options);
      p.read_parameters();
    });
    violations.take(results);
    return results.front().parameters;
  };
  const double rate = subject.options.learning_rate;
  const auto start = play({.learning_rate = 0});
  const auto once = minus(play({.learning_rate = rate}), start);
  violations.expect(squared_norm(once) > 0, "a step of SGD changes no parameter");
  const auto doubled = minus(play({.learning_rate = 2 * rate, .factors = {0.5}}), start);
  violations.add("update with twice the learning rate and half the gradient",
                 difference(doubled, once, 1e-3));
  const auto twice = minus(play({.learning_rate = rate / 2, .factors = {8, 0.25}}), start);
  violations.add("update with half the learning rate after scaling by 8 and by 1/4",
                 difference(twice, once, 1e-3));
  const auto results = subject.play([&](CheckedPlayer& p) {
    p.attach(make_sgd({}));
    p.train(0, {.factors = {0}});
    p.train(0);
    p.read_parameters();
  });
  violations.add("update after a step whose gradients were scaled by 0",
                 difference(minus(results.front().parameters, start), once, 1e-3));
}

void check_loss_scale(const Subject& subject, Violations& violations) {
  constexpr double kScale = 1024;
  auto play = [&](const Changes& options) {
    const auto results = subject.play([&](CheckedPlayer& p) {
      p.attach();
      for (uint64_t step = 0; step < 2; ++step) p.train(step, options);
      p.read_parameters();
    });
    violations.take(results);
    return results.front();
  };
  const RankResult plain = play({});
  RankResult scaled = play({.factors = {1 / kScale}, .loss_scale = kScale});
  violations.add("loss under a loss scale", difference(scaled.loss, plain.loss, 1e-6));
  for (double& norm : scaled.norm) norm /= kScale;
  violations.add("gradient norm over the loss scale", difference(scaled.norm, plain.norm, 1e-5));
  violations.add("parameters after unscaled steps",
                 difference(scaled.parameters, plain.parameters, 1e-5));
}

// Scripts that must end with equal bits.
void check_same(const Subject& subject, Violations& violations, const std::string& what,
                const Script& with, const Script& without) {
  const auto expected = subject.play(without), actual = subject.play(with);
  violations.take(actual);
  for (size_t rank = 0; rank < actual.size(); ++rank) {
    violations.add("parameters after " + what,
                   difference(actual[rank].parameters, expected[rank].parameters, 0));
  }
}

void check_evaluation(const Subject& subject, Violations& violations) {
  auto script = [](bool evaluates) {
    return [evaluates](CheckedPlayer& p) {
      p.attach();
      if (evaluates) p.evaluate(7);
      p.train(0);
      if (evaluates) p.evaluate(8);
      if (evaluates) p.evaluate(8);
      p.train(1);
      p.read_parameters();
      const auto& loss = p.result().loss;
      p.expect(!evaluates || loss[2] == loss[3], "two evaluations of one batch differ");
    };
  };
  check_same(subject, violations, "evaluations between steps", script(true), script(false));
}

void check_skip(const Subject& subject, Violations& violations) {
  auto script = [](bool skips) {
    return [skips](CheckedPlayer& p) {
      p.attach();
      p.train(0);
      if (skips) p.train(9, {.skip = true});
      p.train(1);
      p.read_parameters();
    };
  };
  check_same(subject, violations, "a skipped step and another", script(true), script(false));
  check_same(
      subject, violations, "a skipped step",
      [&](CheckedPlayer& p) {
        p.attach();
        p.train(0, {.skip = true});
        p.read_parameters();
      },
      [&](CheckedPlayer& p) {
        p.attach();
        p.read_parameters();
      });
}

void check_zero_rate(const Subject& subject, Violations& violations) {
  const auto expected = initial_parameters(subject.options.work.model);
  const auto results = subject.play([](CheckedPlayer& p) {
    p.attach();
    for (uint64_t step = 0; step < 2; ++step) p.train(step, {.learning_rate = 0});
    p.read_parameters();
  });
  violations.add("parameters after steps with learning rate 0",
                 difference(results.front().parameters, expected, 1e-6));
}

void check_learning(const Subject& subject, Violations& violations) {
  const auto results = subject.play([](CheckedPlayer& p) {
    p.attach();
    for (int i = 0; i < 12; ++i) p.train(0);
    p.evaluate(0);
  });
  const std::vector<double>& loss = results.front().loss;
  violations.expect(
      loss.back() < 0.95 * loss.front(),
      concat("12 steps on one batch take the loss from ", loss.front(), " to ", loss.back()));
}

void check_unsupervised(const Subject& subject, Violations& violations) {
  const auto results = subject.play([](CheckedPlayer& p) {
    p.attach();
    std::vector<MicroBatch> batches = p.share(0);
    for (MicroBatch& batch : batches) batch = unsupervised(batch);
    p.train(batches);
    p.train(1);
    p.read_parameters();
  });
  violations.add("loss of a step without targets", difference({results[0].loss[0]}, {0}, 0));
  violations.add("gradient norm of a step without targets",
                 difference({results[0].norm[0]}, {0}, 0));
  violations.expect(std::isfinite(squared_norm(results[0].parameters)),
                    "a step without targets makes parameters infinite");
}

// Memory is counted completely, and does not grow with steps.
void check_memory(const Subject& subject, Violations& violations) {
  std::vector<int64_t> parameters(static_cast<size_t>(subject.options.mesh.ranks()));
  violations.take(subject.play([&](CheckedPlayer& p) {
    p.attach();
    auto held = [&] {
      const StrategyMemory m = p.strategy().memory();
      const std::vector<int64_t> parts{m.parameter_bytes, m.gradient_bytes, m.optimizer_bytes,
                                       m.buffer_bytes,    m.host_bytes,     m.pinned_bytes};
      p.expect(*std::min_element(parts.begin(), parts.end()) >= 0, "memory() is negative");
      p.expect(m.pinned_bytes <= m.host_bytes, "memory(): more pinned bytes than host bytes");
      parameters[static_cast<size_t>(p.rank())] =
          m.parameter_bytes + m.optimizer_bytes + m.host_bytes;
      return parts;
    };
    p.train(0);
    const auto before = held();
    for (uint64_t step = 1; step < 4; ++step) p.train(step);
    p.expect(held() == before, "memory() grows from step to step");
  }));
  const int64_t element = 2;  // no parameter dtype is below 16 bits
  int64_t least = 0, sum = 0;
  for (const auto& [name, value] : initial_parameters(subject.options.work.model)) {
    least += element * value.numel();
  }
  for (int64_t bytes : parameters) sum += bytes;
  violations.expect(sum >= least, concat("memory() of all ranks counts ", sum,
                                         " bytes of parameters and optimizer, the model has ",
                                         least, " in 16 bit"));
}

std::vector<std::pair<std::string, Check>> checks_of(Promise promise) {
  std::vector<std::pair<std::string, Check>> checks{{"misuse", check_misuse},
                                                    {"parameters", check_parameters},
                                                    {"ranks agree", check_ranks},
                                                    {"results", check_results},
                                                    {"gradients", check_gradients},
                                                    {"scaling", check_scaling},
                                                    {"loss scale", check_loss_scale},
                                                    {"evaluation", check_evaluation},
                                                    {"skip", check_skip},
                                                    {"learning rate 0", check_zero_rate},
                                                    {"learning", check_learning},
                                                    {"unsupervised", check_unsupervised},
                                                    {"memory", check_memory},
                                                    {"communication", check_dry_communication},
                                                    {"state", check_state}};
  if (promise != Promise::kContract) checks.emplace_back("trajectory", check_trajectory);
  if (promise == Promise::kExact) {
    checks.emplace_back("exact gradients", check_exact_gradients);
    checks.emplace_back("accumulation", check_accumulation);
  }
  return checks;
}

}  // namespace

std::vector<std::string> conformance_checks(Promise promise) {
  std::vector<std::string> names;
  for (const auto& [name, check] : checks_of(promise)) names.push_back(name);
  return names;
}

std::vector<Violation> check_conformance(const StrategyFactory& make,
                                         const ConformanceOptions& options) {
  std::vector<Violation> all;
  const Subject subject{make, options};
  for (const auto& [name, check] : checks_of(options.promise)) {
    const auto& only = options.only;
    if (!only.empty() && std::find(only.begin(), only.end(), name) == only.end()) continue;
    Violations violations;
    try {
      check(subject, violations);
    } catch (const std::exception& error) {
      violations.expect(false, concat("throws: ", error.what()));
    }
    for (const std::string& text : violations.texts()) all.push_back({name, text});
  }
  return all;
}

std::string to_text(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& violation : violations)
    text += violation.check + ": " + violation.text + "\n";
  return text;
}

}  // namespace tessera::testing
