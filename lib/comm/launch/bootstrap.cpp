// SPDX-License-Identifier: MIT
#include "tessera/comm/bootstrap.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>

#include "lib/comm/collective_timeout.h"
#include "lib/comm/control/control_client.h"
#include "lib/comm/control/heartbeat.h"
#include "lib/comm/control/hub.h"
#include "lib/comm/launch/launcher.h"
#include "lib/comm/launch/rendezvous.h"
#include "lib/comm/launch/transports.h"
#include "lib/core/host_name.h"
#include "lib/core/joined.h"
#include "lib/core/number_text.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera {
namespace {

using control::ControlClient;
using control::Hub;

double rendezvous_timeout_s() {
  const char* text = std::getenv("TESSERA_RENDEZVOUS_TIMEOUT_S");
  if (text == nullptr) return 120;
  const std::optional<double> seconds = parse_number(text);
  check(seconds && *seconds > 0 && *seconds <= 1e6, ErrorCode::kInvalidArgument,
        "TESSERA_RENDEZVOUS_TIMEOUT_S=", text,
        " is not a number of seconds above 0 and at most 1000000");
  return *seconds;
}

// Text shared by ranks of one host, which share its GPUs and loopback.
std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code none;
  const auto network = std::filesystem::read_symlink("/proc/self/ns/net", none);
  return concat(host_name(), " ", boot, " ", network.string());
}

class ProcessBootstrap final : public Bootstrap {
 public:
  explicit ProcessBootstrap(const Launch& launch)
      : launch_(launch.info), problem_(launch.contradiction) {
    if (launch_.world_size == 1) return;
    const double timeout_s = rendezvous_timeout_s();
    const double heartbeat_timeout_s = control::heartbeat_timeout_s();
    const LaunchGroup kin = launch.meeting == RendezvousMethod::kAddress
                                ? launch_group_of_process(host_identity())
                                : LaunchGroup{};
    RendezvousAddress place = arrange_meeting(launch, rendezvous_over_mpi(launch_), timeout_s);
    if (place.listener) {
      hub_ = std::make_unique<Hub>(std::move(*place.listener), size(), launch.job,
                                   std::move(place.secret), timeout_s, heartbeat_timeout_s,
                                   control::kMostProven, kin);
    }
    client_ = std::make_unique<ControlClient>(
        place.rank_0, ControlClient::Identity{rank(), size(), launch.job, kin}, timeout_s + 5,
        signal_);
    client_->set_witness({.tell = [log = log_](const Call* asked) { return log->status(asked); },
                          .on_failure = [this] { log_->fail(signal_->reason()); }});
    compare_ranks(launch);
  }
  ~ProcessBootstrap() override {
    if (!concluded_ && std::uncaught_exceptions() > exceptions_) {
      abort(concat("rank ", rank(), " was ended by an exception"));
    }
    const bool clean = !signal_->raised();
    client_.reset();
    hub_.reset();
    close_transports(clean);
  }

  int rank() const override { return launch_.rank; }
  int size() const override { return launch_.world_size; }
  const LaunchInfo& launch() const override { return launch_; }

  std::vector<std::string> exchange(const std::string& bytes) override {
    if (client_ == nullptr) return {bytes};
    const LoggedCall call(log_,
                          log_->add(control_, {.operation = "exchange", .sequence = exchanges_++}));
    std::vector<std::string> all = client_->exchange(bytes);
    call.ended();
    return all;
  }

  std::unique_ptr<Communicator> connect(const std::string& transport) override {
    check(problem_.empty(), ErrorCode::kInvalidArgument, problem_);
    TransportContext context{launch_, address_, this, signal_, {}, {}, {}, log_, {}};
    context.post = [this](const std::string& key, const std::string& value) {
      check(client_ != nullptr, ErrorCode::kInternal, "a single rank has nobody to post to");
      client_->post(key, value);
    };
    context.take = [this](const std::string& key) {
      check(client_ != nullptr, ErrorCode::kInternal, "a single rank has nobody to take from");
      return client_->take(key);
    };
    context.abort = [this](const std::string& reason) { abort(reason); };
    context.report = [this](const LoggedCall& call, const std::string& cause) {
      report({cause, call.text(), static_cast<double>(collective_timeout().count())});
    };
    return choose(transport).connect(context);
  }

  void abort(const std::string& reason) override {
    signal_->raise(reason);
    if (client_ != nullptr) client_->abort(reason);
  }

  std::vector<std::string> conclude(const std::string& status) override {
    concluded_ = true;
    if (!status.empty()) signal_->raise("this rank has failed");
    if (client_ == nullptr) return {status};
    std::vector<std::string> all = client_->conclude(status);
    // The first rank that answered logs for all; each other rank adds its own communication error.
    const auto reporter = std::ranges::find_if(all, [](const auto& each) { return each != "?"; });
    const std::string failure = log_->failure();
    if (!failure.empty() && reporter - all.begin() != rank()) log(LogLevel::kError, failure);
    const std::string path = log_->path();
    if (!path.empty()) log(LogLevel::kInfo, "the last operations of rank ", rank(), ": ", path);
    return all;
  }

 private:
  // Exchanges the reasons first: every rank must choose the same transport.
  const Transport& choose(const std::string& wanted) {
    std::string reasons;
    for (const Transport& transport : transports()) {
      if (wanted != "auto" && wanted != transport.name) continue;
      const std::vector<std::string> all = exchange(transport.unusable_because(launch_));
      std::vector<int> ranks;
      std::string reason;
      for (int r = 0; r < size(); ++r) {
        if (all[r].empty()) continue;
        if (reason.empty()) reason = all[r];
        ranks.push_back(r);
      }
      if (ranks.empty()) return transport;
      reasons += concat("; ", transport.name, ": on rank ", rank_list(ranks), " ", reason);
    }
    check(!reasons.empty(), ErrorCode::kInvalidArgument, "transport '", wanted,
          "' is not in this build; it has ", joined(available_transports()), " and auto");
    fail(ErrorCode::kInvalidArgument, "transport '", wanted, "' cannot serve this launch (",
         launch_.launcher, ", ", size(), " ranks)", reasons);
  }

  // Asks the hub for the diagnostic; without a working hub this rank builds its own.
  void report(const control::Report& report) {
    if (client_ != nullptr) client_->report(report);
    if (signal_->raised()) return;
    std::vector<CallFailure::Rank> ranks(size());
    ranks[rank()] = {host_name(), log_->status(&report.call)};
    const CallFailure failure{report.cause, report.call, report.timeout_s, std::move(ranks)};
    abort(failure.explain().what());
    log_->fail(signal_->reason());
  }

  // Exchanges contradictions in the launchers' variables, which only some ranks see, and the hosts.
  void compare_ranks(const Launch& launch) {
    const auto all = exchange(control::pack({launch.contradiction, host_identity()}));
    std::vector<std::string> hosts;
    for (const std::string& bytes : all) {
      const std::vector<std::string> parts = control::unpack(bytes);
      if (problem_.empty()) problem_ = parts.at(0);
      hosts.push_back(parts.at(1));
    }
    const std::string& mine = hosts[rank()];
    const auto here = [&](int ranks) {
      return static_cast<int>(std::count(hosts.begin(), hosts.begin() + ranks, mine));
    };
    const bool one_host = here(size()) == size();
    address_ = one_host ? "127.0.0.1" : client_->address();
    if (!one_host && control::is_loopback(address_)) address_ = control::address_for_others("");
    if (!launch.local_rank_known) launch_.local_rank = here(rank());
    if (!launch.local_size_known) launch_.local_size = here(size());
  }

  const int exceptions_ = std::uncaught_exceptions();
  LaunchInfo launch_;
  std::string problem_;  // why this job cannot start; equal on all ranks
  std::string address_;
  std::atomic<bool> concluded_{false};
  const std::shared_ptr<AbortSignal> signal_ = std::make_shared<AbortSignal>();
  const std::shared_ptr<OperationLog> log_ = std::make_shared<OperationLog>(launch_.rank);
  const int control_ = log_->join("control", launch_.rank, launch_.world_size);
  int64_t exchanges_ = 0;
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<ControlClient> client_;
};

}  // namespace

std::vector<TransportInfo> describe_transports(const LaunchInfo& launch) {
  std::vector<TransportInfo> all;
  for (const Transport& transport : transports()) {
    all.push_back({transport.name, transport.library(), transport.unusable_because(launch)});
  }
  return all;
}

std::vector<std::string> available_transports() {
  std::vector<std::string> names;
  for (const Transport& transport : transports()) names.emplace_back(transport.name);
  return names;
}

std::unique_ptr<Bootstrap> make_bootstrap() {
  return std::make_unique<ProcessBootstrap>(read_launch(process_environment()));
}

}  // namespace tessera
