// SPDX-License-Identifier: MIT
#pragma once
// Agreement of a strategy's ranks before each step, and the legal order of calls.
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/common/process_groups.h"
#include "backends/common/step_order.h"
#include "backends/common/step_state.h"
#include "tessera/core/async_scalars.h"
#include "tessera/core/device.h"

namespace tessera {

// Checks that ranks agree; owned by one ShardingStrategy. Order of calls: enter() first in every
// collective call; then begin(), tell(), check_agreement() before the call ends, and end().
class StepAgreement {
 public:
  // name: the strategy's, for messages. The other arguments outlive the object.
  StepAgreement(const std::string& name, const ProcessGroups& ranks, const StepState& step)
      : name_(name), ranks_(ranks), step_(step), order_(name) {}

  // Whether all ranks left the previous call by an exception at the same point; the caller then
  // drops its work. Throws Error(kUnavailable) if they left it at different points.
  bool enter();
  void begin(StepOrder::Call call, bool adds = false);  // see StepOrder
  void end() { order_.end(); }
  StepOrder& order() { return order_; }
  void drop();
  // See ShardingStrategy::give_up().
  void give_up(const std::string& why);

  // Records this rank's arguments of an update for the next sum. factor, skip and loss_scale:
  // device scalars; undefined: 1, 0 and 1.
  void hand_over(double learning_rate, const at::Tensor& factor, const at::Tensor& skip,
                 const at::Tensor& loss_scale);
  // Starts the sum over the ranks that share a batch. ended: number of steps or batches after which
  // this rank's data ended.
  void tell(std::optional<int64_t> ended = {});
  // Replaces tell() for a step for which this rank has no data.
  void tell_end_of_data(int64_t done);
  // Waits for the sum on the host. Throws Error, equal on all ranks, if they differ.
  void check_agreement();
  // See Strategy::require_connected().
  void require_connected() const { Work(last_).wait(); }
  // Totals of the whole batch, ready on the current stream: int64 scalars.
  void wait() { told_.wait(); }
  bool pending() const { return told_.pending(); }
  at::Tensor targets() const { return counts_[0]; }
  at::Tensor samples() const { return counts_[1]; }
  at::Tensor tokens() const { return counts_[2]; }
  // Most input ids of any rank in the last micro-batch; valid after check_agreement().
  int64_t most_rows() const { return most_rows_; }
  // BlockContext::expert_tokens of the micro-batch; valid after tell(). 0 without an expert axis.
  int64_t expert_tokens(size_t micro_batch) const {
    return expert_tokens_.empty() ? 0 : expert_tokens_.at(micro_batch);
  }

 private:
  void rejoin();
  std::vector<int64_t> data_ends(std::optional<int64_t> ended) const;
  std::vector<int64_t> rows_of_ranks(int64_t rows) const;
  void agree_on_expert_tokens();
  void check_data_ends(std::span<const double> ends);
  void add_update(std::vector<int64_t>& numbers);
  size_t numbers_of_updates() const;
  bool update_differs(std::span<const double> given) const;
  void require_same_update(std::span<const double> given);

  const std::string name_;
  const ProcessGroups& ranks_;
  const StepState& step_;
  StepOrder order_;
  std::array<int64_t, 7> sent_at_begin_{};
  at::Tensor counts_;  // see tell()
  Work told_, last_;   // the same sum; last_ stays after a wait
  std::optional<c10::Stream> beside_;
  std::optional<AsyncScalars> sums_;  // counts_, for the host
  bool looks_at_ends_ = false;
  int64_t most_rows_ = 0;
  std::vector<int64_t> expert_tokens_;  // by micro-batch
  // See [Note: what ranks give to an update].
  static constexpr int64_t kNoUpdate = -(int64_t{1} << 40);
  int64_t rate_ = kNoUpdate;
  at::Tensor given_;
  at::Tensor zero_, one_;                   // for undefined arguments
  size_t first_row_ = 0, first_given_ = 0;  // indices in counts_
};

}  // namespace tessera
