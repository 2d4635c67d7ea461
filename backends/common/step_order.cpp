// SPDX-License-Identifier: MIT
#include "backends/common/step_order.h"

#include "tessera/core/error.h"

namespace tessera {

void StepOrder::require_usable() const {
  check(unusable_.empty(), ErrorCode::kUnavailable, who_, " cannot go on: ", unusable_,
        ". Start again from the newest checkpoint");
}

void StepOrder::require_gradient(const char* what) const {
  check(gradient_ != Gradient::kNone && gradient_ != Gradient::kLost, ErrorCode::kInvalidArgument,
        who_, ": ", what,
        " needs a gradient, and there is none. Call forward_backward() first, again after one that "
        "failed and after state_restored()");
}

void StepOrder::require_gradient_used() const {
  check(!has_new(), ErrorCode::kInvalidArgument, who_,
        ": a second forward_backward() would replace the gradient of the first, which no "
        "optimizer_step() has used. Give all micro-batches of a step to one call, or call "
        "forward_backward(batches, {.accumulate = true}) to add them up; to drop a gradient, call "
        "optimizer_step() with a skip of 1");
  check(!is_open(), ErrorCode::kInvalidArgument, who_,
        ": forward_backward() after backward() through forward(): gradients of the two do not mix "
        "in one step. Call optimizer_step() between them");
}

void StepOrder::require_no_lost_gradient() const {
  check(!is_open() && !(has_new() && of_passes_), ErrorCode::kInvalidArgument, who_,
        ": forward_backward() after backward() through forward(): gradients of the two do not mix "
        "in one step. Call optimizer_step() between them");
  check(gradient_ != Gradient::kLost, ErrorCode::kInvalidArgument, who_,
        ": forward_backward() with accumulate after a call that failed: the gradients of the calls "
        "before are lost with it. Begin the step again with a call without accumulate");
}

void StepOrder::require_no_gradient_of_steps() const {
  check(!has_new(), ErrorCode::kInvalidArgument, who_,
        ": backward() through forward() would add to a gradient that is complete and that no "
        "optimizer_step() has used. Run all passes of a step before its norm, its gradients or "
        "forward_backward() are asked for, or call optimizer_step() between them");
}

void StepOrder::begin(Call call, bool adds) {
  call_ = call;
  adds_ = adds;
  if (call != Call::kStep && call != Call::kBackward) return;
  gradient_ = Gradient::kNone;
  of_passes_ = false;
}

void StepOrder::end() {
  if (call_ == Call::kStep) gradient_ = Gradient::kNew;
  if (call_ == Call::kBackward) gradient_ = Gradient::kOpen;
  if (call_ == Call::kUpdate) gradient_ = Gradient::kUsed;
  call_ = Call::kNone;
}

void StepOrder::drop() {
  if (adds_) gradient_ = Gradient::kLost;
  call_ = Call::kNone;
  adds_ = false;
}

void StepOrder::make_unusable(const std::string& why) {
  if (unusable_.empty()) unusable_ = why;
}

}  // namespace tessera
