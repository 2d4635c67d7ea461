// SPDX-License-Identifier: MIT
#include "lib/comm/local/domain.h"

#include <algorithm>
#include <system_error>

#include "lib/core/host_name.h"

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

void Helpers::add(std::shared_ptr<LocalCollective> meeting) {
  bool helped = true;
  {
    std::lock_guard lock(mutex_);
    try {
      if (threads_.size() < limit_) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {  // no further thread can be created
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
    const std::shared_ptr<LocalCollective> meeting = queue_.front();
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

std::shared_ptr<LocalCollective> LocalGroup::collective(int64_t sequence, int rank,
                                                        Contribution contribution) {
  return join({-1, -1, sequence}, rank, std::move(contribution));
}

std::shared_ptr<LocalCollective> LocalGroup::message(int64_t sequence, int source, int destination,
                                                     bool sends, Contribution contribution) {
  return join({source, destination, sequence}, sends ? 0 : 1, std::move(contribution));
}

std::shared_ptr<LocalCollective> LocalGroup::join(const Key& key, int participant,
                                                  Contribution contribution) {
  std::shared_ptr<LocalCollective> meeting;
  {
    std::lock_guard lock(mutex_);
    if (aborted_) fail(aborted_->code(), aborted_->what());
    auto& slot = gathering_[key];
    const std::vector<int> ranks = ranks_of(key);
    if (slot == nullptr) slot = std::make_shared<LocalCollective>(ranks.size(), job_);
    meeting = slot;
    const bool complete = meeting->arrive(participant, std::move(contribution));
    if (complete) {
      gathering_.erase(key);
    } else {
      for (size_t p = 0; p < ranks.size(); ++p) {
        if (!left_[ranks[p]] || meeting->has_arrived(static_cast<int>(p))) continue;
        meeting->fail_because(ended(ranks[p]));
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

std::string LocalGroup::ended(int rank) const {
  return concat("rank ", world_ranks_[rank], " (host ", host_name(), ") has ended");
}

std::shared_ptr<LocalGroup> LocalGroup::child(const std::string& name,
                                              const std::vector<int>& ranks) {
  std::lock_guard lock(mutex_);
  if (aborted_) fail(aborted_->code(), aborted_->what());
  Child& child = splitting_[name];
  if (child.group == nullptr) {
    std::vector<int> world_ranks;
    for (const int r : ranks) world_ranks.push_back(world_ranks_[r]);
    child.group = std::make_shared<LocalGroup>(name, std::move(world_ranks), helpers_, job_);
    children_.push_back(child.group);
  }
  const std::shared_ptr<LocalGroup> group = child.group;
  if (++child.fetched == static_cast<int>(ranks.size())) splitting_.erase(name);
  return group;
}

void LocalGroup::abort(const Error& reason) {
  std::vector<std::weak_ptr<LocalGroup>> children;
  std::optional<Error> first;
  const bool is_world = job_->world.lock().get() == this;
  const Error counts = is_world ? job_->fail(reason) : reason;
  {
    std::lock_guard lock(mutex_);
    if (!aborted_) aborted_ = counts;
    first = aborted_;
    for (auto& [key, meeting] : gathering_) meeting->fail(*first);
    gathering_.clear();
    children = children_;
  }
  // Done even if another thread is aborting: on return every child is aborted.
  for (const auto& child : children) {
    if (const auto group = child.lock()) group->abort(*first);
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
      meeting->fail_because(ended(rank));
      return true;
    }
    return false;
  });
}

}  // namespace tessera::local
