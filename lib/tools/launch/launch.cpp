// SPDX-License-Identifier: MIT
#include "lib/tools/launch/launch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>

#include "lib/core/clock.h"
#include "lib/core/version_flag.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera::programs {
namespace {

constexpr char kHelp[] =
    R"(tessera-launch [-n N] [--max-restarts K] [--mpirun PATH] [--mpirun-arg ARG]... PROGRAM [ARGUMENTS]
Runs `mpirun -n N PROGRAM ARGUMENTS` and, when a rank was lost (exit status 5, or a signal), again with
`--resume_from_checkpoint auto`, at most K times (3). Other exit statuses are returned as they are.
SIGTERM, SIGUSR1 and Ctrl-C reach the ranks as SIGUSR1: they save, and the status is 75, 130 after Ctrl-C. A second one
ends them at once.
  -n N              ranks; without it mpirun decides
  --max-restarts K  0: never
  --mpirun PATH     instead of the mpirun in PATH
  --mpirun-arg ARG  one more argument for mpirun, such as --oversubscribe
  --version         print the version, LibTorch's and the transports, and stop
)";

constexpr int kPreempted = 75, kPeerFailed = 5, kSignalled = 128;

int count_of(const std::string& flag, const std::string& text, int least) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  check(error == std::errc() && end == text.data() + text.size() && number >= least,
        ErrorCode::kInvalidArgument, flag, " ", text, ": expected an integer from ", least);
  return number;
}

std::atomic<pid_t> child{0};  // the running mpirun
std::atomic<int> first_signal{0};

void send_on(int number) {
  const int kept = errno;
  const pid_t to = child;
  // mpirun forwards SIGUSR1 to the ranks; on SIGTERM and SIGINT it kills them a second later.
  int none = 0;
  const int what = first_signal.compare_exchange_strong(none, number) ? SIGUSR1 : number;
  if (to > 0) kill(to, what);
  errno = kept;
}

constexpr std::array kSentOn{SIGTERM, SIGUSR1, SIGINT};

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = send_on;
  sigemptyset(&action.sa_mask);
  for (const int number : kSentOn) sigaction(number, &action, nullptr);
}

// Blocks signals in its scope, so that none arrives between fork() and storing `child`.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t held;
    sigemptyset(&held);
    for (const int number : kSentOn) sigaddset(&held, number);
    sigprocmask(SIG_BLOCK, &held, &before_);
  }
  ~SignalsHeld() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// Exit status as in a shell: 128 + n for signal n.
int run_once(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::optional<SignalsHeld> held(std::in_place);
  if (first_signal != 0) return kSignalled + SIGTERM;
  const pid_t pid = fork();
  check(pid >= 0, ErrorCode::kResourceExhausted, "no further process: ", std::strerror(errno));
  if (pid == 0) {
    // In its own process group, so that Ctrl-C reaches it once, through this process.
    setpgid(0, 0);
    held.reset();
    execvp(argv[0], argv.data());
    std::fprintf(stderr, "tessera-launch: %s: %s; --mpirun PATH names it\n", argv[0],
                 std::strerror(errno));
    _exit(exit_code(ErrorCode::kInvalidArgument));
  }
  child = pid;
  held.reset();
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  child = 0;
  return WIFSIGNALED(status) ? kSignalled + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

LaunchCommand parse_launch(const std::vector<std::string>& arguments) {
  LaunchCommand command;
  size_t at = 0;
  for (; at < arguments.size() && arguments[at].starts_with("-"); ++at) {
    const std::string& flag = arguments[at];
    if (flag == "--help" || flag == "-h") return {};
    if (flag == "--version") return {.version = true};
    constexpr std::array kFlags{"-n", "-np", "--max-restarts", "--mpirun", "--mpirun-arg"};
    check(std::ranges::count(kFlags, flag) > 0, ErrorCode::kInvalidArgument, "unknown flag ", flag,
          "; flags of the program stand behind its name (--help lists those of tessera-launch)");
    check(++at < arguments.size(), ErrorCode::kInvalidArgument, flag, " needs a value");
    const std::string& value = arguments[at];
    if (flag == "-n" || flag == "-np") {
      command.ranks = count_of(flag, value, 1);
    } else if (flag == "--max-restarts") {
      command.max_restarts = count_of(flag, value, 0);
    } else if (flag == "--mpirun") {
      command.mpirun = value;
    } else {
      command.mpirun_arguments.push_back(value);
    }
  }
  check(at < arguments.size(), ErrorCode::kInvalidArgument,
        "no program to launch; tessera-launch -n 2 PROGRAM ARGUMENTS");
  command.program.assign(arguments.begin() + static_cast<std::ptrdiff_t>(at), arguments.end());
  return command;
}

std::vector<std::string> launch_arguments(const LaunchCommand& command, bool restart) {
  std::vector<std::string> all{command.mpirun};
  if (command.ranks > 0) all.insert(all.end(), {"-n", std::to_string(command.ranks)});
  all.insert(all.end(), command.mpirun_arguments.begin(), command.mpirun_arguments.end());
  all.insert(all.end(), command.program.begin(), command.program.end());
  const bool says = std::ranges::any_of(command.program, [](const std::string& argument) {
    return argument.starts_with("--resume_from_checkpoint");
  });
  if (restart && !says) all.insert(all.end(), {"--resume_from_checkpoint", "auto"});
  return all;
}

bool worth_restarting(int status) {
  if (status == kSignalled + SIGINT || status == kSignalled + SIGTERM) return false;
  return status == kPeerFailed || status > kSignalled;
}

int run_launch(const std::vector<std::string>& arguments) try {
  const LaunchCommand command = parse_launch(arguments);
  if (command.program.empty()) {
    std::fputs(command.version ? version_text("tessera-launch").c_str() : kHelp, stdout);
    return 0;
  }
  catch_signals();
  for (int restarts = 0;; ++restarts) {
    const double begin = now_s();
    const int status = run_once(launch_arguments(command, restarts > 0));
    if (first_signal == SIGINT && status != 0) return kSignalled + SIGINT;
    if (status == kPreempted || !worth_restarting(status) || first_signal != 0) return status;
    const std::string what = concat("tessera-launch: exit status ", status, " after ",
                                    static_cast<int64_t>(now_s() - begin), " s; ");
    if (restarts == command.max_restarts) {
      log(LogLevel::kError, what, "no restart is left of ", command.max_restarts);
      return status;
    }
    log(LogLevel::kWarning, what, "restart ", restarts + 1, " of ", command.max_restarts,
        " from the newest checkpoint");
  }
} catch (const Error& error) {
  std::fprintf(stderr, "tessera-launch: %s\n", error.what());
  return exit_code(error.code());
}

}  // namespace tessera::programs
