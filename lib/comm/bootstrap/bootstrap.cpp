#include "tessera/comm/bootstrap.h"

#include <unistd.h>

#include <cstdlib>
#include <random>

#include "lib/comm/bootstrap/control_client.h"
#include "lib/comm/bootstrap/hub.h"
#include "lib/comm/transports.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using control::ControlClient;
using control::Hub;

std::string environment(const char* name, const std::string& fallback) {
  const char* value = std::getenv(name);
  return value == nullptr ? fallback : value;
}

double rendezvous_timeout_s() {
  const std::string text = environment("TESSERA_RENDEZVOUS_TIMEOUT_S", "120");
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  check(*end == '\0' && seconds > 0, ErrorCode::kInvalidArgument,
        "TESSERA_RENDEZVOUS_TIMEOUT_S=", text, " is not a positive number of seconds");
  return seconds;
}

std::string random_secret() {
  std::random_device device;
  std::string text;
  for (int i = 0; i < 8; ++i) text += concat(device(), ".");
  return text;
}

std::string host_name() {
  char name[256] = "localhost";
  gethostname(name, sizeof name - 1);
  return name;
}

std::string available_list() {
  std::string text;
  for (const std::string& name : available_transports()) text += (text.empty() ? "" : ", ") + name;
  return text;
}

class ProcessBootstrap final : public Bootstrap {
 public:
  explicit ProcessBootstrap(const LaunchInfo& launch)
      : launch_(launch), signal_(std::make_shared<AbortSignal>()) {
    if (launch.world_size > 1) connect_control();
  }
  ~ProcessBootstrap() override {
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
    return client_->exchange(bytes);
  }

  std::unique_ptr<Communicator> connect(const std::string& transport) override {
    TransportContext context{launch_, this, signal_, {}, {}, {}};
    context.post = [this](const std::string& key, const std::string& value) {
      check(client_ != nullptr, ErrorCode::kInternal, "a single rank has nobody to post to");
      client_->post(key, value);
    };
    context.take = [this](const std::string& key) {
      check(client_ != nullptr, ErrorCode::kInternal, "a single rank has nobody to take from");
      return client_->take(key);
    };
    context.abort = [this](const std::string& reason) { abort(reason); };
    return choose(transport).connect(context);
  }

  void abort(const std::string& reason) override {
    signal_->raise(reason);
    if (client_ != nullptr) client_->abort(reason);
  }

  std::vector<std::string> conclude(const std::string& status) override {
    if (!status.empty()) signal_->raise("this rank has failed");
    if (client_ == nullptr) return {status};
    return client_->conclude(status);
  }

 private:
  // Every rank must come to the same transport, so the reasons are exchanged first.
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
          "' is not in this build; it has ", available_list(), " and auto");
    fail(ErrorCode::kInvalidArgument, "transport '", wanted, "' cannot serve this launch (",
         launch_.launcher, ", ", size(), " ranks)", reasons);
  }

  void connect_control() {
    const double timeout_s = rendezvous_timeout_s();
    Rendezvous at;
    if (launch_.launcher == "mpirun" && rendezvous_over_mpi() != nullptr) {
      if (rank() == 0) {
        at.host = launch_.local_size == launch_.world_size ? "127.0.0.1" : host_name();
        at.secret = random_secret();
        listen_and_serve(at, 0, timeout_s);
      }
      at = rendezvous_over_mpi()(at);
    } else {
      at.host =
          environment("MASTER_ADDR", launch_.local_size == launch_.world_size ? "127.0.0.1" : "");
      check(!at.host.empty(), ErrorCode::kInvalidArgument,
            "launch: MASTER_ADDR is not set; set it to the name of rank 0's host on all ranks");
      at.port = master_port();
      at.secret = environment("TESSERA_JOB_SECRET", "");
      if (rank() == 0) listen_and_serve(at, at.port, timeout_s);
    }
    client_ = std::make_unique<ControlClient>(at.host, at.port,
                                              ControlClient::Identity{rank(), size(), at.secret},
                                              timeout_s + 5, signal_);
  }

  static int master_port() {
    const std::string text = environment("MASTER_PORT", "");
    char* end = nullptr;
    const long port = std::strtol(text.c_str(), &end, 10);
    check(!text.empty() && *end == '\0' && 0 < port && port < 65536, ErrorCode::kInvalidArgument,
          "launch: MASTER_PORT='", text,
          "' is not a port; set it to one free port of rank 0's host on all ranks");
    return static_cast<int>(port);
  }

  void listen_and_serve(Rendezvous& at, int port, double timeout_s) {
    control::Socket listener = control::listen_at(at.host, port);
    at.port = control::port_of(listener);
    hub_ = std::make_unique<Hub>(std::move(listener), size(), at.secret, timeout_s);
  }

  const LaunchInfo launch_;
  const std::shared_ptr<AbortSignal> signal_;
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<ControlClient> client_;
};

}  // namespace

std::vector<std::string> available_transports() {
  std::vector<std::string> names;
  for (const Transport& transport : transports()) names.emplace_back(transport.name);
  return names;
}

std::unique_ptr<Bootstrap> make_bootstrap() {
  return std::make_unique<ProcessBootstrap>(detect_launch());
}

}  // namespace tessera
