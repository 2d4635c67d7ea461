#include "lib/comm/local/domain.h"

#include <algorithm>
#include <system_error>

namespace tessera::local {

Helpers::Helpers(int ranks)
    : limit_(std::clamp(std::thread::hardware_concurrency(), 1u, static_cast<unsigned>(ranks))) {}

Helpers::~Helpers() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Helpers::add(std::shared_ptr<Meeting> meeting) {
  bool helped = true;
  {
    std::lock_guard lock(mutex_);
    try {
      if (threads_.size() < limit_) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {  // the host starts no further thread
    }
    helped = !threads_.empty();
    if (helped) queue_.push_back(meeting);
  }
  changed_.notify_all();
  if (!helped) meeting->run_units();
}

void Helpers::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::shared_ptr<Meeting> meeting = queue_.front();
    lock.unlock();
    meeting->run_units();
    lock.lock();
    if (!queue_.empty() && queue_.front() == meeting) queue_.pop_front();
  }
}

std::vector<int> LocalGroup::ranks_of(const Key& key) const {
  if (key.source >= 0) return {key.source, key.destination};
  std::vector<int> ranks(size_);
  for (int r = 0; r < size_; ++r) ranks[r] = r;
  return ranks;
}

std::shared_ptr<Meeting> LocalGroup::collective(int64_t sequence, int rank, Request request) {
  return join({-1, -1, sequence}, rank, std::move(request));
}

std::shared_ptr<Meeting> LocalGroup::message(int64_t sequence, int source, int destination,
                                             bool sends, Request request) {
  return join({source, destination, sequence}, sends ? 0 : 1, std::move(request));
}

std::shared_ptr<Meeting> LocalGroup::join(const Key& key, int participant, Request request) {
  std::shared_ptr<Meeting> meeting;
  {
    std::lock_guard lock(mutex_);
    if (aborted_) fail(ErrorCode::kUnavailable, *aborted_);
    auto& slot = gathering_[key];
    const std::vector<int> ranks = ranks_of(key);
    if (slot == nullptr) {
      const std::string name = key.source < 0 ? concat("collective ", key.sequence)
                                              : concat("message ", key.sequence, " from rank ",
                                                       key.source, " to rank ", key.destination);
      slot = std::make_shared<Meeting>(name, ranks);
    }
    meeting = slot;
    const bool complete = meeting->arrive(participant, std::move(request));
    if (complete) {
      gathering_.erase(key);
    } else {
      for (size_t p = 0; p < ranks.size(); ++p) {
        if (!left_[ranks[p]] || meeting->has_arrived(static_cast<int>(p))) continue;
        meeting->fail(Error(ErrorCode::kUnavailable, concat("rank ", ranks[p], " has ended")));
        gathering_.erase(key);
        break;
      }
      return meeting;
    }
  }
  if (meeting->worth_sharing()) {
    helpers_->add(meeting);
  } else {
    meeting->run_units();
  }
  return meeting;
}

std::shared_ptr<LocalGroup> LocalGroup::child(int64_t sequence, int color, int size) {
  std::lock_guard lock(mutex_);
  if (aborted_) fail(ErrorCode::kUnavailable, *aborted_);
  Child& child = splitting_[{sequence, color}];
  if (child.group == nullptr) {
    child.group = std::make_shared<LocalGroup>(size, helpers_);
    children_.push_back(child.group);
  }
  const std::shared_ptr<LocalGroup> group = child.group;
  if (++child.fetched == size) splitting_.erase({sequence, color});
  return group;
}

void LocalGroup::abort(const std::string& reason) {
  std::vector<std::weak_ptr<LocalGroup>> children;
  {
    std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = reason;
    for (auto& [key, meeting] : gathering_) meeting->fail(Error(ErrorCode::kUnavailable, reason));
    gathering_.clear();
    children = children_;
  }
  for (const auto& child : children) {
    if (const auto group = child.lock()) group->abort(reason);
  }
}

void LocalGroup::leave(int rank) {
  std::lock_guard lock(mutex_);
  left_[rank] = true;
  std::erase_if(gathering_, [&](const auto& entry) {
    const auto& [key, meeting] = entry;
    const std::vector<int> ranks = ranks_of(key);
    for (size_t p = 0; p < ranks.size(); ++p) {
      if (ranks[p] != rank || meeting->has_arrived(static_cast<int>(p))) continue;
      meeting->fail(Error(ErrorCode::kUnavailable, concat("rank ", rank, " has ended")));
      return true;
    }
    return false;
  });
}

}  // namespace tessera::local
