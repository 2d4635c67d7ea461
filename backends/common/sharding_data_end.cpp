// Ranks whose data have ended, among others that go on.
#include "tessera/backends/sharding_strategy.h"
#include "tessera/comm/control_channel.h"
#include "tessera/core/error.h"

namespace tessera {

// [Note: data that end]
// A rank without data takes part in the first sum of the others' next step, see "what ranks tell
// each other before a step". It adds what it has done, and its bit to a mask of ranks, in pieces
// that a double holds. Only it has to wait for the answer: where the others go on, it fails, and so
// do they.
namespace {

constexpr int kRanksOfPiece = 48;

}  // namespace

std::vector<int64_t> ShardingStrategy::data_ends(std::optional<int64_t> ended) const {
  const int rank = world_->rank(), pieces = (world_->size() - 1) / kRanksOfPiece + 1;
  std::vector<int64_t> numbers(1 + static_cast<size_t>(pieces), 0);
  if (!ended) return numbers;
  numbers[0] = *ended;
  numbers[1 + static_cast<size_t>(rank / kRanksOfPiece)] = int64_t{1} << (rank % kRanksOfPiece);
  return numbers;
}

// ends: the sums of data_ends().
void ShardingStrategy::check_data_ends(std::span<const double> ends) {
  std::vector<int> ended, others;
  for (int rank = 0; rank < world_->size(); ++rank) {
    const auto piece = static_cast<int64_t>(ends[1 + static_cast<size_t>(rank / kRanksOfPiece)]);
    ((piece >> (rank % kRanksOfPiece) & 1) != 0 ? ended : others).push_back(rank);
  }
  if (ended.empty() || others.empty()) return;
  const auto done = static_cast<int64_t>(ends[0]) / static_cast<int64_t>(ended.size());
  const char* unit = with_gradients_ ? "step" : "batch";
  const std::string of = with_gradients_ ? "" : " of an evaluation";
  const std::string reason = concat(
      "the data of rank ", rank_list(ended), " ended ",
      done == 0 ? concat("before the first ", unit) : concat("after ", unit, " ", done), of,
      ", while rank ", rank_list(others),
      " went on; give every rank equally many batches, the last ones without targets where data "
      "runs out");
  // Others are in the midst of a step there, and do not look.
  if (!data_.device().is_cpu()) give_up(reason);
  fail(ErrorCode::kDataLoss, reason);
}

void ShardingStrategy::end_of_data(Pass pass, int64_t done) {
  enter();
  if (world_->size() == 1) return;
  with_gradients_ = pass == Pass::kTraining;
  micro_batches_.clear();
  const auto before = order_;
  begin_call(with_gradients_ ? StepOrder::Call::kStep : StepOrder::Call::kEvaluation);
  exchange_counts(done);
  order_ = before;  // no gradient is lost or made
}

}  // namespace tessera
