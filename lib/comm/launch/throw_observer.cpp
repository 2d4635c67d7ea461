// SPDX-License-Identifier: MIT
#include "lib/comm/launch/throw_observer.h"

#include <future>
#include <thread>
#include <typeinfo>
#include <utility>

namespace tessera {

// [Note: seeing an exception before it unwinds]
// A throw first searches for a handler and unwinds only when it has found one (Itanium C++ ABI,
// level II). The search asks the type_info of every catch clause up the stack, innermost first,
// whether it takes the thrown type. Passing's type_info is ours: it observes and declines. The
// compiler expects a class's type_info where its first virtual function is defined; that is nowhere
// here.
namespace throw_observer {
struct Passing {
  virtual ~Passing();
};
}  // namespace throw_observer

namespace {

using About = std::function<std::function<void()>(const std::exception*)>;

class Watch {
 public:
  explicit Watch(const About& about)
      : about_(about), outer_(std::exchange(innermost(), this)), thread_([this] {
          if (const auto told = notice_.get_future().get()) told();
        }) {}
  ~Watch() {
    innermost() = outer_;
    if (!seen_) notice_.set_value({});
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void see(const std::exception* error) noexcept {
    if (seen_) return;
    try {
      notice_.set_value(about_(error));
      seen_ = true;
    } catch (...) {  // out of memory: observed after unwinding instead
    }
  }

  // The thread's innermost watch; catch clauses are asked without an argument of ours.
  static Watch*& innermost() {
    static thread_local Watch* watch = nullptr;
    return watch;
  }

 private:
  const About& about_;
  Watch* const outer_;
  bool seen_ = false;
  std::promise<std::function<void()>> notice_;
  std::thread thread_;  // last member: it uses the others
};

class PassingType final : public std::type_info {
 public:
  PassingType() : std::type_info("tessera throw observer") {}
  bool __do_catch(const std::type_info* thrown, void** object, unsigned outer) const override {
    Watch* watch = Watch::innermost();
    if (watch == nullptr) return false;
    void* error = *object;
    const bool standard = typeid(std::exception).__do_catch(thrown, &error, outer);
    watch->see(standard ? static_cast<const std::exception*>(error) : nullptr);
    return false;
  }
};

}  // namespace

// NOLINTNEXTLINE(bugprone-reserved-identifier): the ABI's name for typeid(throw_observer::Passing).
extern "C" const PassingType _ZTIN7tessera14throw_observer7PassingE;
const PassingType _ZTIN7tessera14throw_observer7PassingE;

void run_with_throw_observer(const std::function<void()>& fn, const About& about) {
  const Watch watch(about);
  try {
    fn();
  } catch (const throw_observer::Passing&) {
    std::terminate();  // never caught
  }
}

}  // namespace tessera
