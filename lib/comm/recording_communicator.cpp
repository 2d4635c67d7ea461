// SPDX-License-Identifier: MIT
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <utility>

#include "lib/comm/communicator_base.h"
#include "lib/comm/operation_scope.h"
#include "lib/core/joined.h"
#include "tessera/comm/communication_ledger.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using Ledger = std::shared_ptr<CommunicationLedger>;
using Before = std::function<void(const LedgerOperation&)>;

class RecordedWork final : public Work::Impl {
 public:
  RecordedWork(Work inner, Ledger ledger, int64_t start)
      : inner_(std::move(inner)), ledger_(std::move(ledger)), start_(static_cast<size_t>(start)) {}
  void wait() override {
    // The ledger may have been cleared since the start.
    if (start_ < ledger_->waited.size() &&
        ledger_->waited[start_] == CommunicationLedger::kNotWaited) {
      ledger_->waited[start_] = static_cast<int64_t>(ledger_->operations.size());
    }
    inner_.wait();
  }

 private:
  Work inner_;
  const Ledger ledger_;
  const size_t start_;
};

class RecordingCommunicator final : public Communicator {
 public:
  RecordingCommunicator(std::unique_ptr<Communicator> inner, Ledger ledger, LedgerCommunicator own,
                        Before before)
      : inner_(std::move(inner)),
        ledger_(std::move(ledger)),
        before_(std::move(before)),
        place_(ledger_->communicators.size()) {
    ledger_->communicators.push_back(std::move(own));
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  at::Device device() const override { return inner_->device(); }
  std::string transport() const override { return inner_->transport(); }
  int64_t bytes_sent() const override { return inner_->bytes_sent(); }
  void abort(const std::string& reason) override { inner_->abort(reason); }

  Work start(std::span<const Operation> operations) override {
    // A single rank sends nothing.
    if (size() == 1 || ledger_->paused) return inner_->start(operations);
    const auto start = static_cast<int64_t>(ledger_->waited.size());
    if (before_) {
      for (const Operation& each : operations) before_(noted(each, start));
    }
    Work work = inner_->start(operations);
    for (const Operation& each : operations) ledger_->operations.push_back(noted(each, start));
    const bool at_once = operations.front().kind == OperationKind::kBarrier;
    ledger_->waited.push_back(at_once ? static_cast<int64_t>(ledger_->operations.size())
                                      : CommunicationLedger::kNotWaited);
    return at_once ? work : Work(std::make_shared<RecordedWork>(std::move(work), ledger_, start));
  }

  // Other ranks' world ranks are read from their communicators.
  std::unique_ptr<Communicator> split(int color, int key) override {
    const std::string name = name_of_part(color);
    std::unique_ptr<Communicator> part = inner_->split(color, key);
    const auto options = at::TensorOptions(at::kInt).device(part->device());
    const at::Tensor all = at::empty({part->size()}, options);
    part->all_gather(all, at::full({1}, own().ranks[static_cast<size_t>(rank())], options)).wait();
    const at::Tensor ranks = all.cpu();
    const int* first = ranks.const_data_ptr<int>();
    const int rank = part->rank();
    return make(std::move(part), {name, {first, first + ranks.numel()}, rank});
  }
  std::unique_ptr<Communicator> split_by(
      const std::function<SplitArguments(int)>& of_rank) override {
    std::vector<SplitArguments> arguments;
    for (int other = 0; other < size(); ++other) arguments.push_back(of_rank(other));
    LedgerCommunicator part =
        part_of(own(), splits_++, std::move(arguments), static_cast<int>(place_));
    return make(inner_->split_by(of_rank), std::move(part));
  }

 private:
  const LedgerCommunicator& own() const { return ledger_->communicators[place_]; }
  std::string name_of_part(int color) { return concat(own().name, ".", splits_++, "c", color); }
  std::unique_ptr<Communicator> make(std::unique_ptr<Communicator> inner, LedgerCommunicator part) {
    return std::make_unique<RecordingCommunicator>(std::move(inner), ledger_, std::move(part),
                                                   before_);
  }

  LedgerOperation noted(const Operation& each, int64_t start) const {
    LedgerOperation noted{
        .kind = each.kind,
        .reduce = each.reduce,
        .peer = each.peer,
        .communicator = place_,
        .start = start,
        .output_counts = each.output_counts,
        .input_counts = each.input_counts,
        .decided = operation_context().decided,
        .bytes_sent = bytes_sent_by(each, rank(), size()),
        .phase = operation_context().phase,
        .name = std::string(each.name.empty() ? operation_context().label : each.name)};
    if (each.kind != OperationKind::kBarrier) {
      const bool gathers = each.kind == OperationKind::kAllGather;
      const at::Tensor& tensor = gathers ? each.input : each.tensor();
      noted.numel = tensor.numel();
      noted.dtype = tensor.scalar_type();
    }
    return noted;
  }

  const std::unique_ptr<Communicator> inner_;
  const Ledger ledger_;
  const Before before_;
  const size_t place_;
  int splits_ = 0;
};

}  // namespace

LedgerCommunicator part_of(const LedgerCommunicator& whole, int split,
                           std::vector<Communicator::SplitArguments> arguments, int parent) {
  const int color = arguments[static_cast<size_t>(whole.rank)].color;
  LedgerCommunicator part{.name = concat(whole.name, ".", split, "c", color),
                          .parent = parent,
                          .split = split,
                          .arguments = std::move(arguments)};
  std::vector<std::pair<int, int>> members;  // key, rank in the whole
  for (int other = 0; other < static_cast<int>(whole.ranks.size()); ++other) {
    const Communicator::SplitArguments& of = part.arguments[static_cast<size_t>(other)];
    if (of.color == color) members.emplace_back(of.key, other);
  }
  std::ranges::sort(members);
  for (const auto& [key, other] : members) {
    if (other == whole.rank) part.rank = static_cast<int>(part.ranks.size());
    part.ranks.push_back(whole.ranks[static_cast<size_t>(other)]);
  }
  return part;
}

// Names of the world's splits: DeviceMesh makes one per axis, in this order, and one over the last.
std::string text_of(const LedgerCommunicator& communicator) {
  constexpr std::string_view kPrefix = "world.";
  constexpr std::array<std::string_view, 5> kAxes = {"pipeline", "data", "tensor", "context",
                                                     "data x context"};
  std::vector<std::string> ranks;
  for (const int rank : communicator.ranks) ranks.push_back(concat(rank));
  const std::string_view name = communicator.name;
  const auto digit = static_cast<size_t>(name.starts_with(kPrefix) && name.size() > kPrefix.size()
                                             ? name[kPrefix.size()] - '0'
                                             : kAxes.size());
  const bool part = name.find('.', kPrefix.size()) != std::string_view::npos;
  return concat(part ? "a part of " : "",
                digit < kAxes.size() ? concat("the ", kAxes[digit], " axis") : "all ranks",
                ranks.size() == 1 ? " (rank " : " (ranks ", joined(ranks), ")");
}

std::string text_of(const LedgerOperation& operation) {
  if (operation.kind == OperationKind::kBarrier) return "barrier";
  const auto& [kind, reduce, peer, communicator, start, numel, dtype, outputs, inputs, decided,
               bytes_sent, phase, name] = operation;
  constexpr const char* kReductions[] = {"sum", "max", "min"};
  const bool reduces = kind == OperationKind::kAllReduce || kind == OperationKind::kReduceScatter;
  const char* peers = kind == OperationKind::kSend   ? ", to place "
                      : kind == OperationKind::kRecv ? ", from place "
                                                     : ", root ";
  return concat(name_of(kind), " of ", numel, " ", dtype, reduces ? ", " : "",
                reduces ? kReductions[static_cast<size_t>(reduce)] : "", peer >= 0 ? peers : "",
                peer >= 0 ? concat(peer) : "", name.empty() ? "" : ", for ", name,
                *phase ? ", in " : "", phase);
}

std::unique_ptr<Communicator> record_operations(std::unique_ptr<Communicator> inner,
                                                std::shared_ptr<CommunicationLedger> ledger,
                                                Before before) {
  std::vector<int> ranks(static_cast<size_t>(inner->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const int rank = inner->rank();
  return std::make_unique<RecordingCommunicator>(
      std::move(inner), std::move(ledger), LedgerCommunicator{"world", std::move(ranks), rank},
      std::move(before));
}

}  // namespace tessera
