// SPDX-License-Identifier: MIT
#include "backends/pipeline/stage_links.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

#include "lib/comm/operation_scope.h"
#include "tessera/comm/communication_ledger.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using Kind = PipelineAction::Kind;

// Name of a message: "activations of micro-batch 2 before part 1", without an allocation.
class MessageName {
 public:
  explicit MessageName(const PipelineMessage& message) {
    const bool forward = message.action.kind == Kind::kForward;
    std::snprintf(text_.data(), text_.size(), "%s of micro-batch %d before part %d",
                  forward ? "activations" : "gradients", message.action.micro_batch,
                  message.boundary);
  }
  std::string_view text() const { return text_.data(); }

 private:
  std::array<char, 72> text_{};
};

}  // namespace

// [Note: messages between stages]
// Messages of a pair of ranks match in the order of calls, so receives are posted in the peer's
// order of sends, which follows from the schedule. An early message stays in its buffer. Sends are
// waited for only when a later message of the receiver proves their arrival, or at the end of the
// step: no slot waits for a send.
//
// A GPU loads kernels at their first use, and may wait for all running work to do so. A pending
// receive whose message depends on this stage's next kernels would then deadlock, so steps with new
// input shapes receive nothing ahead. The caching allocator waits likewise to free its cache when
// the device is full. So a step receives ahead only while the allocator still holds the memory of
// steps with these shapes. So does a transport that connects two ranks at their first message:
// connect() sends it in advance. For the same reason no message or receive is pending in a pass of
// all stages (StageSchedule::Arrival), which waits for all stages. A send larger than the
// transport's buffers is pending until it is received; with several chunks per stage, two stages
// could each wait for the other's receive. Their steps with new shapes run in rounds, and the host
// waits for a round's messages before it starts a slot of the next.

void StageLinks::connect(bool wraps_around, Communicator* all) {
  const int stages = pipeline_.size(), me = pipeline_.rank();
  all_ = all;
  if (pipeline_.device().is_meta()) return;  // no other stage exists
  auto message = [&](int from, int to) {
    if (me != from && me != to) return;
    at::Tensor token = at::zeros({1}, at::TensorOptions(at::kLong).device(pipeline_.device()));
    Work work = me == from ? pipeline_.send(token, to) : pipeline_.recv(token, from);
    work.wait();
    token.cpu();  // makes the host wait, too
  };
  for (int stage = 0; stage < stages; ++stage) {
    const int next = (stage + 1) % stages;
    if (next == stage || (next == 0 && !wraps_around)) continue;
    message(stage, next);
    message(next, stage);
  }
  if (all_ == nullptr) return;
  for (int64_t numel : {1, 1 << 20}) {  // transports choose protocols by size
    at::Tensor token = at::zeros({numel}, at::TensorOptions(at::kFloat).device(all_->device()));
    all_->broadcast(token, 0).wait();
    all_->broadcast(token, stages - 1).wait();
    all_->all_reduce(token).wait();
    all_->all_gather(at::empty({stages * numel}, token.options()), token).wait();
    token.cpu();
  }
}

void StageLinks::begin(const StageSchedule& schedule, std::vector<std::vector<int64_t>> shapes) {
  schedule_ = &schedule;
  shapes_ = std::move(shapes);
  posted_.assign(schedule.arrivals.size(), 0);
  ahead_ = receives_ahead_;
  const int64_t held = reserved_bytes();
  for (const auto& shape : shapes_) {
    const auto seen = took_bytes_.find(shape);
    if (seen == took_bytes_.end() || seen->second > held) ahead_ = 0;
  }
  in_rounds_ = ahead_ == 0 && schedule.has_rounds;
}

void StageLinks::expect(size_t micro_batch, int boundary, const at::Tensor& tensor) {
  forms_[{boundary, shapes_[micro_batch]}] = {tensor.sizes().vec(), tensor.scalar_type()};
}

int64_t StageLinks::reserved_bytes() const {
  return !pipeline_.device().is_cuda() ? 0 : memory_use(pipeline_.device()).reserved_bytes;
}

StageLinks::FormKey StageLinks::key_of(const PipelineMessage& message) const {
  return {message.boundary, shapes_[static_cast<size_t>(message.action.micro_batch)]};
}

void StageLinks::check_dims(const at::Tensor& tensor, int boundary) {
  check(static_cast<size_t>(tensor.dim()) <= kMostDims, ErrorCode::kInvalidArgument,
        "an activation of ", tensor.dim(), " dimensions goes to part ", boundary,
        " of the model; at most ", kMostDims, " are supported");
}

void StageLinks::check_known(const at::Tensor& tensor, const TensorForm& known, int boundary) {
  check(tensor.sizes() == at::IntArrayRef(known.sizes) && tensor.scalar_type() == known.dtype,
        ErrorCode::kInvalidArgument, tensor.scalar_type(), " ", tensor.sizes(), " goes to part ",
        boundary, " of the model, but with the same input shape it was ", known.dtype, " ",
        at::IntArrayRef(known.sizes),
        " before; between pipeline stages shapes must follow from the input's");
}

void StageLinks::post(int slot) {
  for (int source = 0; source < schedule_->stages; ++source) {
    const auto& arrivals = schedule_->arrivals[static_cast<size_t>(source)];
    for (size_t& next = posted_[static_cast<size_t>(source)]; next < arrivals.size(); ++next) {
      const StageSchedule::Arrival& arrival = arrivals[next];
      const int due = in_rounds_ ? arrival.next_round : arrival.due;
      if (source == schedule_->stage || due > slot + ahead_ || arrival.open > slot) break;
      const FormKey key = key_of(arrival.message);
      const MessageName name(arrival.message);
      const ForTensor of(name.text());
      if (!forms_.contains(key)) {
        const DataDecides the(DecidedByData::kWhether);
        const at::Tensor header = empty_header(pipeline_.device());
        Work work = pipeline_.recv(header, source);
        timer_.time([&] { work.wait(); });
        forms_[key] = read_header(header);
      }
      const TensorForm& form = forms_[key];
      Received received{.source = source, .sent = arrival.sent};
      if (arrival.message.action.kind == Kind::kForward || at::isFloatingType(form.dtype)) {
        received.tensor =
            at::empty(form.sizes, at::TensorOptions(form.dtype).device(pipeline_.device()));
        received.work = pipeline_.recv(received.tensor, source);
      }
      received_[arrival.needed] = std::move(received);
    }
  }
  if (in_rounds_) wait_for_all();
}

void StageLinks::wait_for_all() {
  timer_.time([&] {
    for (auto& [slot, received] : received_) received.work.wait();
    for (Sent& sent : sent_) sent.work.wait();
  });
  sent_.clear();
  Marker now;
  now.record(pipeline_.device());
  now.synchronize();
}

at::Tensor StageLinks::receive(int slot) {
  const auto found = received_.find(slot);
  check(found != received_.end(), ErrorCode::kInternal, "nothing was received for slot ", slot);
  Received received = std::move(found->second);
  received_.erase(found);
  timer_.time([&] { received.work.wait(); });
  release_sent(received.source, received.sent);
  return received.tensor;
}

// The destination has reached this slot, so earlier messages to it have arrived.
void StageLinks::release_sent(int destination, int until) {
  std::erase_if(sent_, [&](Sent& sent) {
    const bool arrived = sent.destination == destination && sent.needed <= until;
    if (arrived) sent.work.wait();
    return arrived;
  });
}

void StageLinks::send(int slot, const at::Tensor& tensor) {
  const StageSchedule::Slot& from = schedule_->slots[static_cast<size_t>(slot)];
  const PipelineMessage& message = *from.output;
  const int destination = message.destination;
  if (destination == schedule_->stage) {
    received_[from.output_needed] = {.tensor = tensor, .source = destination, .sent = slot};
    return;
  }
  const FormKey key = key_of(message);
  const MessageName name(message);
  const ForTensor of(name.text());
  const auto known = forms_.find(key);
  if (message.action.kind == Kind::kBackward) {
    if (!at::isFloatingType(known->second.dtype)) return;
    check(tensor.defined(), ErrorCode::kInvalidArgument, "the first block of part ",
          message.boundary, " gave no gradient to its input; its output must depend on it");
  }
  if (known == forms_.end()) {
    check_dims(tensor, message.boundary);
    forms_[key] = {tensor.sizes().vec(), tensor.scalar_type()};
    const DataDecides the(DecidedByData::kWhether);
    const at::Tensor header = header_of(forms_[key], pipeline_.device());
    sent_.push_back({destination, from.output_needed, pipeline_.send(header, destination)});
  } else {
    check_known(tensor, known->second, message.boundary);
  }
  sent_.push_back(
      {destination, from.output_needed, pipeline_.send(tensor.contiguous(), destination)});
}

at::Tensor StageLinks::share_from(Communicator& comm, int root, const at::Tensor& tensor,
                                  int boundary, TensorForm& form) {
  const bool mine = comm.rank() == root;
  if (form.dtype == at::ScalarType::Undefined) {
    if (mine) {
      check_dims(tensor, boundary);
      form = {tensor.sizes().vec(), tensor.scalar_type()};
    }
    form = broadcast_form(comm, root, form);
  } else if (mine) {
    check_known(tensor, form, boundary);
  }
  const at::Tensor shared =
      mine ? tensor.contiguous()
           : at::empty(form.sizes, at::TensorOptions(form.dtype).device(comm.device()));
  Work work = comm.broadcast(shared, root);
  timer_.time([&] { work.wait(); });
  return shared;
}

at::Tensor StageLinks::share(int micro_batch, int boundary, int root, const at::Tensor& tensor) {
  check(all_->rank() != root || tensor.defined(), ErrorCode::kInvalidArgument,
        "the first block behind the embedding gave no gradient to its input; its output must "
        "depend on it");
  return share_from(*all_, root, tensor, boundary,
                    forms_[{boundary, shapes_[static_cast<size_t>(micro_batch)]}]);
}

// The number of scores does not follow from the input's shape alone, so it is sent each time,
// except in decoding steps.
at::Tensor StageLinks::share_scores(const MicroBatch& micro_batch, const at::Tensor& scores) {
  if (pipeline_.device().is_meta()) {  // the last stage does not exist here
    return scores.defined() ? scores : at::empty({0}, at::TensorOptions().device(at::kMeta));
  }
  TensorForm told;
  TensorForm& form =
      micro_batch.decode_state.begun() ? score_forms_[micro_batch.input_ids.sizes().vec()] : told;
  const int last = pipeline_.size() - 1;
  return share_from(pipeline_, last, scores, pipeline_.size(), form);
}

void StageLinks::finish() {
  for (Sent& sent : sent_) sent.work.wait();
  sent_.clear();
  schedule_ = nullptr;
  if (ahead_ > 0) return;
  for (const auto& shape : shapes_) took_bytes_[shape] = reserved_bytes();
}

}  // namespace tessera
