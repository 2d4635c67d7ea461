// SPDX-License-Identifier: MIT
#include <ATen/Parallel.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "tessera/comm/local.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera {
namespace {

// An error caused by a failing peer, whose own exception tells more.
bool is_secondary(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    return error.code() == ErrorCode::kUnavailable;
  } catch (...) {
    return false;
  }
}

std::string what_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

// The earliest primary error, else the earliest of all.
class FirstError {
 public:
  void add(std::exception_ptr exception) {
    const bool secondary = is_secondary(exception);
    std::lock_guard lock(mutex_);
    if (first_ == nullptr || (is_first_secondary_ && !secondary)) {
      first_ = std::move(exception);
      is_first_secondary_ = secondary;
    }
  }
  void rethrow() const {
    if (first_ != nullptr) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
  bool is_first_secondary_ = false;
};

}  // namespace

void run_local_ranks(int size, const std::function<void(Communicator&)>& fn) {
  auto world = make_local_world(size);
  const int math_threads = at::get_num_threads();
  FirstError first_error;
  const auto run = [&](int rank, Communicator& comm) {
    try {
      set_log_rank(rank);
      at::set_num_threads(std::max(1, math_threads / size));  // divides the cores among the ranks
      fn(comm);
    } catch (...) {
      first_error.add(std::current_exception());
      const std::string what = what_of(std::current_exception());
      const bool secondary = is_secondary(std::current_exception());
      comm.abort(secondary ? what : concat("rank ", rank, " failed: ", what));
    }
  };
  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&run, rank, comm = std::move(world[rank])] { run(rank, *comm); });
    }
  } catch (const std::exception& error) {
    first_error.add(std::make_exception_ptr(
        Error(ErrorCode::kResourceExhausted,
              concat("the host starts no thread for rank ", threads.size(), " of ", size, ": ",
                     error.what(), "; use fewer ranks, or raise ulimit -u and -v"))));
    world.clear();  // remaining ranks notice that the others have ended
  }
  for (std::thread& thread : threads) thread.join();
  at::set_num_threads(math_threads);
  first_error.rethrow();
}

}  // namespace tessera
