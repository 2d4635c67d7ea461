#include "backends/common/step_order.h"

#include "tessera/core/error.h"

namespace tessera {

void StepOrder::require_usable() const {
  check(unusable_.empty(), ErrorCode::kUnavailable, who_, " cannot go on: ", unusable_,
        ". Start again from the newest checkpoint");
}

void StepOrder::require_gradient(const char* what) const {
  check(gradient_ != Gradient::kNone, ErrorCode::kInvalidArgument, who_, ": ", what,
        " needs a gradient, and there is none. Call forward_backward() first, again after one that "
        "failed and after state_restored()");
}

void StepOrder::require_gradient_used() const {
  check(gradient_ != Gradient::kNew, ErrorCode::kInvalidArgument, who_,
        ": a second forward_backward() would replace the gradient of the first, which no "
        "optimizer_step() has used. Give all micro-batches of a step to one call; to drop a "
        "gradient, call optimizer_step() with a skip of 1");
}

void StepOrder::begin(Call call) {
  call_ = call;
  if (call == Call::kStep) gradient_ = Gradient::kNone;
}

void StepOrder::end() {
  if (call_ == Call::kStep) gradient_ = Gradient::kNew;
  if (call_ == Call::kUpdate) gradient_ = Gradient::kUsed;
  call_ = Call::kNone;
}

void StepOrder::drop() { call_ = Call::kNone; }

void StepOrder::make_unusable(const std::string& why) {
  if (unusable_.empty()) unusable_ = why;
}

}  // namespace tessera
