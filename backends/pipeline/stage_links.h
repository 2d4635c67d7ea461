// SPDX-License-Identifier: MIT
#pragma once
// Sends activations and their gradients between the stages of a pipeline.
#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "backends/pipeline/stage_schedule.h"
#include "backends/pipeline/wait_timer.h"
#include "lib/comm/described_tensor.h"
#include "tessera/comm/communicator.h"
#include "tessera/core/micro_batch.h"

namespace tessera {

// Links between stages; owned by one Pipeline. Order of calls: begin(); per slot post(), receive()
// with an input, send() with an output; finish(). Passes of all stages call share(). Both sides of
// a boundary cache shape and dtype by the shape of the micro-batch's input; a header precedes the
// first message of each.
class StageLinks {
 public:
  // receives_ahead: number of slots before its use at which a message may be received.
  StageLinks(Communicator& pipeline, WaitTimer& timer, int receives_ahead)
      : pipeline_(pipeline), timer_(timer), receives_ahead_(receives_ahead) {}

  // Connects every link by a message, once, before the first step. Collective. all: a second
  // communicator of the stages for their common passes; null: none.
  void connect(bool wraps_around, Communicator* all);
  // shapes: of every micro-batch's input, equal on all stages; plan lives until finish().
  void begin(const StageSchedule& schedule, std::vector<std::vector<int64_t>> shapes);
  // On meta: sets the shape and dtype that cross a boundary for a micro-batch of the current step.
  void expect(size_t micro_batch, int boundary, const at::Tensor& tensor);
  // Posts the receives of this slot and of the next ones, before the slot's compute, which overlaps
  // them.
  void post(int slot);
  // The slot's input; undefined for the gradient of an activation without one (an integral dtype).
  at::Tensor receive(int slot);
  void send(int slot, const at::Tensor& tensor);
  // Broadcasts the root stage's tensor of this micro-batch to every stage: the gradient before the
  // first part, or the activation after the last one.
  at::Tensor share(int micro_batch, int boundary, int root, const at::Tensor& tensor);
  // Broadcasts the last stage's scores, or its selection of them; between finish() and begin().
  at::Tensor share_scores(const MicroBatch& micro_batch, const at::Tensor& scores);
  void finish();  // waits until every message has been sent

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
  // Broadcasts the root's tensor over comm, with its shape and dtype if unknown.
  at::Tensor share_from(Communicator& comm, int root, const at::Tensor& tensor, int boundary,
                        TensorForm& form);
  static void check_known(const at::Tensor& tensor, const TensorForm& known, int boundary);
  void release_sent(int destination, int until);
  void wait_for_all();  // waits for pending messages, on the host too
  int64_t reserved_bytes() const;

  Communicator& pipeline_;
  Communicator* all_ = nullptr;
  WaitTimer& timer_;
  const int receives_ahead_;
  std::map<FormKey, TensorForm> forms_;
  // For decoding steps.
  std::map<std::vector<int64_t>, TensorForm> score_forms_;
  // By input shape: bytes that the allocator held after a step, which a later one needs.
  std::map<std::vector<int64_t>, int64_t> took_bytes_;

  // state of the current step
  const StageSchedule* schedule_ = nullptr;
  std::vector<std::vector<int64_t>> shapes_;
  int ahead_ = 0;
  bool in_rounds_ = false;            // see StageSchedule::has_rounds
  std::vector<size_t> posted_;        // by source: number of its messages posted
  std::map<int, Received> received_;  // by turn
  std::vector<Sent> sent_;
};

}  // namespace tessera
