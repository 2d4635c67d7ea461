#pragma once
// The shared state of in-process ranks: the helper threads of a world, and the meetings of each of
// its groups.
#include <compare>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lib/comm/local/meeting.h"

namespace tessera::local {

// Threads that run the units of ready meetings while the ranks compute; started when first needed.
class Helpers {
 public:
  explicit Helpers(int ranks);
  ~Helpers();
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;

  void add(std::shared_ptr<Meeting> meeting);

 private:
  void serve();

  const size_t limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::deque<std::shared_ptr<Meeting>> queue_;
  std::vector<std::thread> threads_;
};

// What the ranks of one communicator share.
class LocalGroup {
 public:
  LocalGroup(int size, std::shared_ptr<Helpers> helpers)
      : size_(size), helpers_(std::move(helpers)), left_(size, false) {}

  int size() const { return size_; }

  // Rank joins its sequence-th collective, or the sequence-th message of a pair.
  std::shared_ptr<Meeting> collective(int64_t sequence, int rank, Request request);
  std::shared_ptr<Meeting> message(int64_t sequence, int source, int destination, bool sends,
                                   Request request);
  // The group of the ranks that chose this color in the sequence-th split; each of its size ranks
  // asks once.
  std::shared_ptr<LocalGroup> child(int64_t sequence, int color, int size);

  void abort(const std::string& reason);  // also of every group split from this one
  void leave(int rank);  // its communicator is gone: meetings that lack the rank cannot take place

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

  std::shared_ptr<Meeting> join(const Key& key, int participant, Request request);
  std::vector<int> ranks_of(const Key& key) const;

  const int size_;
  const std::shared_ptr<Helpers> helpers_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<Meeting>> gathering_;
  std::map<std::pair<int64_t, int>, Child> splitting_;
  std::vector<std::weak_ptr<LocalGroup>> children_;
  std::vector<bool> left_;
  std::optional<std::string> aborted_;
};

// One rank's communicator of a group.
std::unique_ptr<Communicator> make_local_communicator(std::shared_ptr<LocalGroup> group, int rank);

}  // namespace tessera::local
