// SPDX-License-Identifier: MIT
#include "tessera/train/stop_signal.h"

#include <atomic>
#include <csignal>

#include "tessera/core/error.h"

namespace tessera {
namespace {

std::atomic<bool> installed{false};
std::atomic<int> first{0};
static_assert(std::atomic<int>::is_always_lock_free);  // the only type that a handler may use

void note(int number) {
  int none = 0;
  if (first.compare_exchange_strong(none, number)) return;
  std::signal(number, SIG_DFL);
  std::raise(number);  // delivered after the handler
}

}  // namespace

StopSignals::StopSignals(const std::vector<int>& numbers) {
  check(!installed.exchange(true), ErrorCode::kInternal, "two StopSignals at once");
  first = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int number : numbers) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;  // as a shell does for background jobs
    before_.emplace_back(number, before);
    sigaction(number, &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (const auto& [number, before] : before_) sigaction(number, &before, nullptr);
  installed = false;
}

int StopSignals::caught() const { return first; }

bool StopAgreement::agree(bool asked) {
  if (world_.size() == 1) return asked;
  const bool verdict = asked_ && asked_->answer();
  asked_.emplace(world_, AsyncFlagReduce::Of::kAny, asked);
  return verdict;
}

}  // namespace tessera
