// SPDX-License-Identifier: MIT
#include "lib/comm/launch/rendezvous.h"

#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

#include "lib/comm/control/wire.h"
#include "lib/comm/launch/agent_store.h"
#include "lib/comm/launch/pmi.h"
#include "lib/comm/launch/slurm_step.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using control::listen_at;
using control::Socket;

constexpr const char* kLoopback = "127.0.0.1";
constexpr double kStoreTimeout = 5;  // seconds; the agent's store exists before its workers

// One word, for channels without spaces.
std::string to_word(const Rendezvous& at) { return concat(at.port, "!", at.host, "!", at.secret); }

Rendezvous from_word(const std::string& word) {
  std::istringstream text(word);
  std::string port, host, secret;
  std::getline(text, port, '!');
  std::getline(text, host, '!');
  std::getline(text, secret);
  check(!port.empty() && !host.empty(), ErrorCode::kUnavailable, "launch: '", word,
        "' is not where a rank 0 listens");
  return {host, std::stoi(port), secret};
}

// The address rank 0 binds for a name that others use: that name, unless it is loopback on this
// host and other hosts must reach it.
std::string where_to_listen(const std::string& name) {
  if (std::getenv("TESSERA_HOST_ADDRESS") != nullptr) return control::address_for_others("");
  return control::resolves_to_loopback(name) ? "" : name;
}

// Address under which rank 0 reaches its own listener.
Rendezvous own_door(const Socket& listener, const std::string& secret) {
  const std::string bound = control::local_address(listener);
  const bool any = bound == "0.0.0.0" || bound == "::";
  return {any ? kLoopback : bound, control::port_of(listener), secret};
}

class Arrangement {
 public:
  Arrangement(const Launch& launch, RendezvousExchange over_mpi, double timeout_s)
      : launch_(launch), over_mpi_(over_mpi), timeout_s_(timeout_s) {
    secret_ = job_secret(process_environment(), no_secret_);
  }

  RendezvousAddress make() {
    switch (launch_.meeting) {
      case RendezvousMethod::kAgentStore:
        meet_at_store();
        break;
      case RendezvousMethod::kMpi:
        if (over_mpi_ == nullptr) {
          meet_without_mpi();
          break;
        }
        [[fallthrough]];
      case RendezvousMethod::kPmi:
        meet_through_launcher();
        break;
      default:
        meet_at_known_place();
    }
    return std::move(place_);
  }

 private:
  bool is_rank_0() const { return launch_.info.rank == 0; }

  // Listens on any free port with a random secret, which only told ranks know.
  Rendezvous open_private_door(const std::string& hint) {
    place_.listener =
        listen_at(launch_.one_host ? kLoopback : control::address_for_others(hint), 0);
    place_.secret = control::random_text() + secret_;
    const Rendezvous door = own_door(*place_.listener, place_.secret);
    enter(door);
    return {door.host, door.port, place_.secret.substr(0, place_.secret.size() - secret_.size())};
  }

  void enter(const Rendezvous& at) {
    place_.rank_0.places = [at] { return std::vector<Rendezvous>{at}; };
  }

  void meet_through_launcher() {
    Rendezvous at;
    if (is_rank_0()) at = open_private_door("");
    if (launch_.meeting == RendezvousMethod::kPmi && over_mpi_ == nullptr) {
      at = from_word(
          broadcast_over_pmi(launch_.info.rank, is_rank_0() ? to_word(at) : "", timeout_s_));
    } else {
      at = over_mpi_(at);
    }
    if (is_rank_0()) return;
    at.secret += secret_;
    enter(at);
  }

  // Rendezvous under mpirun without MPI in the build: on one host, a port derived from the job.
  void meet_without_mpi() {
    check(launch_.one_host || (!launch_.host.empty() && launch_.port != 0),
          ErrorCode::kInvalidArgument,
          "launch: mpirun started ranks on several hosts, and this build has no MPI; pass on where "
          "rank 0 is, mpirun -x MASTER_ADDR=<its host> -x MASTER_PORT=29500, or start the program "
          "with torchrun or srun");
    secret_ += launch_.secret;
    meet_at_known_place();
  }

  // [Note: restarts]
  // A restarted job finds its agent's store with the previous run's keys. The key contains the
  // restart's number. Not every torchrun rendezvous counts restarts, so an address at which no rank
  // of this job answers is read again.
  void meet_at_store() {
    auto store = std::make_shared<AgentStore>(launch_.host, launch_.port, kStoreTimeout);
    const std::string key = concat("tessera/", launch_.job, "/rank 0");
    if (is_rank_0()) {
      store->set(key, to_word(open_private_door(launch_.host)));
      return;
    }
    place_.rank_0.certain = false;
    place_.rank_0.unknown =
        concat("torchrun's store at ", control::place_text(launch_.host, launch_.port));
    place_.rank_0.places = [store, key, own = secret_] {
      std::vector<Rendezvous> places;
      if (const auto word = store->get(key, 1.0)) {
        places.push_back(from_word(*word));
        places.back().secret += own;
      }
      return places;
    };
  }

  void meet_at_known_place() {
    check(launch_.one_host || no_secret_ || !secret_.empty(), ErrorCode::kInvalidArgument,
          "launch: the ranks are on several hosts and have no secret that keeps strangers out; set "
          "TESSERA_JOB_SECRET or TESSERA_JOB_SECRET_FILE to the same on all ranks, or "
          "TESSERA_JOB_SECRET=none in a network that you trust");
    const std::string host = launch_.one_host ? kLoopback : launch_.host;
    const std::vector<int> ports =
        launch_.port != 0 ? std::vector<int>{launch_.port} : slurm::ports_of(launch_.job);
    if (is_rank_0()) {
      open_first(launch_.one_host ? kLoopback : where_to_listen(host), ports);
      enter(own_door(*place_.listener, secret_));
      return;
    }
    std::vector<Rendezvous> places;
    for (const int port : ports) places.push_back({host, port, secret_});
    place_.rank_0.certain = places.size() == 1;
    place_.rank_0.places = [places] { return places; };
  }

  void open_first(const std::string& host, const std::vector<int>& ports) {
    place_.secret = secret_;
    for (const int port : ports) {
      place_.listener = control::try_listen(host, port);
      if (place_.listener) return;
    }
    place_.listener = listen_at(host, ports.back());  // throws with the reason
  }

  const Launch& launch_;
  const RendezvousExchange over_mpi_;
  const double timeout_s_;
  std::string secret_;
  bool no_secret_ = false;
  RendezvousAddress place_;
};

std::string secret_of_file(const std::string& path) {
  struct stat status {};
  const bool there = ::stat(path.c_str(), &status) == 0;
  check(!there || (status.st_mode & 077) == 0, ErrorCode::kInvalidArgument,
        "launch: TESSERA_JOB_SECRET_FILE=", path,
        " can be read or written by others than its owner; run: chmod 600 ", path);
  std::ifstream stream(path, std::ios::binary);
  std::string secret{std::istreambuf_iterator<char>(stream), {}};
  while (secret.ends_with('\n') || secret.ends_with('\r')) secret.pop_back();
  check(!secret.empty(), ErrorCode::kInvalidArgument, "launch: TESSERA_JOB_SECRET_FILE=", path,
        " cannot be read or is empty; write some random characters into it, readable by you only");
  return secret;
}

}  // namespace

std::string job_secret(const Environment& environment, bool& has_said_none) {
  const auto text = environment("TESSERA_JOB_SECRET"),
             file = environment("TESSERA_JOB_SECRET_FILE");
  has_said_none = text == "none";
  check(!text || !file, ErrorCode::kInvalidArgument,
        "launch: TESSERA_JOB_SECRET and TESSERA_JOB_SECRET_FILE are both set; unset one of them");
  if (has_said_none) return "";
  if (!file) return text.value_or("");
  return secret_of_file(*file);
}

RendezvousAddress arrange_meeting(const Launch& launch, RendezvousExchange over_mpi,
                                  double timeout_s) {
  return Arrangement(launch, over_mpi, timeout_s).make();
}

}  // namespace tessera
