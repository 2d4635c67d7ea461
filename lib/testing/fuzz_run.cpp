// SPDX-License-Identifier: MIT
#include "lib/testing/fuzz_run.h"

#include <ATen/ATen.h>
#include <c10/core/AutogradState.h>

#include <algorithm>
#include <atomic>

#include "lib/core/number_text.h"
#include "lib/optim/optimizer_table.h"
#include "lib/testing/fuzz_moments.h"
#include "lib/testing/staged_communicator.h"
#include "tessera/comm/local.h"
#include "tessera/core/error.h"

namespace tessera::testing {
namespace {

using Batches = std::vector<MicroBatch>;

bool lists(const std::string& steps, size_t step) {
  return steps.find(static_cast<char>('0' + step)) != std::string::npos;
}

void count(MicroBatch& batch) {
  batch.sample_count = batch.input_ids.size(0);
  batch.token_count = batch.labels.numel();
  batch.target_count = batch.labels.ne(kIgnoredLabel).sum().item<int64_t>();
}

// Disturbs this rank's input in a case that must be rejected.
Batches disturbed(Batches batches, const std::string& how, const DeviceMesh& mesh) {
  const bool first_data = mesh.coordinate(Axis::kData) == 0;
  if (how == "target_count" && first_data) batches.front().target_count = 0;
  if (how == "micro_batches" && first_data) batches.push_back(batches.front());
  const bool other = mesh.coordinate(Axis::kPipeline) + mesh.coordinate(Axis::kTensor) > 0;
  if (how == "batch" && other) {
    MicroBatch& batch = batches.front();
    batch.labels = batch.labels.flip(0).contiguous();
    batch.input_ids = batch.input_ids.flip(0).contiguous();
  }
  return batches;
}

// Sum over a micro-batch's targets.
at::Tensor cross_entropy(const at::Tensor& scores, const MicroBatch& batch) {
  at::Tensor labels = batch.labels.flatten();
  if (batch.head_positions.defined()) labels = labels.index_select(0, batch.head_positions);
  return at::cross_entropy_loss(scores.to(at::kDouble).flatten(0, -2), labels, {},
                                at::Reduction::Sum, kIgnoredLabel);
}

std::vector<StateTensor> moments_in(std::vector<StateTensor> state) {
  std::erase_if(state, [](const StateTensor& piece) { return !piece.kind.starts_with("exp_avg"); });
  return state;
}

class Rank {
 public:
  Rank(const FuzzCase& c, const FuzzModel& model, const FuzzWork& work, Player& player, bool quiet)
      : c_(c), model_(model), work_(work), player_(player), quiet_(quiet) {}

  // kept: moments by step, of all ranks; empty: not recorded.
  RankRecord run(const RunPart& part, std::vector<WholeState>& kept) {
    Strategy& strategy = player_.strategy();
    if (part.from != nullptr) {
      part.from->give(strategy.state());
      strategy.state_restored();
    }
    record_.initial = parameters_of(strategy);
    StepOptions options{.learning_rate = c_.learning_rate,
                        .max_norm = c_.max_norm,
                        .calls = c_.calls,
                        .visits = !quiet_};
    if (c_.loss_scale > 0) {
      options.loss_scale = c_.loss_scale;
      strategy.set_loss_scale(at::full({}, c_.loss_scale, at::kFloat));
    }
    for (size_t step = part.first; step < std::min(part.end, work_.steps.size()); ++step) {
      if (lists(c_.evaluate, step)) evaluate(step);
      options.skip = lists(c_.skip, step);
      record_.steps.push_back(player_.train(share(work_.steps[step]), options));
      if (!kept.empty()) kept[step].take(moments_in(strategy.state()));
    }
    if (part.to != nullptr) part.to->take(strategy.state());
    record_.final = parameters_of(strategy);
    evaluate(work_.steps.size());
    record_.memory = strategy.memory();
    return std::move(record_);
  }

 private:
  Batches share(const GlobalBatch& batch) const {
    const Batches mine =
        disturbed(batch[static_cast<size_t>(player_.data_rank())], c_.refuse, player_.mesh());
    const at::Device device = player_.world().device();
    if (device.is_cpu()) return mine;
    Batches moved;
    for (const MicroBatch& micro_batch : mine) {
      moved.push_back(micro_batch.to(device));
      if (model_.seeds) model_.seeds->add_copy(micro_batch, moved.back());
    }
    return moved;
  }
  void evaluate(size_t steps_done) {
    EvaluationRecord& evaluation =
        record_.evaluations.emplace_back(player_.evaluate(share(work_.evaluation)));
    evaluation.steps_done = steps_done;
    const bool whole_rows = player_.mesh().extent(Axis::kContext) == 1;
    if (model_.gives_scores && !quiet_ && whole_rows) evaluation.loss_of_scores = loss_of_scores();
  }
  // Mean over the targets of all data ranks.
  double loss_of_scores() {
    const Batches batches = share(work_.evaluation);
    const std::vector<at::Tensor> scores = player_.strategy().predict(batches);
    check(scores.size() == batches.size(), ErrorCode::kInternal, "predict() gave ", scores.size(),
          " scores for ", batches.size(), " micro-batches");
    const at::Tensor sums = at::zeros({2}, at::dtype(at::kDouble).device(player_.world().device()));
    for (size_t i = 0; i < batches.size(); ++i) {
      sums[0] += cross_entropy(scores[i], batches[i]);
      sums[1] += batches[i].labels.ne(kIgnoredLabel).sum();
    }
    player_.mesh().axis(Axis::kData).all_reduce(sums).wait();
    const double targets = sums[1].item<double>();
    return targets > 0 ? sums[0].item<double>() / targets : 0;
  }

  const FuzzCase& c_;
  const FuzzModel& model_;
  const FuzzWork& work_;
  Player& player_;
  bool quiet_;
  RankRecord record_;
};

}  // namespace

OptimizerFactory optimizer_of(const FuzzCase& c) {
  const OptimizerRow* row = find_optimizer(c.optimizer);
  check(row != nullptr, ErrorCode::kInvalidArgument, "fuzz: no optimizer is called ", c.optimizer);
  OptimizerSettings settings{.learning_rate = c.learning_rate,
                             .weight_decay = c.weight_decay,
                             .beta1 = c.beta1,
                             .beta2 = c.beta2,
                             .epsilon = c.epsilon,
                             .moments = moments_of(c)};
  if (c.optimizer == "sgd") {
    settings.arguments = {"momentum=" + exact_text(kOracleMomentum)};
  } else if (c.optimizer == "muon") {
    settings.arguments = {"momentum=" + exact_text(kOracleMuonMomentum),
                          "lr=" + exact_text(kOracleMuonRate * c.learning_rate)};
  } else if (settings.moments == MomentsDtype::kInt8) {
    settings.arguments = {concat("min_8bit_size=", c.min_8bit_size)};
  }
  return row->make(settings);
}

FuzzWork make_work(const FuzzCase& c, const FuzzModel& model) {
  FuzzWork work;
  std::mt19937_64 random(c.seed * 7919 + 17);
  const auto global = [&](size_t step, bool training) {
    GlobalBatch batch(static_cast<size_t>(c.mesh.data));
    for (int m = 0; m < c.accumulation; ++m) {
      for (size_t rank = 0; rank < batch.size(); ++rank) {
        const auto size = [&](int64_t most) {
          return c.ragged ? 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most)) : most;
        };
        const int64_t rows = size(c.rows), length = size(c.length);
        MicroBatch made = model.batch(rows, length, random());
        const bool nothing = (c.untargeted == "ranks" && rank == step % batch.size()) ||
                             (c.untargeted == "micro_batches" && random() % 2 == 0) ||
                             (c.untargeted == "step" && step == 0 && training);
        if (nothing) made.labels.fill_(kIgnoredLabel);
        if (c.untargeted == "rows") made.labels[0].fill_(kIgnoredLabel);
        count(made);
        batch[rank].push_back(std::move(made));
      }
    }
    return batch;
  };
  for (int step = 0; step < c.steps; ++step) {
    work.steps.push_back(global(static_cast<size_t>(step), true));
  }
  work.evaluation = global(0, false);
  return work;
}

bool disturbs(const FuzzCase& c, const FuzzWork& work) {
  const MicroBatch& first = work.steps.front().front().front();
  if (c.refuse == "target_count") return first.target_count > 0;
  if (c.refuse == "batch") {
    const bool same =
        first.labels.flip(0).equal(first.labels) && first.input_ids.flip(0).equal(first.input_ids);
    return c.mesh.pipeline * c.mesh.tensor > 1 && !same;
  }
  if (c.refuse == "weights" && (c.model != "toy" || c.tie == "last")) return false;
  if (c.refuse == "layout" && c.model != "toy") return false;
  return c.mesh.data > 1;
}

RunRecord run_case(const FuzzTarget& target, const FuzzCase& c, const FuzzModel& model,
                   const FuzzWork& work, bool quiet, const RunPart& part) {
  RunRecord result;
  result.other_kernels = !target.device.is_cpu();
  result.ranks.resize(static_cast<size_t>(c.ranks()));
  std::atomic<int> attached{0};
  std::vector<WholeState> kept(quiet || c.moments == "fp32" ? 0 : work.steps.size());
  try {
    run_local_ranks(c.ranks(), [&](Communicator& local) {
      StagedCommunicator staged(local, target.device);
      Communicator& world = target.device.is_cpu() ? local : staged;
      // Otherwise all ranks' backward passes would share the device's autograd thread, and
      // deadlock.
      c10::AutogradState::get_tls_state().set_multithreading_enabled(target.device.is_cpu());
      Player player(world, c.mesh,
                    [&](const DeviceMesh& mesh) { return target.make(c.parallel, mesh); });
      const ModelSpec spec = model.of_rank ? model.of_rank(player.data_rank()) : model.model;
      player.attach(spec, c.seed, optimizer_of(c));
      ++attached;
      result.ranks[static_cast<size_t>(world.rank())] =
          Rank(c, model, work, player, quiet).run(part, kept);
    });
    for (const WholeState& step : kept) {
      const std::string problem = step.problem();
      check(problem.empty(), ErrorCode::kInternal, problem);
      result.moments.push_back(step.tensors());
    }
  } catch (const Error& error) {
    result.error = error.what();
    result.invalid_argument = error.code() == ErrorCode::kInvalidArgument;
  } catch (const std::exception& error) {
    result.error = error.what();
  }
  result.before_attached = attached == 0;
  return result;
}

FuzzWork dealt_out(const FuzzWork& work, int data_ranks) {
  const auto deal = [&](const GlobalBatch& batch) {
    Batches all;
    for (const Batches& of_rank : batch) all.insert(all.end(), of_rank.begin(), of_rank.end());
    GlobalBatch dealt(static_cast<size_t>(data_ranks));
    const size_t share = all.size() / dealt.size();
    for (size_t i = 0; i < all.size(); ++i) dealt[i / share].push_back(all[i]);
    return dealt;
  };
  FuzzWork dealt{.evaluation = deal(work.evaluation)};
  for (const GlobalBatch& step : work.steps) dealt.steps.push_back(deal(step));
  return dealt;
}

}  // namespace tessera::testing
