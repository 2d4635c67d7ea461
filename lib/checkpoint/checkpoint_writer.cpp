// SPDX-License-Identifier: MIT
#include "tessera/checkpoint/checkpoint_writer.h"

#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "lib/checkpoint/agreement.h"
#include "lib/checkpoint/checkpoint_directory.h"
#include "lib/checkpoint/shard_writer.h"
#include "lib/checkpoint/snapshot.h"
#include "lib/comm/operation_scope.h"
#include "lib/core/clock.h"
#include "lib/core/host_name.h"
#include "tessera/comm/async_flag_reduce.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

// Number of ranks on this rank's host.
int ranks_of_host(ControlChannel& ranks) {
  const std::vector<std::string> hosts = on_all_ranks(ranks, host_name);
  return static_cast<int>(std::ranges::count(hosts, host_name()));
}

Manifest assemble(const std::vector<std::string>& parts, int64_t step, const std::string& run) {
  Manifest manifest;
  manifest.step = step;
  manifest.run = run;
  manifest.libraries = {{"tessera", TESSERA_VERSION}, {"torch", TORCH_VERSION}};
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    manifest.merge(Manifest::parse_part(parts[rank], concat("rank ", rank)));
  }
  manifest.check_complete();
  return manifest;
}

}  // namespace

// A save in progress: every rank writes its file, then rank 0 commits.
struct CheckpointWriter::Save {
  std::string run;
  double started = now_s();
  SavedCheckpoint saved;
  bool written = false;                    // by all ranks
  std::optional<AsyncFlagReduce> is_done;  // the task, on all ranks
  std::shared_future<void> copied;         // the late copies; invalid if there are none
  std::future<std::string> task;           // last member: joined before the others are destroyed
};

CheckpointWriter::CheckpointWriter(Communicator& world, std::string directory,
                                   CheckpointOptions options)
    : world_(world), path_(std::move(directory)), options_(options) {
  if (options_.channel == nullptr) {
    own_channel_ = std::make_unique<CommunicatorChannel>(world);
    options_.channel = own_channel_.get();
  }
  snapshot_ = std::make_unique<Snapshot>(ranks_of_host(*options_.channel));
  all_ranks_do(*options_.channel, [&] {
    if (world_.rank() != 0) return;
    directory_ = std::make_unique<CheckpointDirectory>(*options_.files, path_, options_.locked);
  });
}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::resume_from(int64_t step) {
  complete();
  all_ranks_do(*options_.channel, [&] {
    if (directory_) directory_->set_aside_after(step);
  });
}

std::vector<ShardPiece> CheckpointWriter::begin(int64_t step,
                                                const std::vector<StateTensor>& state) {
  std::vector<ShardPiece> pieces;
  const std::vector<std::string> sizes = on_all_ranks(*options_.channel, [&] {
    check(step >= 0, ErrorCode::kInvalidArgument, path_, ": step ", step, " is negative");
    pieces = pieces_to_write(state);
    return std::to_string(shard_bytes(pieces));
  });
  int64_t bytes = 0;
  for (const std::string& size : sizes) bytes += std::stoll(size);
  rank_0_does(*options_.channel, [&] {
    directory_->begin(step, bytes);
    return std::string();
  });
  return pieces;
}

void CheckpointWriter::reserve(const std::vector<StateTensor>& state) {
  if (options_.asynchronous && !under_way_) snapshot_->reserve(pieces_to_write(state));
}

void CheckpointWriter::save(int64_t step, const std::vector<StateTensor>& state,
                            const std::string& run) {
  const InPhase phase("save");
  complete();
  const double started = now_s();
  std::vector<ShardPiece> pieces = begin(step, state);
  under_way_ = std::make_unique<Save>();
  under_way_->run = run;
  under_way_->started = started;
  under_way_->saved = {.path = checkpoint_path(path_, step), .step = step};
  const at::Device device = device_of(pieces);
  const bool copied = options_.asynchronous && snapshot_->take(pieces, options_.late_copies);
  auto ready = std::make_shared<Marker>();
  ready->record(device);
  // Runs on a side stream of the device, after the work enqueued so far.
  const auto beside = [device, ready](const auto& fn) {
    set_current_device(device);
    const c10::Stream stream = side_stream(device);
    const StreamScope scope(stream);
    ready->block(stream);
    return fn(stream);
  };
  if (copied && snapshot_->has_rest()) {
    const auto copy = [this, beside] {
      beside([&](c10::Stream stream) {
        snapshot_->copy_the_rest();
        Marker done;
        done.record(stream);
        done.synchronize();
      });
    };
    under_way_->copied = std::async(std::launch::async, copy).share();
  }
  auto write = [this, step, copied, beside, ready, late = under_way_->copied,
                taken = std::move(pieces)]() mutable {
    std::vector<ShardPiece> values = std::move(taken);  // freed with the last byte
    if (late.valid()) late.get();
    if (copied) snapshot_->give(values);
    ready->synchronize();
    const std::string directory = checkpoint_path(path_, step) + kUnfinished;
    return beside([&](c10::Stream) {
      return write_shard(*options_.files, directory, world_.rank(), values).to_json();
    });
  };
  under_way_->task =
      std::async(copied ? std::launch::async : std::launch::deferred, std::move(write));
  if (!copied) under_way_->task.wait();  // the views are only valid now
  under_way_->saved.stall_s = now_s() - started;
  if (!options_.asynchronous) complete();
}

void CheckpointWriter::advance() {
  Save& save = *under_way_;
  const InPhase phase("save");
  const double started = now_s();
  try {
    const std::vector<std::string> results =
        on_all_ranks(*options_.channel, [&] { return save.task.get(); });
    save.is_done.reset();
    if (save.written) {
      save.saved.bytes = std::stoll(results.front());
      save.saved.write_s = now_s() - save.started;
      save.saved.stall_s += now_s() - started;
      finished_.push_back(std::move(save.saved));
      under_way_.reset();
      return;
    }
    save.written = true;
    const auto commit = [this, results, run = save.run, step = save.saved.step, kept = kept_] {
      if (!directory_) return std::string();
      const Manifest manifest = assemble(results, step, run);
      directory_->commit(manifest);
      if (options_.total_limit > 0) directory_->remove_old(options_.total_limit, step, kept);
      return std::to_string(manifest.total_bytes());
    };
    const auto policy = options_.asynchronous ? std::launch::async : std::launch::deferred;
    save.task = std::async(policy, commit);
  } catch (...) {
    const int64_t step = save.saved.step;
    under_way_.reset();  // joins its thread
    if (directory_) directory_->discard(step);
    throw;
  }
  save.saved.stall_s += now_s() - started;
}

void CheckpointWriter::before_update() {
  if (!under_way_ || !under_way_->copied.valid()) return;
  const double started = now_s();
  under_way_->copied.wait();  // its exception is thrown by the task
  under_way_->saved.stall_s += now_s() - started;
}

void CheckpointWriter::complete() {
  while (under_way_) {
    if (under_way_->is_done) under_way_->is_done->answer();
    SavedCheckpoint& saved = under_way_->saved;
    const double started = now_s();
    under_way_->task.wait();
    saved.waited_s += now_s() - started;
    saved.stall_s += now_s() - started;
    advance();
  }
}

std::vector<SavedCheckpoint> CheckpointWriter::poll() {
  if (under_way_ && under_way_->is_done && under_way_->is_done->answer()) advance();
  if (under_way_) {
    const auto now = std::chrono::seconds(0);
    under_way_->is_done.emplace(world_, AsyncFlagReduce::Of::kAll,
                                under_way_->task.wait_for(now) == std::future_status::ready);
  }
  return std::exchange(finished_, {});
}

std::vector<SavedCheckpoint> CheckpointWriter::wait() {
  complete();
  return std::exchange(finished_, {});
}

SavedCheckpoint save_checkpoint(Communicator& world, const std::string& directory, int64_t step,
                                const std::vector<StateTensor>& state, const std::string& run,
                                const CheckpointOptions& options) {
  CheckpointWriter writer(world, directory, options);
  writer.save(step, state, run);
  return writer.wait().front();
}

}  // namespace tessera
