// SPDX-License-Identifier: MIT
#include "lib/comm/control/call_failure.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <tuple>

#include "lib/comm/control/wire.h"
#include "lib/core/number_text.h"
#include "tessera/comm/control_channel.h"

namespace tessera {
namespace {

using control::pack;
using control::unpack;

std::string time_text(double since_s) {
  const auto seconds = static_cast<std::time_t>(since_s);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%F %T UTC", &utc);
  return text;
}

// A rank's relation to the failed call.
struct Part {
  enum class Role { kOutside, kCame, kMissing, kSilent } role = Role::kOutside;
  Call own;  // the rank's own call at the same sequence number; empty: none, or already overwritten
};

std::vector<const Call*> calls_of(const RankStatus& status) {
  std::vector<const Call*> calls{&status.asked, &status.waiting};
  for (const Call& call : status.recent) calls.push_back(&call);
  std::erase_if(calls, [](const Call* call) { return call->communicator.empty(); });
  return calls;
}

const Membership* membership_in(const RankStatus& status, const Call& call) {
  const Membership* found = nullptr;
  for (const Membership& each : status.communicators) {
    if (each.communicator == call.communicator && (found == nullptr || each.open)) found = &each;
  }
  return found;
}

Part part_of(const RankStatus& status, const Call& call) {
  Part part;
  const Membership* member = membership_in(status, call);
  if (member == nullptr) return part;
  if (call.is_message() && member->rank != call.source && member->rank != call.destination) {
    return part;
  }
  for (const Call* own : calls_of(status)) {
    if (part.own.communicator.empty() && own->same_place(call)) part.own = *own;
  }
  const bool came =
      !part.own.communicator.empty() || (!call.is_message() && member->collectives > call.sequence);
  part.role = came ? Part::Role::kCame : Part::Role::kMissing;
  return part;
}

std::vector<Part> parts_of(const std::vector<CallFailure::Rank>& ranks, const Call& call) {
  std::vector<Part> parts(ranks.size());
  int known = 0, size = call.is_message() ? 2 : 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (!ranks[r].status) continue;
    parts[r] = part_of(*ranks[r].status, call);
    const Membership* member = membership_in(*ranks[r].status, call);
    if (member != nullptr && !call.is_message()) size = member->size;
    known += parts[r].role != Part::Role::kOutside ? 1 : 0;
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (!ranks[r].status && known < size) parts[r].role = Part::Role::kSilent;
  }
  return parts;
}

std::vector<int> ranks_in(const std::vector<Part>& parts, Part::Role role) {
  std::vector<int> ranks;
  for (size_t r = 0; r < parts.size(); ++r) {
    if (parts[r].role == role) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

// The earliest call at which two ranks are known to have called different operations; empty: none.
Call disagreement(const std::vector<CallFailure::Rank>& ranks) {
  Call first;
  for (const CallFailure::Rank& rank : ranks) {
    if (!rank.status) continue;
    for (const Call* call : calls_of(*rank.status)) {
      const bool differs = std::ranges::any_of(parts_of(ranks, *call), [&](const Part& part) {
        return !part.own.communicator.empty() && !part.own.agrees_with(*call);
      });
      if (differs && (first.communicator.empty() || call->since_s < first.since_s)) first = *call;
    }
  }
  return first;
}

// The waiting call to blame. Preferred, in this order: one that waits for a rank that does not
// answer; any but the control channel's; the one most ranks wait in; the lowest rank's. Without a
// waiting call, the last call.
Call call_in_question(const std::vector<CallFailure::Rank>& ranks) {
  Call chosen, last;
  std::tuple<bool, bool, long> best{false, false, 0};
  for (const CallFailure::Rank& rank : ranks) {
    if (!rank.status) continue;
    const Call& own = rank.status->waiting;
    if (last.communicator.empty() && !rank.status->recent.empty()) last = rank.status->recent[0];
    if (own.communicator.empty()) continue;
    const long votes = std::ranges::count_if(ranks, [&](const CallFailure::Rank& other) {
      return other.status && other.status->waiting.same_place(own);
    });
    const bool in_vain = !ranks_in(parts_of(ranks, own), Part::Role::kSilent).empty();
    const std::tuple weight{in_vain, own.communicator != "control", votes};
    if (weight <= best) continue;
    best = weight;
    chosen = own;
  }
  return chosen.communicator.empty() ? last : chosen;
}

// Distinct calls at one sequence number with the count of ranks, most frequent first. Ties: the
// lowest rank's call first.
std::vector<std::pair<int, Call>> votes_for(const std::vector<Part>& parts) {
  std::vector<std::pair<int, Call>> votes;
  for (const Part& part : parts) {
    if (part.own.communicator.empty()) continue;
    const auto same = std::ranges::find_if(
        votes, [&](const auto& vote) { return vote.second.agrees_with(part.own); });
    same == votes.end() ? votes.emplace_back(1, part.own).first : ++same->first;
  }
  std::ranges::stable_sort(votes, std::greater<>(), &std::pair<int, Call>::first);
  return votes;
}

}  // namespace

bool Call::same_place(const Call& other) const {
  return !communicator.empty() && communicator == other.communicator &&
         sequence == other.sequence && source == other.source && destination == other.destination;
}

bool Call::agrees_with(const Call& other) const {
  return data == other.data && (is_message() || operation == other.operation);
}

std::string Call::describe() const {
  const std::string what = concat(operation, data, label.empty() ? "" : " of ", label);
  const std::string place =
      is_message() ? concat("message ", sequence, " from rank ", source, " to rank ", destination)
                   : concat("call ", sequence);
  return concat(what, " (", place, " of ", communicator, "), step ", step, ", ", phase);
}

std::string Call::pack() const {
  return control::pack({communicator, std::to_string(sequence), std::to_string(source),
                        std::to_string(destination), operation, data, label, phase,
                        std::to_string(step), exact_text(since_s), ended ? "1" : "0"});
}

Call Call::unpack(const std::string& bytes) {
  const std::vector<std::string> parts = control::unpack(bytes);
  return {parts.at(0),
          std::stoll(parts.at(1)),
          std::stoi(parts.at(2)),
          std::stoi(parts.at(3)),
          parts.at(4),
          parts.at(5),
          parts.at(6),
          parts.at(7),
          std::stoll(parts.at(8)),
          leading_number(parts.at(9)),
          parts.at(10) == "1"};
}

std::string RankStatus::pack() const {
  std::vector<std::string> calls, parts{asked.pack(), waiting.pack()};
  for (const Call& call : recent) calls.push_back(call.pack());
  parts.push_back(control::pack(calls));
  for (const Membership& each : communicators) {
    parts.push_back(
        control::pack({each.communicator, std::to_string(each.rank), std::to_string(each.size),
                       std::to_string(each.collectives), each.open ? "1" : "0"}));
  }
  return control::pack(parts);
}

RankStatus RankStatus::unpack(const std::string& bytes) {
  RankStatus status;
  const std::vector<std::string> parts = control::unpack(bytes);
  status.asked = Call::unpack(parts.at(0));
  status.waiting = Call::unpack(parts.at(1));
  for (const std::string& call : control::unpack(parts.at(2))) {
    status.recent.push_back(Call::unpack(call));
  }
  for (size_t i = 3; i < parts.size(); ++i) {
    const std::vector<std::string> each = control::unpack(parts[i]);
    status.communicators.push_back({each.at(0), std::stoi(each.at(1)), std::stoi(each.at(2)),
                                    std::stoll(each.at(3)), each.at(4) == "1"});
  }
  return status;
}

std::vector<int> CallFailure::undecided() const {
  const std::vector<Part> parts = parts_of(ranks, disagreement(ranks));
  const auto votes = votes_for(parts);
  const bool equal = votes.size() > 1 && votes[0].first == votes[1].first;
  return equal ? ranks_in(parts, Part::Role::kMissing) : std::vector<int>();
}

Error CallFailure::explain() const {
  const auto who = [&](const std::vector<int>& several) {
    std::string text;
    for (const int r : several) {
      text += concat(text.empty() ? "rank " : ", rank ", r, " (host ", ranks[r].host, ")");
    }
    return text;
  };
  Call about = disagreement(ranks);
  const bool in_question = call.communicator.empty() || timeout_s > 0;
  if (about.communicator.empty() && in_question) about = call_in_question(ranks);
  if (about.communicator.empty()) about = call;
  if (about.communicator.empty()) return Error(ErrorCode::kUnavailable, cause);
  const std::vector<Part> parts = parts_of(ranks, about);
  if (const auto votes = votes_for(parts); !votes.empty()) about = votes.front().second;
  const std::vector<int> missing = ranks_in(parts, Part::Role::kMissing);
  const std::vector<int> silent = ranks_in(parts, Part::Role::kSilent);
  std::vector<int> came, others;
  std::string also;
  for (const int r : ranks_in(parts, Part::Role::kCame)) {
    const Call& own = parts[r].own;
    const bool known = !own.communicator.empty(), agrees = !known || own.agrees_with(about);
    (agrees ? came : others).push_back(r);
    if (!agrees) {
      also += concat("; rank ", r, " called ", own.describe());
    } else if (known &&
               (own.label != about.label || own.step != about.step || own.phase != about.phase)) {
      also += concat("; rank ", r, " came to it with ", own.describe());
    }
  }
  for (const int r : missing) {
    const RankStatus& status = *ranks[r].status;
    const bool waits = !status.waiting.communicator.empty();
    also += concat("; rank ", r,
                   waits                   ? " waits in " + status.waiting.describe()
                   : status.recent.empty() ? " has called nothing"
                                           : " last called " + status.recent.front().describe());
  }
  std::string subject = cause;
  if (!others.empty()) {
    subject = who(others) + " called something else";
    also += "; all ranks must call the same operations in the same order";
  } else if (cause.empty()) {
    subject = !silent.empty()
                  ? who(silent) + " does not answer: it is stopped, swapped out or cut off"
              : !missing.empty() ? who(missing) + " has not come"
                                 : "an operation to which all ranks have come does not end";
  }
  const bool nobody_waits = about.ended && others.empty();
  std::string sentence =
      concat(subject, ": ", nobody_waits ? "the last call was " : "", about.describe());
  if (!came.empty()) {
    const bool several = came.size() > 1;
    sentence += concat(several ? "; ranks " : "; rank ", rank_list(came),
                       about.ended ? " came to it at "
                       : several   ? " have waited since "
                                   : " has waited since ",
                       time_text(about.since_s));
  }
  if (timeout_s > 0 && others.empty()) {
    sentence += concat(", for more than ", timeout_s, " s (TESSERA_COLLECTIVE_TIMEOUT_S)");
  }
  return Error(others.empty() ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument,
               sentence + also);
}

}  // namespace tessera
