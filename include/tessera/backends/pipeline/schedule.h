// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// In which order the stages of a pipeline work on the micro-batches of a step: pure functions.
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// One micro-batch through one chunk of a stage's blocks. The model is cut into stages * chunks
/// parts; part p lies on stage p % stages as its chunk p / stages.
struct PipelineAction {
  /// With a shared vocabulary the first and the last block lie on no stage but on all of them:
  /// embedding, head (loss, both ways) and the embedding's backward are passes of all stages at
  /// once.
  /// Where backward is split, kBackward gives the gradient of the chunk's input alone, and
  /// kWeights those of its weights.
  enum class Kind { kForward, kBackward, kEmbed, kHead, kEmbedBackward, kWeights };
  Kind kind = Kind::kForward;  ///< which pass is run
  int micro_batch = 0;         ///< the micro-batch's number in the step, from 0
  int chunk = 0;               ///< the chunk's number on the stage, from 0

  /// Whether every stage takes part in it.
  bool of_all_stages() const {
    return kind == Kind::kEmbed || kind == Kind::kHead || kind == Kind::kEmbedBackward;
  }
  bool operator==(const PipelineAction&) const = default;  ///< compares all members
};
std::string to_string(const PipelineAction& action);  ///< "forward of micro-batch 3 in chunk 1"

/// Who does what in which order in one step.
struct PipelineSchedule {
  int micro_batches = 0;           ///< micro-batches of one step
  int chunks = 1;                  ///< pieces of the model on each stage
  bool shared_vocabulary = false;  ///< whether the first and the last block lie on all stages
  bool splits_backward = false;    ///< whether weight gradients are actions of their own
  /// By stage: its actions in order. Within one chunk micro-batches come in increasing order, both
  /// ways, and passes of all stages come in the same order on all of them.
  std::vector<std::vector<PipelineAction>> stages;

  /// The number of stages.
  int stage_count() const { return static_cast<int>(stages.size()); }
  int part_count() const { return stage_count() * chunks; }  ///< parts that the model is cut into
  /// The part of the model that the action runs on its stage.
  int part(int stage, const PipelineAction& action) const {
    return action.chunk * stage_count() + stage;
  }
};

/// All forwards, then all backwards: every micro-batch is in flight at once (Huang et al. 2019).
PipelineSchedule gpipe(int stages, int micro_batches);

/// Stage s starts with min(stages - 1 - s, micro_batches) forwards, then alternates one forward
/// with one backward, so that at most stages - s micro-batches are in flight (PipeDream-Flush,
/// Narayanan et al. 2021).
PipelineSchedule one_f_one_b(int stages, int micro_batches);

/// 1f1b whose backward is split: the gradient of the input goes on at once, and stage s makes
/// weight gradients s micro-batches later, so that they fill what would be its bubble at the end.
/// At most min(stages, micro_batches) micro-batches are between their forward and their weight
/// gradients, on every stage (ZB-H1, Qi et al. 2023).
PipelineSchedule zero_bubble_h1(int stages, int micro_batches);

/// Each stage has several chunks of the model, which shortens the bubble by that factor (Narayanan
/// et al. 2021). Micro-batches go through in groups: every chunk runs a whole group before the next
/// chunk does. Groups have `stages` micro-batches; a remainder is spread over the first groups, and
/// fewer micro-batches than stages form one group, all of whose forwards precede its backwards.
PipelineSchedule interleaved_one_f_one_b(int stages, int micro_batches, int chunks);

///@{
/// The same two with a vocabulary that all stages share (Yeung et al. 2024, in lockstep): between
/// two passes of the head every stage runs at most one forward and one backward, and no stage waits
/// but for the pipeline to fill and to drain: the bubble is that of the blocks alone. Under 1f1b
/// the stage d before the last holds at most d + 1 + ceil(d / 2) micro-batches.
PipelineSchedule shared_gpipe(int stages, int micro_batches);
PipelineSchedule shared_one_f_one_b(int stages, int micro_batches);
///@}

/// By name: gpipe, 1f1b, zbh1, interleaved. Throws Error(kInvalidArgument) for other names, for
/// chunks that the schedule does not have, and for zbh1 and interleaved with a shared vocabulary.
PipelineSchedule make_schedule(const std::string& name, int stages, int micro_batches, int chunks,
                               bool shared_vocabulary = false);

/// Whether backward follows the loss at once, by name: else its stage may work on other
/// micro-batches in between, and the loss block, which runs both ways in forward, shares no unit.
bool backward_follows_loss(const std::string& name);

/// Whether weight gradients are actions of their own, by name.
bool splits_backward(const std::string& name);

/// What an evaluation needs, in the same order.
PipelineSchedule forwards_of(const PipelineSchedule& schedule);

/// Idle share of a step whose stages all cost the same and whose messages cost nothing:
/// (S-1)/(chunks*M + S-1). Interleaved: exact when stages divide micro_batches.
double bubble_share(int stages, int micro_batches, int chunks = 1);

/// The same of zero_bubble_h1(), where forward and both halves of backward take equal times:
/// (2 (S-1) - min(S, M) + 1) idle passes beside 3 M.
double split_bubble_share(int stages, int micro_batches);

/// What an action waits for, or hands on: the result of one action for the next one. The tensor is
/// the output of a forward, or the gradient of the input of a backward.
struct PipelineMessage {
  int source = 0, destination = 0;  ///< stages
  PipelineAction action;            ///< the destination's
  int boundary = 0;                 ///< crossed: between parts boundary - 1 and boundary

  bool operator==(const PipelineMessage&) const = default;  ///< compares all members
};
/// Nothing for the first part's forward, the last part's backward, weight gradients and passes of
/// all stages.
std::optional<PipelineMessage> input_of(const PipelineSchedule& schedule, int stage,
                                        const PipelineAction& action);
/// Nothing for the last part's forward, the first part's backward, weight gradients and passes of
/// all stages.
std::optional<PipelineMessage> output_of(const PipelineSchedule& schedule, int stage,
                                         const PipelineAction& action);

}  // namespace tessera
