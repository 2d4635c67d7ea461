#pragma once
// Which calls of a strategy may follow each other.
#include <string>
#include <utility>

namespace tessera {

// Knows the call under way and whether there is a gradient. An update needs one; a step must not
// replace one that no update has used.
class StepOrder {
 public:
  enum class Call { kNone, kStep, kEvaluation, kUpdate };

  explicit StepOrder(std::string who) : who_(std::move(who)) {}  // the strategy's name

  // These three throw Error: kInvalidArgument, or kUnavailable after make_unusable().
  void require_usable() const;
  void require_gradient(const char* what) const;
  void require_gradient_used() const;

  void begin(Call call);
  void end();
  // A call that has begun and not ended; between calls: it was left by an exception.
  Call under_way() const { return call_; }
  // Of the call under way: it counts as not made.
  void drop();
  void forget_gradient() { gradient_ = Gradient::kNone; }
  void make_unusable(const std::string& why);  // the first reason stays

 private:
  enum class Gradient { kNone, kNew, kUsed };
  std::string who_;
  Call call_ = Call::kNone;
  Gradient gradient_ = Gradient::kNone;
  std::string unusable_;
};

}  // namespace tessera
