// SPDX-License-Identifier: MIT
#pragma once
// Shared state of in-process ranks: the helper threads of a world, and the pending operations of
// each of its groups.
#include <compare>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lib/comm/local/local_collective.h"

namespace tessera::local {

// Threads that execute ready collectives while the ranks compute; started on first use.
class Helpers {
 public:
  explicit Helpers(int ranks);
  ~Helpers();
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;

  void add(std::shared_ptr<LocalCollective> meeting);

 private:
  void serve();

  const size_t limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::deque<std::shared_ptr<LocalCollective>> queue_;
  std::vector<std::thread> threads_;
};

// State shared by the ranks of one communicator.
class LocalGroup {
 public:
  // world_ranks: indexed by rank of the group.
  LocalGroup(std::string name, std::vector<int> world_ranks, std::shared_ptr<Helpers> helpers,
             std::shared_ptr<LocalJob> job)
      : name_(std::move(name)),
        world_ranks_(std::move(world_ranks)),
        size_(static_cast<int>(world_ranks_.size())),
        helpers_(std::move(helpers)),
        job_(std::move(job)),
        left_(size_, false) {}

  const std::string& name() const { return name_; }
  int size() const { return size_; }
  LocalJob& job() { return *job_; }
  const std::shared_ptr<OperationLog>& log_of(int rank) const {
    return job_->logs[world_ranks_[rank]];
  }

  // Joins a rank's collective, or the message of a pair, with this sequence number.
  std::shared_ptr<LocalCollective> collective(int64_t sequence, int rank,
                                              Contribution contribution);
  std::shared_ptr<LocalCollective> message(int64_t sequence, int source, int destination,
                                           bool sends, Contribution contribution);
  // The child group of ranks with one color in a split; each rank asks once.
  std::shared_ptr<LocalGroup> child(const std::string& name, const std::vector<int>& ranks);

  void abort(const Error& reason);  // also aborts every group split from this one
  void leave(int rank);  // a destroyed communicator's rank fails the operations that lack it

 private:
  struct Key {
    int source;  // -1 for collectives
    int destination;
    int64_t sequence;
    auto operator<=>(const Key&) const = default;
  };
  struct Child {
    std::shared_ptr<LocalGroup> group;
    int fetched = 0;
  };

  std::shared_ptr<LocalCollective> join(const Key& key, int participant, Contribution contribution);
  std::vector<int> ranks_of(const Key& key) const;
  std::string ended(int rank) const;

  const std::string name_;
  const std::vector<int> world_ranks_;
  const int size_;
  const std::shared_ptr<Helpers> helpers_;
  const std::shared_ptr<LocalJob> job_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<LocalCollective>> gathering_;
  std::map<std::string, Child> splitting_;
  std::vector<std::weak_ptr<LocalGroup>> children_;
  std::vector<bool> left_;
  std::optional<Error> aborted_;
};

// A rank's communicator of the group.
std::unique_ptr<Communicator> make_local_communicator(std::shared_ptr<LocalGroup> group, int rank);

}  // namespace tessera::local
