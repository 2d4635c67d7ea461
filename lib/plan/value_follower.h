// SPDX-License-Identifier: MIT
#pragma once
// Reports a thread's operators and a rank's communication to ValueRules.
#include <ATen/record_function.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lib/plan/value_rules.h"
#include "tessera/core/not_copied.h"
#include "tessera/model/model_spec.h"
#include "tessera/plan/check_communication.h"

namespace tessera {

// Follows its thread while it lives.
class ValueFollower : NotCopied {
 public:
  // ledger: contains each operation once it has started.
  explicit ValueFollower(const CommunicationLedger& ledger);
  ~ValueFollower();

  // The same model with its parameters registered.
  ModelSpec follow(const ModelSpec& model);
  // Wraps the world communicator; `world` records the ledger.
  std::unique_ptr<Communicator> follow(std::unique_ptr<Communicator> world);

  ValueRules& rules() { return rules_; }
  const CommunicationLedger& ledger() const { return ledger_; }
  // watch_reads: checks the parameters that blocks read. owned: elements that this rank updates, by
  // parameter. A parameter without known owner counts as fresh, whoever updates it.
  void watch_reads(bool watch) { watches_ = watch; }
  std::map<std::string, int64_t>& owned() { return owned_; }
  void set_owners_known() { owners_known_ = true; }
  // Parameters whose blocks say that replicas hold partial gradient sums.
  const std::set<std::string>& partial() const { return partial_; }
  // Parameters of which this rank holds a slice.
  const std::set<std::string>& cut() const { return cut_; }
  std::vector<CommunicationProblem> take_problems() { return std::move(problems_); }

  size_t next_communicator() { return communicators_++; }

 private:
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn);
  static void on_end(const at::RecordFunction& fn, at::ObserverContext* context);
  static ValueFollower*& current();
  void begin(const at::RecordFunction& fn);
  void end(const at::RecordFunction& fn);
  void begin_node();
  void look_at(const at::Tensor& read);
  void check_parameter(int handle);
  void report(int handle, int64_t operation, const std::string& text);

  ValueRules rules_;
  const CommunicationLedger& ledger_;
  std::map<std::string, std::string> owner_of_alias_;
  std::map<std::string, int64_t> owned_;
  bool owners_known_ = false, watches_ = false;
  int nodes_ = 0;  // running autograd nodes
  size_t communicators_ = 0;
  const void* checked_label_ = nullptr;
  int64_t checked_at_ = -1;
  std::set<std::string> partial_, cut_, reported_;
  std::vector<CommunicationProblem> problems_;
  at::CallbackHandle callback_ = 0;
  ValueFollower* outer_ = nullptr;
};

}  // namespace tessera
