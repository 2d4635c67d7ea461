// SPDX-License-Identifier: MIT
#include "lib/comm/control/inquiry.h"

#include <algorithm>

#include "lib/comm/control/wire.h"
#include "lib/core/number_text.h"

namespace tessera::control {
namespace {

constexpr auto kPatience = std::chrono::seconds(1);
constexpr auto kAskAgainAfter = std::chrono::milliseconds(20);

}  // namespace

std::string Report::pack() const {
  return control::pack({cause, call.pack(), exact_text(timeout_s)});
}

Report Report::unpack(const std::string& bytes) {
  const std::vector<std::string> parts = control::unpack(bytes);
  return {parts.at(0), Call::unpack(parts.at(1)), leading_number(parts.at(2))};
}

Inquiry::Inquiry(std::vector<std::string> hosts)
    : awaited_(hosts.size(), false), deadline_(Clock::now() + kPatience) {
  for (std::string& host : hosts) failure_.ranks.push_back({std::move(host), std::nullopt});
}

void Inquiry::add(const Report& report) {
  if (!failure_.call.communicator.empty() || seen_) return;
  failure_.cause = report.cause;
  failure_.call = report.call;
  failure_.timeout_s = report.cause.empty() ? report.timeout_s : 0;
}

void Inquiry::add(const std::string& cause) {
  failure_.cause = seen_ ? concat(failure_.cause, ", ", cause) : cause;
  failure_.timeout_s = 0;
  seen_ = true;
}

void Inquiry::hear(int rank, const std::string& status) {
  forget(rank);
  if (!status.empty())
    failure_.ranks[static_cast<size_t>(rank)].status = RankStatus::unpack(status);
  heard_ = Clock::now();
  undecided_ = failure_.undecided();
}

std::vector<int> Inquiry::to_ask_again() const {
  const bool due = !is_over() && all_answered() && Clock::now() >= heard_ + kAskAgainAfter;
  return due ? undecided_ : std::vector<int>();
}

bool Inquiry::is_over() const {
  return Clock::now() >= deadline_ || (all_answered() && undecided_.empty());
}

bool Inquiry::all_answered() const { return std::ranges::count(awaited_, true) == 0; }

std::chrono::milliseconds Inquiry::patience() const {
  const bool asks_again = all_answered() && !undecided_.empty();
  const auto next = asks_again ? std::min(deadline_, heard_ + kAskAgainAfter) : deadline_;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now());
  return std::max(left, std::chrono::milliseconds(0)) + std::chrono::milliseconds(1);
}

}  // namespace tessera::control
