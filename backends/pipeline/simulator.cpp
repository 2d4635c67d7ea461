// SPDX-License-Identifier: MIT
#include "backends/pipeline/simulator.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "backends/pipeline/stage_schedule.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using Kind = PipelineAction::Kind;

// Action that must precede this kind on the same stage.
std::optional<Kind> predecessor(const PipelineSchedule& schedule, int stage, Kind kind) {
  const bool shared = schedule.shared_vocabulary;
  const bool first = stage == 0, last = stage + 1 == schedule.stage_count();
  switch (kind) {
    case Kind::kEmbed:
      return std::nullopt;
    case Kind::kForward:
      return shared && first ? std::optional(Kind::kEmbed) : std::nullopt;
    case Kind::kHead:
      return last ? std::optional(Kind::kForward) : std::nullopt;
    case Kind::kBackward:
      return shared && last ? Kind::kHead : Kind::kForward;
    case Kind::kEmbedBackward:
      return first ? Kind::kBackward : Kind::kEmbed;
    case Kind::kWeights:
      return Kind::kBackward;
  }
  return std::nullopt;
}

// Most micro-batches that one stage holds.
struct Held {
  int in_flight = 0, deferred = 0;
};

// Checks one stage: every micro-batch of every chunk once forward, once backward, in order.
Held check_stage(const PipelineSchedule& schedule, int stage, bool with_backwards) {
  std::map<std::pair<Kind, int>, int> done;  // by kind and chunk: micro-batches done, in order
  const Kind ends = schedule.splits_backward ? Kind::kWeights : Kind::kBackward;
  Held now, most;
  for (const auto& action : schedule.stages[static_cast<size_t>(stage)]) {
    check(action.chunk >= 0 && action.chunk < schedule.chunks, ErrorCode::kInvalidArgument,
          "stage ", stage, ": ", to_string(action), ", but there are ", schedule.chunks, " chunks");
    int& next = done[{action.kind, action.chunk}];
    check(action.micro_batch == next, ErrorCode::kInvalidArgument, "stage ", stage, ": ",
          to_string(action), " where micro-batch ", next, " is next");
    ++next;
    const auto before = predecessor(schedule, stage, action.kind);
    check(!before || next <= done[{before.value_or(action.kind), action.chunk}],
          ErrorCode::kInvalidArgument, "stage ", stage, ": ", to_string(action),
          " comes before its ",
          to_string({before.value_or(action.kind), action.micro_batch, action.chunk}));
    now.in_flight += (action.kind == Kind::kForward ? 1 : 0) - (action.kind == ends ? 1 : 0);
    if (schedule.splits_backward) {
      now.deferred += (action.kind == Kind::kBackward ? 1 : 0) - (action.kind == ends ? 1 : 0);
    }
    most.in_flight = std::max(most.in_flight, now.in_flight);
    most.deferred = std::max(most.deferred, now.deferred);
  }
  for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
    const int forwards = done[{Kind::kForward, chunk}], backwards = done[{Kind::kBackward, chunk}];
    check(forwards == schedule.micro_batches && (!with_backwards || backwards == forwards),
          ErrorCode::kInvalidArgument, "stage ", stage, ", chunk ", chunk, ": ", forwards,
          " forwards and ", backwards, " backwards of ", schedule.micro_batches, " micro-batches");
    const int weights = done[{Kind::kWeights, chunk}],
              expected = schedule.splits_backward ? backwards : 0;
    check(weights == expected, ErrorCode::kInvalidArgument, "stage ", stage, ", chunk ", chunk,
          ": weight gradients of ", weights, " micro-batches where ", expected, " are expected");
  }
  const int passes = schedule.shared_vocabulary ? schedule.micro_batches : 0;
  for (Kind kind : {Kind::kEmbed, Kind::kHead, Kind::kEmbedBackward}) {
    const int expected = kind == Kind::kEmbedBackward && !with_backwards ? 0 : passes;
    check(done[{kind, 0}] == expected, ErrorCode::kInvalidArgument, "stage ", stage, ": ",
          done[{kind, 0}], " passes of all stages where ", expected, " are expected, the last ",
          to_string({kind, done[{kind, 0}] - 1}));
  }
  return most;
}

// Checks that passes of all stages have the same order everywhere.
void check_passes(const PipelineSchedule& schedule) {
  auto passes_of = [&](int stage) {
    auto actions = schedule.stages[static_cast<size_t>(stage)];
    std::erase_if(actions, [](const auto& action) { return !action.of_all_stages(); });
    return actions;
  };
  const auto expected = passes_of(0);
  for (int s = 1; s < schedule.stage_count(); ++s) {
    const auto passes = passes_of(s);
    for (size_t i = 0; i < passes.size(); ++i) {
      check(passes[i] == expected.at(i), ErrorCode::kInvalidArgument, "stage ", s, " runs the ",
            to_string(passes[i]), " where stage 0 runs the ", to_string(expected[i]));
    }
  }
}

class Player {
 public:
  Player(const PipelineSchedule& schedule, const SimulationOptions& options)
      : schedule_(schedule), options_(options), stages_(schedule.stages.size()) {
    post_receives();
  }

  Simulation play() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t s = 0; s < stages_.size(); ++s) {
        while (advance(static_cast<int>(s))) moved = true;
      }
    }
    check_all_done();
    Simulation result;
    for (const Stage& stage : stages_) {
      result.busy.push_back(stage.busy);
      result.makespan = std::max(result.makespan, stage.end);
    }
    return result;
  }

 private:
  // Identity of a message: the part boundary and micro-batch that it crosses, and its direction.
  using Key = std::tuple<Kind, int, int>;
  static Key key_of(const PipelineMessage& message) {
    return {message.action.kind, message.boundary, message.action.micro_batch};
  }

  struct Stage {
    size_t slot = 0;                  // index of the current action
    std::vector<double> begun = {0};  // by turn: start time on the stage
    bool sending = false;             // computed, but the message is not received yet
    double end = 0, busy = 0;
  };

  void post_receives() {
    for (int to = 0; to < schedule_.stage_count(); ++to) {
      for (const auto& arrivals : stage_schedule(schedule_, to).arrivals) {
        for (const auto& arrival : arrivals) {
          posted_[key_of(arrival.message)] =
              std::max(arrival.open, arrival.due - options_.receives_ahead);
        }
      }
    }
  }

  double cost(int stage, const PipelineAction& action) const {
    SimulationOptions::Cost cost;
    const size_t given = options_.costs.size();
    const bool by_part = given == static_cast<size_t>(schedule_.part_count());
    if (given > 0) {
      cost = options_.costs[static_cast<size_t>(by_part ? schedule_.part(stage, action) : stage)];
    }
    const double backward = cost.backward - (schedule_.splits_backward ? cost.weights : 0);
    const double time = action.kind == Kind::kForward   ? cost.forward
                        : action.kind == Kind::kWeights ? cost.weights
                                                        : backward;
    return by_part && given > 0 ? time : time / schedule_.chunks;
  }

  bool advance(int s) {
    Stage& stage = stages_[static_cast<size_t>(s)];
    const auto& actions = schedule_.stages[static_cast<size_t>(s)];
    if (stage.slot == actions.size()) return false;
    const PipelineAction& action = actions[stage.slot];
    if (action.of_all_stages()) return meet(action);
    if (!stage.sending && !compute(stage, s, action)) return false;
    return send(stage, s, action);
  }

  // Runs a pass of all stages once every stage has reached it.
  bool meet(const PipelineAction& action) {
    double begin = 0;
    for (size_t s = 0; s < stages_.size(); ++s) {
      const auto& actions = schedule_.stages[s];
      const size_t slot = stages_[s].slot;
      if (slot == actions.size() || !(actions[slot] == action)) return false;
      begin = std::max(begin, stages_[s].begun.back());
    }
    const double cost = action.kind == Kind::kEmbed  ? options_.embed
                        : action.kind == Kind::kHead ? options_.head
                                                     : options_.embed_backward;
    for (Stage& stage : stages_) {
      stage.end = begin + cost;
      stage.busy += cost;
      ++stage.slot;
      stage.begun.push_back(stage.end);
    }
    return true;
  }

  bool compute(Stage& stage, int s, const PipelineAction& action) {
    double begin = stage.begun.back();
    if (const auto input = input_of(schedule_, s, action)) {
      const auto arrival = arrivals_.find(key_of(*input));
      if (arrival == arrivals_.end()) return false;
      begin = std::max(begin, arrival->second);
    }
    stage.end = begin + cost(s, action);
    stage.busy += cost(s, action);
    return true;
  }

  bool send(Stage& stage, int s, const PipelineAction& action) {
    stage.sending = true;
    double free = stage.end;
    if (const auto output = output_of(schedule_, s, action)) {
      double departure = stage.end;
      if (options_.blocking_sends && output->destination != s) {
        const Stage& receiver = stages_[static_cast<size_t>(output->destination)];
        const auto posted = static_cast<size_t>(posted_.at(key_of(*output)));
        if (receiver.begun.size() <= posted) return false;
        departure = std::max(departure, receiver.begun[posted]);
        free = departure + options_.transfer;
      }
      arrivals_[key_of(*output)] = departure + options_.transfer;
    }
    stage.sending = false;
    ++stage.slot;
    stage.begun.push_back(free);
    return true;
  }

  void check_all_done() const {
    std::string stuck;
    for (size_t s = 0; s < stages_.size(); ++s) {
      const Stage& stage = stages_[s];
      if (stage.slot == schedule_.stages[s].size()) continue;
      stuck += concat(stuck.empty() ? "" : "; ", "stage ", s,
                      stage.sending ? " in the send after " : " before ",
                      to_string(schedule_.stages[s][stage.slot]));
    }
    check(stuck.empty(), ErrorCode::kInvalidArgument, "the schedule deadlocks: ", stuck);
  }

  const PipelineSchedule& schedule_;
  const SimulationOptions& options_;
  std::vector<Stage> stages_;
  std::map<Key, int> posted_;       // the receiver's slot that posts the receive
  std::map<Key, double> arrivals_;  // arrival times of messages in flight
};

}  // namespace

double Simulation::bubble() const {
  const double work = std::accumulate(busy.begin(), busy.end(), 0.0);
  return 1 - work / (makespan * static_cast<double>(busy.size()));
}

Simulation simulate(const PipelineSchedule& schedule, const SimulationOptions& options) {
  const size_t given = options.costs.size();
  check(given == 0 || given == schedule.stages.size() ||
            given == static_cast<size_t>(schedule.part_count()),
        ErrorCode::kInvalidArgument, given, " costs for ", schedule.stages.size(), " stages of ",
        schedule.chunks, " chunks; give one a stage or one a part");
  bool with_backwards = false;
  for (const auto& actions : schedule.stages) {
    for (const auto& action : actions) with_backwards |= action.kind == Kind::kBackward;
  }
  std::vector<Held> held;
  for (int s = 0; s < schedule.stage_count(); ++s) {
    held.push_back(check_stage(schedule, s, with_backwards));
  }
  check_passes(schedule);
  Simulation result = Player(schedule, options).play();
  for (const Held& most : held) {
    result.most_in_flight.push_back(most.in_flight);
    result.most_deferred.push_back(most.deferred);
  }
  return result;
}

}  // namespace tessera
