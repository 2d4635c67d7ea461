// SPDX-License-Identifier: MIT
#pragma once
// The connections between the processes of a job, and the thread that moves bytes over them.
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

// What a message is called on both of its ends. No two messages of a pair have the same tag.
struct Tag {
  uint64_t communicator = 0;
  uint64_t sequence = 0;  // of the operation
  uint64_t step = 0;      // within it
  auto operator<=>(const Tag&) const = default;
};

// An operation under way: a list of steps. A step posts messages; the next one runs when they have all gone out and come
// in, on whatever thread.
struct Transfer : std::enable_shared_from_this<Transfer> {
  LoggedCall call;
  uint64_t communicator = 0, sequence = 0;
  uint64_t what = 0;  // a hash of what all ranks must agree on
  std::vector<at::Tensor> tensors;  // kept until it is done
  std::vector<std::function<void()>> steps;

  // Of the mesh, under its lock:
  size_t next_step = 0;
  int pending = 0;             // messages of the present step, and one while it posts
  bool done = false;
  std::string error;
};

// Keeps up to 256 MiB of a peer's messages that nobody has asked for, and more only while it waits
// for another message of that peer.
class Mesh {
 public:
  // peers: by world rank, this rank's own not open.
  Mesh(std::vector<control::Socket> peers, std::shared_ptr<AbortSignal> signal);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // Runs the operation's steps as far as they go without waiting; the mesh's thread runs the rest.
  void start(const std::shared_ptr<Transfer>& operation);
  // From a step of the operation only; peer is a world rank, the memory a tensor's of the
  // operation.
  void send(Transfer& operation, int peer, uint64_t step, const void* bytes, size_t size);
  void receive(Transfer& operation, int peer, uint64_t step, void* bytes, size_t size);

  // False after the timeout, true when the operation is done, well or with its error. Throws the
  // reason when the signal was raised first.
  bool wait(Transfer& operation, std::chrono::seconds timeout);
  void throw_if_aborted() const { signal_->throw_if_raised(); }

 private:
  struct Header {
    Tag tag;
    uint64_t size = 0;
    uint64_t what = 0;  // the sender's operation
  };
  struct Arrived {
    uint64_t what = 0;
    std::vector<char> bytes;
  };
  struct Outgoing {
    std::shared_ptr<Transfer> operation;
    Header header;
    const char* bytes = nullptr;
    size_t sent = 0;  // of header and bytes together
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
    size_t received = 0;     // of the header and the bytes behind it
    Posted receiving;        // where those bytes go; no operation: into early
    std::vector<char> early;  // of a message that nobody has asked for yet
    std::map<Tag, Posted> posted;    // asked for
    std::map<Tag, Arrived> arrived;  // not asked for
    size_t unasked = 0;              // bytes of early and arrived
    bool held = false;               // too many of them: not read from for now
  };
  using Ready = std::vector<std::shared_ptr<Transfer>>;  // their step is over

  void serve();
  void take_turn();
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
