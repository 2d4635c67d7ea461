// SPDX-License-Identifier: MIT
#include "lib/comm/launch/exit_status.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>

#include "lib/comm/control/wire.h"
#include "lib/core/failure.h"
#include "lib/core/file.h"
#include "tessera/comm/control_channel.h"
#include "tessera/core/json.h"
#include "tessera/core/log.h"

namespace tessera {
namespace {

constexpr const char* kNoAnswer = "did not answer: dead or stuck";
constexpr size_t kMostMessage = 64 << 10;  // bytes of an error message sent to other ranks

// Ranks with equal messages except for numbers, such as byte counts.
struct SameExitStatus {
  std::string text;  // message of the first such rank
  std::vector<int> ranks;
  bool alike = false;  // their numbers differ
};

// Whether it only passes on another rank's message, as "rank 0 failed: ..." does.
bool passes_on(const ExitStatus& ending, const std::vector<ExitStatus>& endings) {
  return std::ranges::any_of(endings, [&](const ExitStatus& other) {
    return !other.message.empty() && other.message.size() < ending.message.size() &&
           ending.message.find(other.message) != std::string::npos;
  });
}

std::string without_numbers(const std::string& text) {
  std::string kept;
  for (const char c : text) {
    if (c < '0' || c > '9') kept += c;
  }
  return kept;
}

}  // namespace

std::string ExitStatus::pack() const {
  if (code == 0) return "";
  return control::pack({std::to_string(code), kind, message.substr(0, kMostMessage)});
}

ExitStatus ExitStatus::unpack(const std::string& status) {
  if (status.empty()) return {};
  if (status == "?") return {exit_code(ErrorCode::kUnavailable), "peer unavailable", kNoAnswer};
  const std::vector<std::string> parts = control::unpack(status);
  return {std::stoi(parts.at(0)), parts.at(1), parts.at(2)};
}

bool ExitStatus::is_answer() const { return message != kNoAnswer; }

std::string ExitStatus::reason(int rank) const {
  return concat("rank ", rank, " failed: ", message.substr(0, kMostMessage));
}

ExitStatus exit_status_of(ErrorCode code, const std::string& message) {
  return {exit_code(code), error_code_name(code), message};
}

ExitStatus exit_status_of(const std::exception* error) {
  const Failure failure = failure_of(error);
  return exit_status_of(failure.code, failure.message);
}

ExitStatus current_exception_status() {
  const Failure failure = current_failure();
  return exit_status_of(failure.code, failure.message);
}

int root_cause(const std::vector<ExitStatus>& endings) {
  const int peer_failed = exit_code(ErrorCode::kUnavailable);
  int code = 0;
  for (const ExitStatus& ending : endings) {
    if (ending.code != 0 && (code == 0 || code == peer_failed) && ending.code != code) {
      code = ending.code;
    }
  }
  return code;
}

std::vector<ExitStatusLine> exit_status_lines(const std::vector<ExitStatus>& endings) {
  std::map<std::string, SameExitStatus> causes, consequences;
  const int cause = root_cause(endings);
  const auto is_cause = [&](const ExitStatus& ending) {
    return ending.code != exit_code(ErrorCode::kUnavailable) ||
           (cause == ending.code && !passes_on(ending, endings));
  };
  const auto add = [&](std::map<std::string, SameExitStatus>& groups, const std::string& text,
                       int rank, const std::string& key) {
    SameExitStatus& group = groups[key];
    if (group.ranks.empty()) group.text = text;
    group.alike = group.alike || group.text != text;
    group.ranks.push_back(rank);
  };
  std::map<std::string, std::string> messages;  // messages by cause, and their groups
  for (size_t r = 0; r < endings.size(); ++r) {
    const ExitStatus& ending = endings[r];
    if (ending.code == 0 || !is_cause(ending)) continue;
    const std::string text = concat(ending.kind, ": ", ending.message);
    messages.emplace(ending.message, without_numbers(text));
    add(causes, text, static_cast<int>(r), without_numbers(text));
  }
  for (size_t r = 0; r < endings.size(); ++r) {
    const ExitStatus& ending = endings[r];
    if (ending.code == 0 || is_cause(ending)) continue;
    const auto of = std::ranges::find_if(messages, [&](const auto& one) {
      return !one.first.empty() && ending.message.find(one.first) != std::string::npos;
    });
    if (of != messages.end()) {
      causes.at(of->second).ranks.push_back(static_cast<int>(r));
      continue;
    }
    const std::string text = concat(ending.kind, ": ", ending.message);
    add(consequences, text, static_cast<int>(r), without_numbers(text));
  }
  std::vector<ExitStatusLine> lines;
  const auto write = [&](auto& groups, LogLevel level) {
    for (auto& [key, group] : groups) {
      const int first = group.ranks.front();
      std::vector<int> others(group.ranks.begin() + 1, group.ranks.end());
      std::ranges::sort(others);
      const std::string where = endings.size() == 1 ? "" : concat("rank ", first, ": ");
      const std::string same =
          others.empty() ? ""
                         : concat(" (rank", others.size() > 1 ? "s " : " ", rank_list(others),
                                  group.alike ? ": alike)" : ": same)");
      lines.push_back({level, concat(where, group.text, same)});
    }
  };
  write(causes, LogLevel::kError);
  write(consequences, LogLevel::kInfo);
  return lines;
}

void log_exit_statuses(const std::vector<ExitStatus>& endings) {
  const int speaker = log_rank();
  set_log_rank(-1);  // the lines name their ranks themselves
  for (const ExitStatusLine& line : exit_status_lines(endings)) log(line.level, line.text);
  set_log_rank(speaker);
}

void write_torchelastic_error(const ExitStatus& ending) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr) return;
  JsonWriter report;
  report.begin_object().key("message").begin_object();
  report.field("message", utf8_text(concat(ending.kind, ": ", ending.message))).key("extraInfo");
  report.begin_object().field("timestamp", std::to_string(std::time(nullptr))).end_object();
  report.field("errorCode", ending.code).end_object().end_object();
  std::ofstream(path, std::ios::trunc) << report.text();
}

}  // namespace tessera
