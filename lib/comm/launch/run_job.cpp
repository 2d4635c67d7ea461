#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <map>
#include <optional>

#include "lib/comm/control/wire.h"
#include "lib/comm/launch/early_notice.h"
#include "lib/core/failure.h"
#include "lib/core/host_threads.h"
#include "tessera/comm/checked.h"
#include "tessera/comm/launch.h"
#include "tessera/comm/local.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/core/log.h"

namespace tessera {
namespace {

constexpr const char* kNoAnswer = "did not answer: dead or stuck";
constexpr size_t kMostMessage = 64 << 10;  // bytes of an error that the others are told

// How a rank ended; as a status of Bootstrap::conclude a list {code, message}, empty when it ended
// well.
struct Ending {
  int code = 0;
  std::string kind;
  std::string message;

  std::string pack() const {
    if (code == 0) return "";
    return control::pack({std::to_string(code), kind, message.substr(0, kMostMessage)});
  }
  static Ending unpack(const std::string& status) {
    if (status.empty()) return {};
    if (status == "?") return {exit_code(ErrorCode::kUnavailable), "peer unavailable", kNoAnswer};
    const std::vector<std::string> parts = control::unpack(status);
    return {std::stoi(parts.at(0)), parts.at(1), parts.at(2)};
  }
};

Ending ending_of(ErrorCode code, const std::string& message) {
  return {exit_code(code), error_code_name(code), message};
}

// error: null for one of unknown type.
Ending ending_of(const std::exception* error) {
  const Failure failure = failure_of(error);
  return ending_of(failure.code, failure.message);
}

Ending current_exception_ending() {
  const Failure failure = current_failure();
  return ending_of(failure.code, failure.message);
}

std::string failure_reason(int rank, const Ending& ending) {
  return concat("rank ", rank, " failed: ", ending.message.substr(0, kMostMessage));
}

// The exit code of the root cause: errors of peers count only when there is no other.
int root_cause(const std::vector<Ending>& endings) {
  const int peer_failed = exit_code(ErrorCode::kUnavailable);
  int code = 0;
  for (const Ending& ending : endings) {
    if (ending.code != 0 && (code == 0 || code == peer_failed) && ending.code != code) {
      code = ending.code;
    }
  }
  return code;
}

// Ranks that say the same, but for numbers such as the bytes each of them has.
struct SameEnding {
  std::string text;  // of the first
  std::vector<int> ranks;
  bool alike = false;  // their numbers differ
};

std::string without_numbers(const std::string& text) {
  std::string kept;
  for (const char c : text) {
    if (c < '0' || c > '9') kept += c;
  }
  return kept;
}

// One line per distinct message, root causes first. A rank that ended because of another one's
// error is counted there.
void log_endings(const std::vector<Ending>& endings) {
  std::map<std::string, SameEnding> causes, consequences;
  const int cause = root_cause(endings);
  const auto is_cause = [&](const Ending& ending) {
    return ending.code != exit_code(ErrorCode::kUnavailable) || cause == ending.code;
  };
  const auto add = [&](std::map<std::string, SameEnding>& groups, const std::string& text, int rank,
                       const std::string& key) {
    SameEnding& group = groups[key];
    if (group.ranks.empty()) group.text = text;
    group.alike = group.alike || group.text != text;
    group.ranks.push_back(rank);
  };
  std::map<std::string, std::string> messages;  // of causes, and their groups
  for (size_t r = 0; r < endings.size(); ++r) {
    const Ending& ending = endings[r];
    if (ending.code == 0 || !is_cause(ending)) continue;
    const std::string text = concat(ending.kind, ": ", ending.message);
    messages.emplace(ending.message, without_numbers(text));
    add(causes, text, static_cast<int>(r), without_numbers(text));
  }
  for (size_t r = 0; r < endings.size(); ++r) {
    const Ending& ending = endings[r];
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
      log(level, where, group.text, same);
    }
  };
  const int speaker = log_rank();
  set_log_rank(-1);  // the lines name their ranks
  write(causes, LogLevel::kError);
  write(consequences, LogLevel::kInfo);
  set_log_rank(speaker);
}

// For torchrun, whose summary names the cause that its workers leave in this file (the format is
// torch.distributed.elastic's).
void leave_for_agent(const Ending& ending) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr) return;
  JsonWriter report;
  report.begin_object().key("message").begin_object();
  report.field("message", concat(ending.kind, ": ", ending.message)).key("extraInfo");
  report.begin_object().field("timestamp", std::to_string(std::time(nullptr))).end_object();
  report.field("errorCode", ending.code).end_object().end_object();
  std::ofstream(path, std::ios::trunc) << report.text();
}

// Threads that wait for each other are many times as slow where they take turns on a core.
void warn_about_threads(int local_size) {
  const int threads = at::get_num_threads();
  const auto allowed = static_cast<int>(allowed_cores().size());
  const auto online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const bool bound = allowed < online;  // then each process has cores of its own
  if (threads * (bound ? 1 : local_size) <= allowed) return;
  const int each = std::max(1, allowed / (bound ? 1 : local_size));
  const std::string fewer_threads = threads > each ? concat(" or set OMP_NUM_THREADS=", each) : "";
  log(LogLevel::kInfo, local_size, " rank(s) of ", threads, " thread(s) on this host share ",
      allowed, bound ? " core(s) each" : " core(s)",
      ": they take turns, which is slow; start fewer ranks", fewer_threads);
}

int run_threads(int ranks, const JobFunction& fn) {
  std::vector<Ending> endings(ranks);
  warn_about_threads(ranks);
  try {
    run_local_ranks(ranks, [&](Communicator& world) {
      const int rank = world.rank();
      try {
        const auto talk = world.split(0, rank);
        CommunicatorChannel control(*talk);
        run_with_early_notice(
            [&] {
              fn(world, LaunchInfo{"threads", rank, ranks, rank, ranks}, control);
            },
            [&](const std::exception* error) {
              return [&world, reason = failure_reason(rank, ending_of(error))] {
                world.abort(reason);
              };
            });
      } catch (...) {
        endings[rank] = current_exception_ending();
        throw;
      }
    });
  } catch (...) {
    const Ending whole = current_exception_ending();
    const bool of_a_rank = std::ranges::any_of(
        endings, [&](const Ending& ending) { return ending.message == whole.message; });
    if (!of_a_rank) throw;  // not all ranks could be started
    log_endings(endings);
    return root_cause(endings);
  }
  return 0;
}

// Ranks of a host share its cores unless the user has said otherwise or bound them closer.
void share_cores(int local_size) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const auto online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const auto allowed = static_cast<int>(allowed_cores().size());
  at::set_num_threads(std::max(1, std::min(allowed, online / std::max(1, local_size))));
}

// A GPU's rank has threads beside its main one: messages, data, launches.
void warn_about_one_core(const Communicator& world) {
  if (world.rank() != 0 || !world.device().is_cuda() || allowed_cores().size() > 1) return;
  log(LogLevel::kWarning,
      "this rank may run on one core only, which slows everything that the GPU waits for; give "
      "mpirun --bind-to none (or numa): for one or two ranks it binds each to a core");
}

// Tells the others how this rank ended and hears of them; whoever is to report does. The exit code.
int conclude(Bootstrap& bootstrap, const Ending& mine) {
  if (mine.code != 0) bootstrap.abort(failure_reason(bootstrap.rank(), mine));
  std::vector<Ending> endings;
  try {
    for (const std::string& status : bootstrap.conclude(mine.pack())) {
      endings.push_back(Ending::unpack(status));
    }
  } catch (const Error& error) {  // rank 0 is gone: nobody else can tell
    endings = {mine.code != 0 ? mine : ending_of(error.code(), error.what())};
    log_endings(endings);
    return root_cause(endings);
  }
  const auto reporter = std::find_if(endings.begin(), endings.end(), [](const Ending& ending) {
    return ending.message != kNoAnswer;
  });
  if (reporter - endings.begin() == bootstrap.rank()) log_endings(endings);
  if (mine.code != 0 && mine.code == root_cause(endings)) leave_for_agent(mine);
  return root_cause(endings);
}

int run_process(const JobOptions& options, const JobFunction& fn) {
  const auto bootstrap = make_bootstrap();
  if (bootstrap->size() > 1) set_log_rank(bootstrap->rank());
  std::unique_ptr<Communicator> world;
  std::optional<int> code;  // once all are told how this rank ends
  try {
    run_with_early_notice(
        [&] {
          world = bootstrap->connect(options.transport);
          warn_about_one_core(*world);
          share_cores(bootstrap->launch().local_size);
          if (world->rank() == 0) warn_about_threads(bootstrap->launch().local_size);
          if (options.debug_collectives) world = check_collectives(std::move(world));
          fn(*world, bootstrap->launch(), *bootstrap);
        },
        // Unwinding may take minutes: a checkpoint is written to its end.
        [&](const std::exception* error) {
          return [&, mine = ending_of(error)] { code = conclude(*bootstrap, mine); };
        });
    code = conclude(*bootstrap, {});
  } catch (...) {
    if (!code) code = conclude(*bootstrap, current_exception_ending());
  }
  world.reset();  // after the report: closing what was aborted may take its time
  return *code;
}

}  // namespace

int run_job(const JobOptions& options, const JobFunction& fn) {
  try {
    if (options.ranks == 0) return run_process(options, fn);
    const LaunchInfo launch = detect_launch();
    check(options.ranks > 0, ErrorCode::kInvalidArgument, "--ranks ", options.ranks,
          " is not a number of ranks");
    check(launch.world_size == 1, ErrorCode::kInvalidArgument, "--ranks ", options.ranks,
          " makes in-process ranks, but ", launch.launcher, " already started ", launch.world_size,
          " processes; use one of the two");
    check(options.transport == "auto" || options.transport == "local", ErrorCode::kInvalidArgument,
          "--ranks makes in-process ranks, which the transport '", options.transport,
          "' cannot connect; leave it out or start processes with mpirun");
    return run_threads(options.ranks, fn);
  } catch (...) {
    const Ending ending = current_exception_ending();
    log(LogLevel::kError, ending.kind, ": ", ending.message);
    leave_for_agent(ending);
    return ending.code;
  }
}

int run_job(const JobOptions& options, const std::function<void(Communicator& world)>& fn) {
  return run_job(options,
                 [&](Communicator& world, const LaunchInfo&, ControlChannel&) { fn(world); });
}

}  // namespace tessera
