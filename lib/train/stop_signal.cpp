#include "tessera/train/stop_signal.h"

#include <array>
#include <atomic>
#include <csignal>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr std::array kSignals{SIGTERM, SIGUSR1};

std::atomic<bool> installed{false};
std::atomic<int> first{0};
std::array<struct sigaction, kSignals.size()> before;
static_assert(std::atomic<int>::is_always_lock_free);  // a handler may touch nothing else

void note(int number) {
  int none = 0;
  if (first.compare_exchange_strong(none, number)) return;
  std::signal(number, SIG_DFL);
  std::raise(number);  // delivered when this returns
}

}  // namespace

StopSignals::StopSignals() {
  check(!installed.exchange(true), ErrorCode::kInternal, "two StopSignals at once");
  first = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before[i]);
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before[i], nullptr);
  installed = false;
}

int StopSignals::caught() const { return first; }

bool StopAgreement::agree(bool asked) {
  const bool verdict = asked_ && asked_->answer();
  asked_.emplace(world_, LateVote::Of::kAny, asked);
  return verdict;
}

}  // namespace tessera
