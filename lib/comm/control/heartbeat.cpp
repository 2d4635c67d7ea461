// SPDX-License-Identifier: MIT
#include "lib/comm/control/heartbeat.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "lib/core/number_text.h"
#include "tessera/core/error.h"

namespace tessera::control {

double heartbeat_timeout_s() {
  const char* text = std::getenv("TESSERA_HEARTBEAT_TIMEOUT_S");
  if (text == nullptr) return kHeartbeatTimeout;
  const std::optional<double> seconds = parse_number(text);
  check(seconds && *seconds >= 0.1 && *seconds <= 1e6, ErrorCode::kInvalidArgument,
        "TESSERA_HEARTBEAT_TIMEOUT_S=", text, " is not a number of seconds from 0.1 to 1000000");
  return *seconds;
}

void Silence::end() {
  length_ = {};
  since_ = std::time(nullptr);
}

std::string Silence::reason(int rank, const std::string& host, double timeout_s) const {
  std::tm utc{};
  gmtime_r(&since_, &utc);
  char since[32];
  std::strftime(since, sizeof since, "%F %T UTC", &utc);
  return concat("rank ", rank, " (host ", host, ") has been silent since ", since,
                ", for more than ", timeout_s,
                " s: it is stopped, swapped out or cut off "
                "(TESSERA_HEARTBEAT_TIMEOUT_S)");
}

// A pulse every tenth of the timeout, or 2.5 s. Even at half that rate five pulses fit into it.
Heart::Heart(double timeout_s)
    : rest_(std::clamp<int64_t>(std::llround(timeout_s * 100), 10, 2500)) {}

Clock::duration Heart::look() {
  const auto now = Clock::now();
  const auto passed = now - std::exchange(looked_, now);
  return std::min<Clock::duration>(passed, 2 * rest_);
}

bool Heart::beat_is_due() {
  const auto now = Clock::now();
  if (now < beaten_ + rest_) return false;
  beaten_ = now;
  return true;
}

}  // namespace tessera::control
