// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <string_view>

#include "lib/checkpoint/agreement.h"
#include "lib/checkpoint/block_slice.h"
#include "lib/checkpoint/piece_reader.h"
#include "lib/checkpoint/slice_runs.h"
#include "lib/comm/operation_scope.h"
#include "lib/core/clock.h"
#include "lib/core/host_threads.h"
#include "lib/ops/moment_map.h"
#include "lib/ops/moments.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int kReaders = 4;  // threads per rank: disks need several requests for full speed
constexpr int64_t kPart = int64_t{32} << 20;

// Elements [begin, end) of a wanted piece.
struct Part {
  const TensorKey& key;
  const SavedTensor& saved;
  const StateTensor& wanted;
  int64_t begin, end;
};

void cut_into_parts(const TensorKey& key, const SavedTensor& saved, const StateTensor& wanted,
                    std::vector<Part>& parts) {
  const int64_t unit = kPart / static_cast<int64_t>(c10::elementSize(saved.dtype));
  for (int64_t begin = 0; begin < wanted.slice.numel(); begin += unit) {
    parts.push_back({key, saved, wanted, begin, std::min(begin + unit, wanted.slice.numel())});
  }
}

// Copies saved tensors into wanted pieces, part by part. Single-threaded.
class PartLoader {
 public:
  PartLoader(const ShardFiles& files, int64_t block_bytes) : reader_(files, block_bytes) {}

  void load(const Part& part) {
    load(part.key, part.saved, part.wanted.narrow(part.begin, part.end - part.begin));
  }
  int64_t bytes_read() const { return reader_.bytes_read(); }

 private:
  void load(const TensorKey& key, const SavedTensor& saved, const StateTensor& wanted) {
    const auto width = static_cast<int64_t>(c10::elementSize(saved.dtype));
    const TensorSlice& slice = wanted.slice;
    const bool direct =
        !wanted.split.defined() && wanted.value.is_cpu() && wanted.dtype() == saved.dtype;
    const int64_t held = held_numel(slice);
    const at::Tensor host = direct ? wanted.value : staging(saved.dtype, wanted);
    if (!direct && held < slice.numel()) host.copy_(wanted.get());  // keeps the padding's values
    auto* bytes = static_cast<char*>(host.mutable_data_ptr());
    int64_t found = 0;
    for (const SavedPiece& piece : saved.pieces) {
      const int64_t piece_bytes = piece.slice.numel() * width;
      for_each_overlap(piece.slice, slice, [&](int64_t from, int64_t to, int64_t size) {
        reader_.read(key, piece, piece_bytes, from * width, size * width, bytes + to * width);
        found += size;
      });
    }
    check(found == held, ErrorCode::kInternal, "tensor ", key.title(), ": ", found, " of ", held,
          " elements are in its pieces");
    if (!direct) wanted.set(host);
  }

  // Host buffer with as many elements as the piece.
  at::Tensor staging(at::ScalarType dtype, const StateTensor& piece) {
    if (!staging_.defined()) {
      const bool pinned = piece.device().is_cuda();
      staging_ = at::empty({kPart}, at::TensorOptions(at::kByte).pinned_memory(pinned));
    }
    return staging_.view(dtype).narrow(0, 0, piece.slice.numel());
  }

  PieceReader reader_;
  at::Tensor staging_;
};

// Returns the number of bytes read.
int64_t load_parts(const std::vector<Part>& parts, const ShardFiles& files, int64_t block_bytes) {
  const auto synchronize = [&] {
    const auto there = std::ranges::find_if(
        parts, [](const Part& part) { return !part.wanted.device().is_cpu(); });
    if (there != parts.end()) synchronize_device(there->wanted.device());
  };
  synchronize();  // waits for the run's earlier work on these tensors
  std::atomic<size_t> next = 0;
  std::atomic<int64_t> bytes_read = 0;
  HostThreads readers(std::clamp(static_cast<int>(parts.size()), 1, kReaders), allowed_cores());
  readers.run(readers.size(), [&](int64_t) {
    PartLoader loader(files, block_bytes);
    for (size_t i = next++; i < parts.size(); i = next++) loader.load(parts[i]);
    bytes_read += loader.bytes_read();
  });
  synchronize();  // split masters are written on the readers' streams
  return bytes_read;
}

TensorKey largest_of_blocks(const TensorKey& codes) {
  return {codes.name, codes.kind + kLargestOfBlocks};
}

// Conversion between saved 8-bit moments and wanted fp32 or bf16 ones, in both directions.
class CodedMoments {
 public:
  CodedMoments(const Checkpoint& checkpoint, const ShardFiles& files,
               const std::vector<StateTensor>& state)
      : checkpoint_(checkpoint), files_(files), state_(state) {}

  // Earlier versions stored small 8-bit second moments as zeros. Their first moments would then
  // move elements far too much, so they are reset. Called when all is loaded.
  void forget_without_square() const {
    const at::NoGradGuard no_grad;
    std::map<std::string, std::vector<const StateTensor*>> squares;  // by name
    for (const StateTensor& kept : state_) {
      if (kept.kind == kSquares && was_coded({kept.name, kSquares})) {
        squares[kept.name].push_back(&kept);
      }
    }
    for (const StateTensor& kept : state_) {
      if (kept.kind != kAverages) continue;
      for (const StateTensor* square : squares[kept.name]) {
        if (square->slice != kept.slice) continue;
        at::Tensor(kept.value).masked_fill_(square->value.eq(0), 0);
      }
    }
  }
  // True for block scales of codes that were saved in another format: their values follow from the
  // codes' conversion.
  bool comes_with_codes(const TensorKey& key) const {
    const auto& tensors = checkpoint_.manifest().tensors;
    if (tensors.contains(key) || !key.kind.ends_with(kLargestOfBlocks)) return false;
    const size_t of_codes = key.kind.size() - std::string_view(kLargestOfBlocks).size();
    return tensors.contains({key.name, key.kind.substr(0, of_codes)});
  }
  bool converts(const SavedTensor& saved, const StateTensor& wanted) const {
    const bool codes = saved.dtype == at::kByte, floats = at::isFloatingType(wanted.dtype());
    return codes == floats && (codes || wanted.dtype() == at::kByte);
  }
  // Returns the number of bytes read.
  int64_t convert(const TensorKey& key, const SavedTensor& saved, const StateTensor& wanted) const {
    const at::NoGradGuard no_grad;
    const auto dtype = saved.dtype == at::kByte ? at::kByte : at::kFloat;
    StateTensor read = wanted;
    read.value = at::zeros({wanted.slice.numel()}, dtype);
    read.split = {};
    std::vector<Part> parts;
    cut_into_parts(key, saved, read, parts);
    const int64_t bytes = load_parts(parts, files_, checkpoint_.manifest().block_bytes);
    if (saved.dtype == at::kByte) {
      decode(key, read, wanted);
    } else {
      encode(key, read.value, wanted);
    }
    return bytes;
  }

 private:
  static constexpr int64_t kPiece = int64_t{1} << 20;  // elements; whole blocks
  static constexpr const char *kAverages = "exp_avg", *kSquares = "exp_avg_sq";

  bool was_coded(const TensorKey& key) const {
    const auto saved = checkpoint_.manifest().tensors.find(key);
    return saved != checkpoint_.manifest().tensors.end() && saved->second.dtype == at::kByte;
  }
  static bool is_signed(const TensorKey& key) { return !key.kind.ends_with("_sq"); }

  void decode(const TensorKey& key, const StateTensor& codes, const StateTensor& wanted) const {
    const at::Tensor largest = checkpoint_.read(largest_of_blocks(key)).flatten();
    const at::Tensor values = at::zeros({codes.value.numel()}, at::kFloat);
    SliceRuns runs(codes.slice);
    for (SliceRun run; runs.next(run);) {
      for (int64_t done = 0; done < run.size;) {  // up to a block's end, then in pieces
        const int64_t first = run.global + done, in_block = first % ops::kMomentBlock;
        const int64_t most = in_block > 0 ? ops::kMomentBlock - in_block : kPiece;
        const int64_t count = std::min(most, run.size - done), place = run.local + done;
        const int64_t blocks = (count + ops::kMomentBlock - 1) / ops::kMomentBlock;
        values.narrow(0, place, count)
            .copy_(ops::decode_moments(codes.value.narrow(0, place, count), is_signed(key),
                                       largest.narrow(0, first / ops::kMomentBlock, blocks)));
        done += count;
      }
    }
    wanted.set(values);
  }

  void encode(const TensorKey& key, const at::Tensor& values, const StateTensor& wanted) const {
    const TensorSlice in_blocks = slice_in_blocks(wanted.slice, ops::kMomentBlock);
    const auto beside = std::ranges::find_if(state_, [&](const StateTensor& other) {
      return TensorKey{other.name, other.kind} == largest_of_blocks(key) &&
             other.slice == in_blocks;
    });
    check(beside != state_.end(), ErrorCode::kInternal, "tensor ", key.title(),
          " is wanted in 8 bits, without the largest magnitudes of its blocks");
    const at::Tensor codes = at::zeros({values.numel()}, at::kByte);
    const at::Tensor largest = at::zeros({in_blocks.numel()}, at::kFloat);
    for (int64_t first = 0; first < values.numel(); first += kPiece) {
      const int64_t count = std::min(kPiece, values.numel() - first);
      const int64_t blocks = (count + ops::kMomentBlock - 1) / ops::kMomentBlock;
      ops::encode_moments(values.narrow(0, first, count), is_signed(key),
                          codes.narrow(0, first, count),
                          largest.narrow(0, first / ops::kMomentBlock, blocks));
    }
    at::Tensor(wanted.value).copy_(codes);
    at::Tensor(beside->value).copy_(largest);
  }

  const Checkpoint& checkpoint_;
  const ShardFiles& files_;
  const std::vector<StateTensor>& state_;
};

}  // namespace

LoadReport Checkpoint::load(const std::vector<StateTensor>& state) const {
  const double started = now_s();
  LoadReport report;
  std::set<TensorKey> used;
  const ShardFiles files(path_, manifest_);
  const CodedMoments moments(*this, files, state);
  std::vector<Part> parts;
  for (const StateTensor& wanted : state) {
    const TensorKey key{wanted.name, wanted.kind};
    if (moments.comes_with_codes(key)) continue;
    const auto found = manifest_.tensors.find(key);
    check(found != manifest_.tensors.end(), ErrorCode::kDataLoss, path_, ": has no tensor ",
          key.title(), "; it is of another model or another optimizer");
    const SavedTensor& saved = found->second;
    check(saved.shape == wanted.slice.shape, ErrorCode::kDataLoss, path_, ": tensor ", key.title(),
          " has shape ", c10::IntArrayRef(saved.shape), ", the model asks for ",
          c10::IntArrayRef(wanted.slice.shape));
    if (saved.dtype != wanted.dtype()) {
      report.converted.push_back(concat(key.title(), ": ", saved.dtype, " to ", wanted.dtype()));
    }
    used.insert(key);
    if (moments.converts(saved, wanted)) {
      report.bytes_read += moments.convert(key, saved, wanted);
      used.insert(largest_of_blocks(key));
      continue;
    }
    cut_into_parts(found->first, saved, wanted, parts);
  }
  for (const auto& [key, tensor] : manifest_.tensors) {
    if (!used.contains(key)) report.unused.push_back(key.title());
  }
  report.bytes_read += load_parts(parts, files, manifest_.block_bytes);
  moments.forget_without_square();
  report.load_s = now_s() - started;
  return report;
}

at::Tensor Checkpoint::read(const TensorKey& key) const {
  const auto found = manifest_.tensors.find(key);
  check(found != manifest_.tensors.end(), ErrorCode::kDataLoss, path_, ": has no tensor ",
        key.title());
  const SavedTensor& saved = found->second;
  at::Tensor value = at::empty(saved.shape, saved.dtype);
  const TensorSlice whole{.shape = saved.shape, .end = value.numel()};
  const StateTensor wanted{key.name, key.kind, whole, value.view(-1), {}};
  std::vector<Part> parts;
  cut_into_parts(key, saved, wanted, parts);
  load_parts(parts, ShardFiles(path_, manifest_), manifest_.block_bytes);
  return value;
}

std::vector<std::string> Checkpoint::verify() const {
  std::vector<std::string> defects;
  const auto attempt = [&](const auto& fn) {
    try {
      fn();
    } catch (const Error& error) {
      defects.emplace_back(error.what());
    }
  };
  for (const SavedFile& file : manifest_.files) {
    attempt([&] { const SafetensorsFile readable(path_ + "/" + file.name); });
  }
  attempt([&] {
    const ShardFiles files(path_, manifest_);
    PieceReader reader(files, manifest_.block_bytes);
    std::vector<char> block(static_cast<size_t>(manifest_.block_bytes));
    for (const auto& [key, tensor] : manifest_.tensors) {
      const auto width = static_cast<int64_t>(c10::elementSize(tensor.dtype));
      for (const SavedPiece& piece : tensor.pieces) {
        const int64_t bytes = piece.slice.numel() * width;
        for (int64_t at = 0; at < bytes; at += manifest_.block_bytes) {
          const int64_t size = std::min(manifest_.block_bytes, bytes - at);
          attempt([&] { reader.read(key, piece, bytes, at, size, block.data()); });
        }
      }
    }
  });
  return defects;
}

LoadReport load_checkpoint(Communicator& world, const Checkpoint& checkpoint,
                           const std::vector<StateTensor>& state) {
  LoadReport report;
  const InPhase phase("load");
  // Every rank sends one character per tensor: whether it used it.
  CommunicatorChannel ranks(world);
  const std::vector<std::string> said = on_all_ranks(ranks, [&] {
    report = checkpoint.load(state);
    const std::set<std::string> unused(report.unused.begin(), report.unused.end());
    std::string marks;
    for (const auto& [key, tensor] : checkpoint.manifest().tensors) {
      marks += unused.contains(key.title()) ? '-' : '+';
    }
    return marks;
  });
  report.unused.clear();
  size_t index = 0;
  for (const auto& [key, tensor] : checkpoint.manifest().tensors) {
    const bool used = std::ranges::any_of(said, [&](const auto& m) { return m[index] == '+'; });
    if (!used) report.unused.push_back(key.title());
    ++index;
  }
  return report;
}

}  // namespace tessera
