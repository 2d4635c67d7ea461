// SPDX-License-Identifier: MIT
#pragma once
// Moves activations and their gradients between the stages of a pipeline.
#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "backends/pipeline/stage_plan.h"
#include "backends/pipeline/wait_timer.h"
#include "lib/comm/described_tensor.h"
#include "tessera/comm/communicator.h"
#include "tessera/core/micro_batch.h"

namespace tessera {

// Owned by one Pipeline. Order of calls: begin(), per turn post(), receive() when the turn has an
// input, send() when it has an output, and finish() at the end; share() in passes of all stages.
// Both sides of a boundary know the shape and dtype that cross it by the shape of the micro-batch's
// input; a header goes ahead once for each.
class StageLinks {
 public:
  // receives_ahead: how many turns before its use a message may be received.
  StageLinks(Communicator& pipeline, WaitTimer& timer, int receives_ahead)
      : pipeline_(pipeline), timer_(timer), receives_ahead_(receives_ahead) {}

  // Collective, once, before the first step: a message over every link there will be, waited for.
  // all: the stages once more, for share() and what else they do together; null: nothing.
  void connect(bool wraps_around, Communicator* all);
  // shapes: of every micro-batch's input, the same on all stages; plan lives until finish().
  void begin(const StagePlan& plan, std::vector<std::vector<int64_t>> shapes);
  // On meta: the form of what goes to a boundary for a micro-batch of the step that has begun.
  void expect(size_t micro_batch, int boundary, const at::Tensor& tensor);
  // Starts the receives of the turn and those that come soon; before the turn's compute, so that
  // they overlap it.
  void post(int turn);
  // Undefined for the gradient of an activation that has none (of an integral dtype).
  at::Tensor receive(int turn);
  void send(int turn, const at::Tensor& tensor);
  // The root stage's tensor of this micro-batch on every stage: what crosses the boundary before
  // the first part (a gradient) or behind the last one.
  at::Tensor share(int micro_batch, int boundary, int root, const at::Tensor& tensor);
  // The last stage's scores, or what it keeps of them, on every stage; between finish() and
  // begin().
  at::Tensor share_scores(const MicroBatch& micro_batch, const at::Tensor& scores);
  void finish();  // every message has left

 private:
  using FormKey = std::pair<int, std::vector<int64_t>>;  // boundary, shape of the input
  struct Received {
    at::Tensor tensor;
    Work work;
    int source = 0, sent = 0;
  };
  struct Sent {
    int destination = 0, needed = 0;
    Work work;
  };
  FormKey key_of(const PipelineMessage& message) const;
  static void check_dims(const at::Tensor& tensor, int boundary);
  // The root's tensor on every rank of comm, which all learn its form where it is not known.
  at::Tensor share_from(Communicator& comm, int root, const at::Tensor& tensor, int boundary,
                        TensorForm& form);
  static void check_known(const at::Tensor& tensor, const TensorForm& known, int boundary);
  void release_sent(int destination, int until);
  void wait_for_all();  // messages under way; the host waits, too
  int64_t reserved_bytes() const;

  Communicator& pipeline_;
  Communicator* all_ = nullptr;
  WaitTimer& timer_;
  const int receives_ahead_;
  std::map<FormKey, TensorForm> forms_;
  // Of steps that take one more token of rows.
  std::map<std::vector<int64_t>, TensorForm> score_forms_;
  // By the shape of an input: what the allocator held after a step with it, which a later one
  // needs.
  std::map<std::vector<int64_t>, int64_t> took_bytes_;

  // of the step under way
  const StagePlan* plan_ = nullptr;
  std::vector<std::vector<int64_t>> shapes_;
  int ahead_ = 0;
  bool in_rounds_ = false;            // see StagePlan::has_rounds
  std::vector<size_t> posted_;        // by source: how many of its messages
  std::map<int, Received> received_;  // by turn
  std::vector<Sent> sent_;
};

}  // namespace tessera
