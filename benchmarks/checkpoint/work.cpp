// SPDX-License-Identifier: MIT
#include "benchmarks/checkpoint/work.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "lib/core/clock.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checkpoint_writer.h"
#include "tessera/comm/local.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera::bench {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPiece = int64_t{16} << 20;

std::string plain_file(const Work& work, int rank) {
  return concat(work.directory, "/plain-", rank);
}
std::string run_directory(const Work& work) { return work.directory + "/run"; }

// Runs fn on every rank; returns the slowest rank's seconds.
Seconds timed(int ranks, const std::function<void(Communicator&, Seconds&)>& fn) {
  std::mutex mutex;
  Seconds slowest;
  run_local_ranks(ranks, [&](Communicator& world) {
    Seconds mine;
    fn(world, mine);
    const std::lock_guard lock(mutex);
    slowest.whole = std::max(slowest.whole, mine.whole);
    slowest.stall = std::max(slowest.stall, mine.stall);
  });
  return slowest;
}

// Drops the file's clean pages from the page cache.
void forget_pages(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check(file >= 0 && ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0, ErrorCode::kDataLoss,
        path, ": its pages cannot be dropped");
  ::close(file);
}

}  // namespace

std::vector<StateTensor> sharded_state(const Work& work, const Communicator& world) {
  std::vector<StateTensor> state;
  int64_t bytes = 0;
  for (int layer = 0; bytes < work.bytes; ++layer) {
    for (const char* kind : {"parameter", "exp_avg", "exp_avg_sq"}) {
      for (const auto& [name, rows] : {std::pair("weight", 2048), std::pair("bias", 2)}) {
        const int64_t numel = rows * int64_t{2048};
        const TensorSlice slice{.shape = {rows, 2048},
                                .begin = numel * world.rank() / world.size(),
                                .end = numel * (world.rank() + 1) / world.size()};
        state.push_back({concat("h.", layer, ".", name),
                         kind,
                         slice,
                         at::full({slice.numel()}, layer + 0.5, work.device),
                         {}});
        bytes += numel * 4;
      }
    }
  }
  return state;
}

Seconds write_plainly(const Work& work) {
  const std::vector<char> piece(kPiece, 'x');
  return timed(work.ranks, [&](Communicator& world, Seconds& seconds) {
    const std::string path = plain_file(work, world.rank());
    world.barrier();
    const double started = now_s();
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    for (int64_t done = 0; done < work.bytes / world.size(); done += kPiece) {
      check(::write(file, piece.data(), piece.size()) == kPiece, ErrorCode::kDataLoss, path,
            ": cannot be written");
    }
    check(::fsync(file) == 0, ErrorCode::kDataLoss, path, ": cannot be made durable");
    ::close(file);
    seconds.whole = now_s() - started;
  });
}

Seconds read_plainly(const Work& work) {
  return timed(work.ranks, [&](Communicator& world, Seconds& seconds) {
    const std::string path = plain_file(work, world.rank());
    forget_pages(path);
    std::vector<char> piece(kPiece);
    world.barrier();
    const double started = now_s();
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    while (::read(file, piece.data(), piece.size()) > 0) {
    }
    ::close(file);
    seconds.whole = now_s() - started;
  });
}

Seconds save(const Work& work, bool asynchronous) {
  fs::remove_all(run_directory(work));
  return timed(work.ranks, [&](Communicator& world, Seconds& seconds) {
    const auto state = sharded_state(work, world);
    synchronize_device(work.device);
    CheckpointWriter writer(world, run_directory(work),
                            {.total_limit = 1, .asynchronous = asynchronous});
    world.barrier();
    const double started = now_s();
    writer.save(1, state, "{}");
    seconds.stall = now_s() - started;
    writer.wait();
    seconds.whole = now_s() - started;
  });
}

Seconds load(const Work& work, bool cold, int ranks) {
  return timed(ranks, [&](Communicator& world, Seconds& seconds) {
    const auto state = sharded_state(work, world);
    if (cold && world.rank() == 0) {
      for (const auto& entry : fs::directory_iterator(run_directory(work) + "/checkpoint-1")) {
        forget_pages(entry.path());
      }
    }
    world.barrier();
    const double started = now_s();
    load_checkpoint(world, open_checkpoint(world, run_directory(work) + "/checkpoint-1"), state);
    synchronize_device(work.device);
    seconds.whole = now_s() - started;
  });
}

}  // namespace tessera::bench
