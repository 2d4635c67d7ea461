// SPDX-License-Identifier: MIT
#include "backends/common/agreement.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <map>
#include <set>

#include "lib/core/failure.h"
#include "lib/core/hash.h"
#include "lib/core/host_name.h"
#include "tessera/comm/control_channel.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

int64_t hash_of(const std::string& text) {
  return static_cast<int64_t>(xxh3_64(text.data(), text.size()));
}

// Weights the i-th of several hashes for their sum, modulo 2^64.
int64_t at_place(size_t i, int64_t hash) {
  return static_cast<int64_t>(static_cast<uint64_t>(hash) * (2 * i + 1));
}

int64_t sum_of(const std::vector<int64_t>& hashes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < hashes.size(); ++i) sum += static_cast<uint64_t>(at_place(i, hashes[i]));
  return static_cast<int64_t>(sum);
}

// Whether it is a tied parameter without values yet.
bool is_placeholder(const at::Tensor& tensor) {
  return tensor.numel() > 0 && tensor.storage().nbytes() < tensor.nbytes();
}

// The tensor's bits as int64 numbers.
at::Tensor bits(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().view({-1});
  if (!flat.is_floating_point()) return flat.to(at::kLong);
  const auto same_size = flat.element_size() == 8   ? at::kLong
                         : flat.element_size() == 4 ? at::kInt
                                                    : at::kShort;
  return flat.view(same_size).to(at::kLong);
}

// Checksum: sum of bits[i] * (2 i + 1), modulo 2^64: int64 scalar on the tensor's device.
at::Tensor checksum(const at::Tensor& tensor) {
  constexpr int64_t kPiece = int64_t{1} << 22;
  const at::Tensor flat = tensor.detach().contiguous().view({-1});
  at::Tensor sum = at::zeros({}, flat.options().dtype(at::kLong));
  for (int64_t first = 0; first < flat.numel(); first += kPiece) {
    const int64_t count = std::min(kPiece, flat.numel() - first);
    const at::Tensor places = at::arange(2 * first + 1, 2 * (first + count) + 1, 2, sum.options());
    sum = sum + (bits(flat.narrow(0, first, count)) * places).sum();
  }
  return sum;
}

int64_t hash_of(const at::Tensor& tensor) {
  if (is_placeholder(tensor) || tensor.is_meta()) return 0;
  if (!tensor.is_cpu()) return checksum(tensor).item<int64_t>();
  const at::Tensor values = tensor.detach().contiguous();
  return static_cast<int64_t>(xxh3_64(values.const_data_ptr(), values.nbytes()));
}

// Whether no other rank must agree; a FakeMesh has none.
bool is_alone(const Communicator& comm) { return comm.size() == 1 || comm.device().is_meta(); }

// All ranks' numbers: [ranks, n].
at::Tensor gather_numbers(const std::vector<int64_t>& mine, Communicator& comm) {
  const auto size = static_cast<int64_t>(mine.size());
  const auto options = at::TensorOptions(at::kLong).device(comm.device());
  const at::Tensor all = at::empty({comm.size(), size}, options);
  comm.all_gather(all, at::tensor(mine, at::kLong).to(comm.device())).wait();
  return all.cpu();
}

// First column in which a rank differs from rank 0, and that rank; -1: none.
struct Difference {
  int64_t column = -1, rank = -1;
};

Difference first_difference(const at::Tensor& all) {
  const at::Tensor differs = all.ne(all[0]);
  for (int64_t column = 0; column < all.size(1); ++column) {
    const at::Tensor ranks = differs.select(1, column);
    if (ranks.any().item<bool>()) return {column, ranks.nonzero()[0].item<int64_t>()};
  }
  return {};
}

std::string described(const UpdateRule& rule) {
  if (rule == UpdateRule{}) return "";
  const auto [beta1, beta2] = rule.betas.value_or(std::pair(-1.0, -1.0));
  return concat(" in group \"", rule.group, "\" with rate ", rule.lr_factor, ", decay ",
                rule.weight_decay.value_or(-1), ", betas ", beta1, " ", beta2,
                rule.whole_matrix ? ", updated whole" : "");
}

std::string treatment_of(const Parameter& p) {
  return concat(p.weight_decay ? "" : " without weight decay",
                p.fp32_state ? " with state in fp32" : "",
                p.tensor.requires_grad() ? "" : " frozen", described(p.rule));
}

struct Item {
  std::string name, description;
  at::Tensor tensor;
  bool of_experts = false;  // other values on every rank of an expert axis
};

std::vector<Item> items_of(const std::vector<Parameter>& parameters,
                           const std::vector<Buffer>& buffers, const Communicator* expert) {
  std::vector<Item> items;
  for (const Parameter& p : parameters) {
    const TensorShard& shard = p.placement.shard;
    items.push_back({p.name,
                     concat("parameter \"", p.name, "\" ", p.tensor.sizes(), treatment_of(p),
                            " cut ", shard.dim, " ", shard.parts, " ", shard.full_size),
                     p.tensor, expert != nullptr && p.placement.cut == expert});
  }
  for (const Buffer& b : buffers) {
    items.push_back({b.name,
                     concat("buffer \"", b.name, "\" ", b.tensor.sizes(), " ",
                            b.tensor.scalar_type(), " of rank ", b.data_rank),
                     b.tensor});
  }
  return items;
}

// Result of building the rank's block.
class Attempt {
 public:
  Attempt(const BlockBuilder& builder, const BuildContext& context) : builder_(builder) {
    try {
      block_ = builder.build(context);
    } catch (...) {
      const Failure failure = current_failure();
      if (failure.code == ErrorCode::kUnavailable) throw;  // the ranks cannot communicate any more
      failed(failure.code, failure.message.substr(0, failure.message.find('\n')));
    }
  }

  // 0: a block; else the message's length plus 1
  int64_t failure() const {
    return error_ == nullptr ? 0 : 1 + static_cast<int64_t>(message_.size());
  }
  std::vector<Item> items(const Communicator* expert) const {
    if (error_) return {};
    return items_of(builder_.parameters_of(*block_), block_->buffers(), expert);
  }
  std::unique_ptr<Block> take() { return std::move(block_); }
  // failures: of all ranks; the first failed rank broadcasts its message.
  void throw_failure(const at::Tensor& failures, Communicator& data) const {
    const at::Tensor failed = failures.nonzero();
    if (failed.numel() == 0) return;
    const int64_t rank = failed[0].item<int64_t>();
    const bool own = data.rank() == rank;
    at::Tensor text = at::zeros({failures[rank].item<int64_t>()}, at::kByte);
    if (own) {
      auto* bytes = text.mutable_data_ptr<uint8_t>();
      bytes[0] = static_cast<uint8_t>(code_);
      std::copy(message_.begin(), message_.end(), bytes + 1);
    }
    text = text.to(data.device());
    data.broadcast(text, static_cast<int>(rank)).wait();
    if (error_ != nullptr) std::rethrow_exception(error_);
    text = text.cpu();
    const auto* bytes = text.const_data_ptr<uint8_t>();
    fail(static_cast<ErrorCode>(bytes[0]), std::string(bytes + 1, bytes + text.numel()), " (rank ",
         rank, " of the data axis)");
  }

 private:
  void failed(ErrorCode code, const std::string& message) {
    code_ = code;
    message_ = message;
    error_ = std::current_exception();
  }

  const BlockBuilder& builder_;
  std::unique_ptr<Block> block_;
  std::exception_ptr error_;
  ErrorCode code_ = ErrorCode::kInternal;
  std::string message_;
};

int64_t process_hash() { return hash_of(concat(host_name(), " ", getpid())); }

// processes: ids by rank. Ranks of one process could share tensors.
void require_own_tensors(const std::vector<Item>& items, const at::Tensor& processes,
                         const std::string& where, Communicator& data) {
  const auto* process = processes.const_data_ptr<int64_t>();
  const std::set<int64_t> different(process, process + data.size());
  if (items.empty() || static_cast<int>(different.size()) == data.size()) return;
  std::vector<int64_t> mine;
  for (const Item& item : items) {
    mine.push_back(reinterpret_cast<int64_t>(item.tensor.unsafeGetTensorImpl()));
  }
  const at::Tensor all = gather_numbers(mine, data);
  std::map<std::pair<int64_t, int64_t>, int64_t> replicas;
  for (int64_t column = 0; column < all.size(1); ++column) {
    for (int64_t rank = 0; rank < all.size(0); ++rank) {
      const int64_t first =
          replicas.try_emplace({process[rank], all[rank][column].item<int64_t>()}, rank)
              .first->second;
      check(first == rank, ErrorCode::kInvalidArgument, where,
            items[static_cast<size_t>(column)].description, " is one tensor on ranks ", first,
            " and ", rank,
            " of the data axis; every rank must build the model and all its tensors anew");
    }
  }
}

}  // namespace

void require_same_blocks(const ModelSpec& model, Communicator& data) {
  if (is_alone(data)) return;
  std::string names;
  for (const BlockBuilder& block : model.blocks) names += block.name + "\n";
  const auto count = static_cast<int64_t>(model.block_count());
  const at::Tensor all = gather_numbers({count, hash_of(names)}, data);
  const Difference difference = first_difference(all);
  if (difference.column < 0) return;
  if (difference.column == 0) {
    fail(ErrorCode::kInvalidArgument, "the model has ", all[0][0].item<int64_t>(),
         " blocks on rank 0 of the data axis, but ", all[difference.rank][0].item<int64_t>(),
         " on rank ", difference.rank, "; every rank must be given the same model");
  }
  std::vector<int64_t> hashes;
  for (const BlockBuilder& block : model.blocks) hashes.push_back(hash_of(block.name));
  const auto [column, rank] = first_difference(gather_numbers(hashes, data));
  fail(ErrorCode::kInvalidArgument, "block ", column, " (here \"",
       model.blocks[static_cast<size_t>(column)].name, "\") has another name on rank ", rank,
       " of the data axis than on rank 0; every rank must be given the same model");
}

void require_same_optimizer(const std::string& description, Communicator& ranks) {
  if (is_alone(ranks)) return;
  const auto size = static_cast<int64_t>(description.size());
  const at::Tensor all = gather_numbers({hash_of(description), size}, ranks);
  if (first_difference(all).column < 0) return;
  const at::Tensor sizes = all.select(1, 1);
  const at::Tensor own = at::zeros({sizes.max().item<int64_t>()}, at::kByte);
  std::ranges::copy(description, own.mutable_data_ptr<uint8_t>());
  at::Tensor texts = at::empty({ranks.size(), own.numel()}, own.options().device(ranks.device()));
  ranks.all_gather(texts, own.to(ranks.device())).wait();
  texts = texts.cpu();
  std::vector<std::pair<std::string, std::vector<int>>> given;  // ordered by their first ranks
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const auto* begin = texts[rank].const_data_ptr<uint8_t>();
    const std::string text(begin, begin + sizes[rank].item<int64_t>());
    auto found = std::ranges::find(given, text, &decltype(given)::value_type::first);
    if (found == given.end()) found = given.insert(found, {text, {}});
    found->second.push_back(rank);
  }
  std::string list;
  for (const auto& [text, of] : given) {
    list += concat(list.empty() ? "" : "; ", "rank ", rank_list(of), ": ", text);
  }
  fail(ErrorCode::kInvalidArgument, "ranks were given different optimizers: ", list,
       ". Every rank must be given the same one, with the same numbers");
}

void take_from_first_rank(const at::Tensor& tensor, Communicator& data) {
  if (is_alone(data) || is_placeholder(tensor)) return;
  const at::NoGradGuard no_grad;
  const at::Tensor values = tensor.detach().contiguous();
  data.broadcast(values, 0).wait();
  if (!values.is_same(tensor)) at::Tensor(tensor).copy_(values);
}

std::unique_ptr<Block> build_together(const BlockBuilder& builder, const BuildContext& context,
                                      Communicator& data, const Communicator* expert,
                                      Communicator* owners) {
  if (is_alone(data)) return builder.build(context);
  Attempt mine(builder, context);
  const std::vector<Item> items = mine.items(expert);
  std::vector<int64_t> layout, values, of_experts;
  for (const Item& item : items) {
    layout.push_back(hash_of(item.description));
    values.push_back(builder.from_first_rank || item.of_experts ? 0 : hash_of(item.tensor));
    if (item.of_experts) of_experts.push_back(hash_of(item.tensor));
  }
  const auto count = static_cast<int64_t>(items.size());
  const at::Tensor all =
      gather_numbers({count, sum_of(layout), sum_of(values), mine.failure(), process_hash()}, data);
  mine.throw_failure(all.select(1, 3), data);
  const Difference difference = first_difference(all.narrow(1, 0, 3));
  const std::string where = concat("block \"", builder.name, "\": ");
  if (difference.column == 0) {
    fail(ErrorCode::kInvalidArgument, where, all[0][0].item<int64_t>(),
         " parameters and buffers on rank 0 of the data axis, but ",
         all[difference.rank][0].item<int64_t>(), " on rank ", difference.rank,
         " (the last here: ", items.empty() ? std::string("none") : items.back().description,
         "); every rank must build the same model");
  }
  if (difference.column > 0) {
    const bool differs = difference.column == 1;
    const auto [column, rank] = first_difference(gather_numbers(differs ? layout : values, data));
    fail(ErrorCode::kInvalidArgument, where, items[static_cast<size_t>(column)].description,
         differs ? " (as it is here)" : "", " on rank ", rank,
         differs ? " of the data axis is not what it is on rank 0; every rank must build the same "
                   "model"
                 : " of the data axis does not start with the values of rank 0; draw weights from "
                   "BuildContext::seed, or read the same file on every rank");
  }
  if (!of_experts.empty()) {
    const Difference owned = first_difference(gather_numbers(of_experts, *owners));
    check(owned.column < 0, ErrorCode::kInvalidArgument, where,
          "parameters of experts do not start with the same values on all ranks that own them; "
          "draw weights from BuildContext::seed, or read the same file on every rank");
  }
  require_own_tensors(items, all.select(1, 4).contiguous(), where, data);
  if (builder.from_first_rank) {
    for (const Item& item : items) take_from_first_rank(item.tensor, data);
  }
  return mine.take();
}

void HeldValues::add(const std::string& block, const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    names_.push_back(block + "." + parameter.name);
    rules_.push_back(hash_of(treatment_of(parameter)));
    for (const Replicas& held : parameter.placement.replicas) {
      if (is_alone(*held.ranks)) continue;
      auto group = std::find_if(groups_.begin(), groups_.end(),
                                [&](const Group& known) { return known.ranks == held.ranks; });
      if (group == groups_.end()) group = groups_.insert(group, {held.ranks, {}, {}});
      group->names.push_back(block + "." + parameter.name);
      group->hashes.push_back(hash_of(parameter.tensor));
    }
  }
}

void HeldValues::require_same_rules(Communicator& tensor) const {
  const auto count = static_cast<int64_t>(rules_.size());
  const Difference any = first_difference(gather_numbers({count, sum_of(rules_)}, tensor));
  if (any.column != 1) return;  // different counts explain more than other numbers
  const auto [column, rank] = first_difference(gather_numbers(rules_, tensor));
  fail(ErrorCode::kInvalidArgument, "parameter ", names_[static_cast<size_t>(column)],
       " has another group, decay or frozen state on rank ", rank,
       " of the tensor axis than on rank 0; every rank must be given the same groups");
}

void HeldValues::require_equal(Communicator* tensor) const {
  if (tensor != nullptr && !is_alone(*tensor)) require_same_rules(*tensor);
  for (const Group& group : groups_) {
    const auto count = static_cast<int64_t>(group.hashes.size());
    const at::Tensor all = gather_numbers({count, sum_of(group.hashes)}, *group.ranks);
    const Difference difference = first_difference(all);
    if (difference.column < 0) continue;
    check(difference.column == 1, ErrorCode::kInvalidArgument, "rank 0 of a tensor group holds ",
          all[0][0].item<int64_t>(), " parameters in full, rank ", difference.rank, " holds ",
          all[difference.rank][0].item<int64_t>(), "; every rank must build the same model");
    const auto [column, rank] = first_difference(gather_numbers(group.hashes, *group.ranks));
    fail(ErrorCode::kInvalidArgument, "parameter ", group.names[static_cast<size_t>(column)],
         ", which all ranks of a tensor group hold, does not start with the same values on rank ",
         rank,
         " of the group as on rank 0; draw weights from BuildContext::seed, or read the same "
         "file on every rank");
  }
}

at::Tensor fingerprint(std::span<const MicroBatch> micro_batches, at::Device device) {
  std::vector<int64_t> counts;
  std::vector<at::Tensor> contents;  // one checksum over all: few kernels
  for (const MicroBatch& batch : micro_batches) {
    std::string text = concat(batch.sample_count, " ", batch.token_count, " ", batch.target_count);
    const auto add = [&](const at::Tensor& tensor) {
      text += concat(" ", tensor.defined() ? tensor.sizes() : at::IntArrayRef());
      if (tensor.defined()) contents.push_back(bits(tensor));
    };
    for (const at::Tensor& tensor : {batch.input_ids, batch.labels, batch.attention_mask,
                                     batch.packed.offsets, batch.head_positions}) {
      add(tensor);
    }
    for (const auto& [name, tensor] : batch.extra) {
      text += " " + name;
      add(tensor);
    }
    counts.push_back(hash_of(text));
  }
  if (contents.empty())
    return at::full({}, sum_of(counts), at::TensorOptions(at::kLong).device(device));
  return checksum(at::cat(contents)) + sum_of(counts);
}

}  // namespace tessera
