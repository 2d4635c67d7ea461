// SPDX-License-Identifier: MIT
#pragma once
// Which calls of a strategy may follow each other.
#include <string>
#include <utility>

namespace tessera {

// Knows the call under way and whether there is a gradient. An update needs one; a step must not
// replace one that no update has used, unless it adds to it.
class StepOrder {
 public:
  // kForward and kBackward: of a pass of Strategy::forward().
  enum class Call { kNone, kStep, kEvaluation, kUpdate, kForward, kBackward };

  explicit StepOrder(std::string who) : who_(std::move(who)) {}  // the strategy's name

  // These throw Error: kInvalidArgument, or kUnavailable after make_unusable().
  void require_usable() const;
  void require_gradient(const char* what) const;
  void require_gradient_used() const;
  // For a step that adds to the gradient there is; for a pass of forward() that may.
  void require_no_lost_gradient() const;
  void require_no_gradient_of_steps() const;
  // No update has used it: of forward_backward(), or of passes of forward(), whose sum over the
  // ranks is not made.
  bool has_new() const { return gradient_ == Gradient::kNew; }
  bool is_open() const { return gradient_ == Gradient::kOpen; }
  void close() {
    gradient_ = Gradient::kNew;
    of_passes_ = true;
  }

  // adds: the step or pass under way adds to the gradient there is.
  void begin(Call call, bool adds = false);
  void end();
  // A call that has begun and not ended; between calls: it was left by an exception.
  Call under_way() const { return call_; }
  // Of the call under way: it counts as not made.
  void drop();
  void forget_gradient() { gradient_ = Gradient::kNone; }
  void make_unusable(const std::string& why);  // the first reason stays

 private:
  // kLost: a call that was to add to it failed.
  enum class Gradient { kNone, kNew, kUsed, kOpen, kLost };
  std::string who_;
  Call call_ = Call::kNone;
  bool adds_ = false, of_passes_ = false;
  Gradient gradient_ = Gradient::kNone;
  std::string unusable_;
};

}  // namespace tessera
