// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Pipeline schedules: the order of forward and backward passes on each stage, as pure functions.
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// One pass of one micro-batch through one chunk of a stage's blocks. The model has stages * chunks
/// parts: part p is chunk p / stages of stage p % stages.
struct PipelineAction {
  /// With a shared vocabulary kEmbed, kHead (loss, forward and backward) and kEmbedBackward run on
  /// all stages at once.
  /// With a split backward, kBackward computes the gradient of the chunk's input and kWeights those
  /// of its weights.
  enum class Kind { kForward, kBackward, kEmbed, kHead, kEmbedBackward, kWeights };
  Kind kind = Kind::kForward;  ///< which pass is run
  int micro_batch = 0;         ///< index of the micro-batch in the step, from 0
  int chunk = 0;               ///< index of the chunk on the stage, from 0

  /// Whether all stages run it together.
  bool of_all_stages() const {
    return kind == Kind::kEmbed || kind == Kind::kHead || kind == Kind::kEmbedBackward;
  }
  bool operator==(const PipelineAction&) const = default;  ///< compares all members
};
std::string to_string(const PipelineAction& action);  ///< "forward of micro-batch 3 in chunk 1"

/// One step's actions of every stage.
struct PipelineSchedule {
  int micro_batches = 0;           ///< micro-batches of one step
  int chunks = 1;                  ///< model chunks on each stage
  bool shared_vocabulary = false;  ///< whether embedding and head lie on all stages
  bool splits_backward = false;    ///< whether weight gradients are separate actions
  /// The actions of each stage, in order. Within a chunk micro-batches come in increasing order in
  /// both directions. Actions of all stages come in the same order on every stage.
  std::vector<std::vector<PipelineAction>> stages;

  /// The number of stages.
  int stage_count() const { return static_cast<int>(stages.size()); }
  int part_count() const { return stage_count() * chunks; }  ///< parts that the model is cut into
  /// The part of the model that the action runs on its stage.
  int part(int stage, const PipelineAction& action) const {
    return action.chunk * stage_count() + stage;
  }
};

/// All forwards, then all backwards (Huang et al. 2019); every micro-batch is in flight at once.
PipelineSchedule gpipe(int stages, int micro_batches);

/// 1F1B (PipeDream-Flush, Narayanan et al. 2021). Stage s starts with min(stages - 1 - s,
/// micro_batches) forwards, then alternates forwards and backwards. At most stages - s
/// micro-batches are in flight.
PipelineSchedule one_f_one_b(int stages, int micro_batches);

/// ZB-H1 (Qi et al. 2023): 1f1b with a split backward. Input gradients are sent at once; stage s
/// computes weight gradients s micro-batches later, which fills its bubble at the end. On every
/// stage at most min(stages, micro_batches) micro-batches await their weight gradients.
PipelineSchedule zero_bubble_h1(int stages, int micro_batches);

/// Interleaved 1F1B (Narayanan et al. 2021): each stage has several chunks, which divides the
/// bubble by their number. Every chunk runs a whole group of micro-batches before the next chunk
/// does. Groups have `stages` micro-batches; the first groups take a remainder. Fewer micro-batches
/// than stages form one group, whose forwards all precede its backwards.
PipelineSchedule interleaved_one_f_one_b(int stages, int micro_batches, int chunks);

///@{
/// gpipe() and one_f_one_b() with a shared vocabulary (Yeung et al. 2024, in lockstep). Between two
/// passes of the head every stage runs at most one forward and one backward. Stages wait only while
/// the pipeline fills and drains, so the bubble is that of the blocks alone. Under 1f1b the stage d
/// before the last holds at most d + 1 + ceil(d / 2) micro-batches.
PipelineSchedule shared_gpipe(int stages, int micro_batches);
PipelineSchedule shared_one_f_one_b(int stages, int micro_batches);
///@}

/// The schedule of that name: gpipe, 1f1b, zbh1, interleaved. Throws Error(kInvalidArgument) for
/// other names, for chunks under another schedule, and for zbh1 and interleaved with a shared
/// vocabulary.
PipelineSchedule make_schedule(const std::string& name, int stages, int micro_batches, int chunks,
                               bool shared_vocabulary = false);

/// Whether the schedule of that name runs backward right after the loss. Otherwise its stage may
/// run other micro-batches in between, and the loss block, whose backward runs in forward, shares
/// no unit.
bool backward_follows_loss(const std::string& name);

/// Whether the schedule of that name has weight gradients as separate actions.
bool splits_backward(const std::string& name);

/// The schedule's forwards alone, in the same order, for evaluation.
PipelineSchedule forwards_of(const PipelineSchedule& schedule);

/// Idle share of a step whose stages all cost the same and whose messages cost nothing:
/// (S-1)/(chunks*M + S-1). Interleaved: exact when stages divide micro_batches.
double bubble_share(int stages, int micro_batches, int chunks = 1);

/// Idle share under zero_bubble_h1(), where forward and both halves of backward take equal times:
/// (2 (S-1) - min(S, M) + 1) idle passes beside 3 M.
double split_bubble_share(int stages, int micro_batches);

/// A tensor sent between stages: the output of a forward, or the input's gradient of a backward.
struct PipelineMessage {
  int source = 0, destination = 0;  ///< stages
  PipelineAction action;            ///< the action of the destination that needs it
  int boundary = 0;  ///< the part boundary it crosses: between parts boundary - 1 and boundary

  bool operator==(const PipelineMessage&) const = default;  ///< compares all members
};
/// The message an action waits for. Nothing for the first part's forward, the last part's backward,
/// weight gradients and actions of all stages.
std::optional<PipelineMessage> input_of(const PipelineSchedule& schedule, int stage,
                                        const PipelineAction& action);
/// The message an action sends. Nothing for the last part's forward, the first part's backward,
/// weight gradients and actions of all stages.
std::optional<PipelineMessage> output_of(const PipelineSchedule& schedule, int stage,
                                         const PipelineAction& action);

}  // namespace tessera
