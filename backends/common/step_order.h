// SPDX-License-Identifier: MIT
#pragma once
// Legal order of a strategy's calls.
#include <string>
#include <utility>

namespace tessera {

// State machine of the current call and the gradient. An update needs a gradient; a step must not
// replace an unused one, unless it accumulates.
class StepOrder {
 public:
  // kForward and kBackward: a pass of Strategy::forward().
  enum class Call { kNone, kStep, kEvaluation, kUpdate, kForward, kBackward };

  explicit StepOrder(std::string who) : who_(std::move(who)) {}  // the strategy's name

  // Throw Error: kInvalidArgument, or kUnavailable after make_unusable().
  void require_usable() const;
  void require_gradient(const char* what) const;
  void require_gradient_used() const;
  // For a step that accumulates, and for a pass of forward(), which may.
  void require_no_lost_gradient() const;
  void require_no_gradient_of_steps() const;
  // Whether there is an unused gradient: of forward_backward(), or of forward() passes, not yet
  // reduced over ranks.
  bool has_new() const { return gradient_ == Gradient::kNew; }
  bool is_open() const { return gradient_ == Gradient::kOpen; }
  void close() {
    gradient_ = Gradient::kNew;
    of_passes_ = true;
  }

  // adds: whether the step or pass accumulates into the existing gradient.
  void begin(Call call, bool adds = false);
  void end();
  // The call in progress; between calls: one that an exception left.
  Call under_way() const { return call_; }
  // Drops the call in progress, which counts as not made.
  void drop();
  void forget_gradient() { gradient_ = Gradient::kNone; }
  void make_unusable(const std::string& why);  // keeps the first reason

 private:
  // kLost: a call that should have added to it failed.
  enum class Gradient { kNone, kNew, kUsed, kOpen, kLost };
  std::string who_;
  Call call_ = Call::kNone;
  bool adds_ = false, of_passes_ = false;
  Gradient gradient_ = Gradient::kNone;
  std::string unusable_;
};

}  // namespace tessera
