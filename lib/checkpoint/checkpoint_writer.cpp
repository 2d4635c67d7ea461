#include "tessera/checkpoint/checkpoint_writer.h"

#include <torch/version.h>

#include <charconv>
#include <utility>

#include "lib/checkpoint/agreement.h"
#include "lib/checkpoint/checkpoint_directory.h"
#include "lib/checkpoint/shard_writer.h"
#include "tessera/core/clock.h"
#include "tessera/core/error.h"

namespace tessera {

CheckpointWriter::CheckpointWriter(Communicator& world, std::string directory,
                                   CheckpointOptions options)
    : world_(world), path_(std::move(directory)), options_(options) {
  all_ranks_do(world_, [&] {
    if (world_.rank() != 0) return;
    directory_ = std::make_unique<CheckpointDirectory>(*options_.files, path_);
  });
}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::resume_from(int64_t step) {
  all_ranks_do(world_, [&] {
    if (directory_) directory_->set_aside_after(step);
  });
}

std::vector<ShardPiece> CheckpointWriter::begin(int64_t step,
                                                const std::vector<StateTensor>& state) {
  std::vector<ShardPiece> pieces;
  const std::vector<std::string> sizes = on_all_ranks(world_, [&] {
    check(step >= 0, ErrorCode::kInvalidArgument, path_, ": step ", step, " is negative");
    pieces = pieces_to_write(state);
    return std::to_string(shard_bytes(pieces));
  });
  int64_t bytes = 0;
  for (const std::string& size : sizes) bytes += std::stoll(size);
  rank_0_does(world_, [&] {
    directory_->begin(step, bytes);
    return std::string();
  });
  return pieces;
}

Manifest CheckpointWriter::write(int64_t step, const std::vector<ShardPiece>& pieces) const {
  const std::string directory = checkpoint_path(path_, step) + kUnfinished;
  return write_shard(*options_.files, directory, world_.rank(), pieces);
}

Manifest CheckpointWriter::assemble(const std::vector<std::string>& parts, int64_t step,
                                    const std::string& run) const {
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

int64_t CheckpointWriter::commit(const std::vector<std::string>& parts, int64_t step,
                                 const std::string& run) const {
  const Manifest manifest = assemble(parts, step, run);
  directory_->commit(manifest);
  if (options_.total_limit > 0) directory_->remove_old(options_.total_limit, step, kept_);
  return manifest.total_bytes();
}

void CheckpointWriter::save(int64_t step, const std::vector<StateTensor>& state,
                            const std::string& run) {
  const double started = now_s();
  const std::vector<ShardPiece> pieces = begin(step, state);
  SavedCheckpoint saved{.path = checkpoint_path(path_, step), .step = step};
  try {
    const std::vector<std::string> parts =
        on_all_ranks(world_, [&] { return write(step, pieces).to_json(); });
    saved.bytes =
        std::stoll(rank_0_does(world_, [&] { return std::to_string(commit(parts, step, run)); }));
  } catch (...) {
    if (directory_) directory_->discard(step);
    throw;
  }
  saved.write_s = saved.stall_s = now_s() - started;
  finished_.push_back(std::move(saved));
}

SavedCheckpoint save_checkpoint(Communicator& world, const std::string& directory, int64_t step,
                                const std::vector<StateTensor>& state, const std::string& run,
                                const CheckpointOptions& options) {
  CheckpointWriter writer(world, directory, options);
  writer.save(step, state, run);
  return writer.poll().front();
}

}  // namespace tessera
