// SPDX-License-Identifier: MIT
#pragma once
// TCP connections between all ranks of a job, and the thread that moves bytes over them.
#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lib/comm/control/abort_signal.h"
#include "lib/comm/control/socket.h"
#include "lib/comm/operation_log.h"

namespace tessera::tcp {

// Identity of a message, equal on both ends and unique per pair of ranks.
struct Tag {
  uint64_t communicator = 0;
  uint64_t sequence = 0;  // sequence number of the operation
  uint64_t step = 0;      // step within the operation
  auto operator<=>(const Tag&) const = default;
};

// A pending operation as a list of steps. A step posts messages; the next runs when all are sent
// and received, on any thread.
struct Transfer : std::enable_shared_from_this<Transfer> {
  LoggedCall call;
  uint64_t communicator = 0, sequence = 0;
  uint64_t what = 0;                // hash of the arguments that must agree on all ranks
  std::vector<at::Tensor> tensors;  // held until completion
  std::vector<std::function<void()>> steps;

  // Guarded by the mesh's lock:
  size_t next_step = 0;
  int pending = 0;  // messages of the current step, plus one while it posts
  bool done = false;
  std::string error;
};

// Buffers up to 256 MiB of a peer's unexpected messages, and more only while waiting for another
// message of that peer.
class Mesh {
 public:
  // peers: by world rank; this rank's own is not open.
  Mesh(std::vector<control::Socket> peers, std::shared_ptr<AbortSignal> signal);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // Runs the operation's steps until one has to wait; the mesh's thread runs the rest.
  void start(const std::shared_ptr<Transfer>& operation);
  // Call from a step of the operation only. peer: world rank; the memory belongs to one of its
  // tensors.
  void send(Transfer& operation, int peer, uint64_t step, const void* bytes, size_t size);
  void receive(Transfer& operation, int peer, uint64_t step, void* bytes, size_t size);

  // True when the operation has ended, successfully or not; false after the timeout. Throws the
  // reason if the signal is raised first.
  bool wait(Transfer& operation, std::chrono::seconds timeout);
  void throw_if_aborted() const { signal_->throw_if_raised(); }

 private:
  struct Header {
    Tag tag;
    uint64_t size = 0;
    uint64_t what = 0;  // the sender's hash
  };
  struct Arrived {
    uint64_t what = 0;
    std::vector<char> bytes;
  };
  struct Outgoing {
    std::shared_ptr<Transfer> operation;
    Header header;
    const char* bytes = nullptr;
    size_t sent = 0;  // bytes of header and payload already sent
  };
  struct Posted {
    std::shared_ptr<Transfer> operation;
    char* bytes = nullptr;
    size_t size = 0;
  };
  struct Peer {
    control::Socket socket;
    bool lost = false;
    std::deque<Outgoing> outgoing;
    Header header;
    size_t received = 0;             // bytes of header and payload already received
    Posted receiving;                // destination of the payload; without operation: `early`
    std::vector<char> early;         // payload of an unexpected message
    std::map<Tag, Posted> posted;    // receives without data yet
    std::map<Tag, Arrived> arrived;  // unexpected messages
    size_t unasked = 0;              // bytes of `early` and `arrived`
    bool held = false;               // reading is paused: too many unexpected bytes
  };
  // Operations whose current step is complete.
  using Ready = std::vector<std::shared_ptr<Transfer>>;

  void serve();
  void poll_once();
  void read_from(int rank, Ready& ready);
  void write_to(int rank, Ready& ready);
  void begin_message(Peer& peer, int rank);
  void end_message(Peer& peer, int rank, Ready& ready);
  void take_early(Transfer& operation, int rank, const Posted& posted, const Arrived& message);
  void lose(int rank);
  void settle(const std::shared_ptr<Transfer>& operation, Ready& ready);
  void fail_operation(Transfer& operation, const std::string& reason);
  bool refuse_lost(Transfer& operation, int peer);
  void run(const std::shared_ptr<Transfer>& operation);
  void run_on_thread(const std::shared_ptr<Transfer>& operation);
  void wake();

  std::vector<Peer> peers_;
  const std::shared_ptr<AbortSignal> signal_;
  int wake_fd_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tessera::tcp
