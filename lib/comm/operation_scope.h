// SPDX-License-Identifier: MIT
#pragma once
// What the operations of a thread are for: communicators note it with each of them, and the message
// about one that fails says it.
#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/core/not_copied.h"

namespace tessera {

enum class DecidedByData : uint8_t;  // tessera/comm/communication_ledger.h

// Each thread has its own, as it has its log_rank(); child threads do not inherit it.
struct OperationContext {
  bool told = false;            // somebody has told this thread something
  const char* phase = "start";  // text that lives for ever
  std::string_view label;       // a parameter, bucket or message
  int64_t step = 0;             // 0: before the first
  DecidedByData decided{};      // about the operations: nothing, unless somebody says so
  std::string folder;           // where the last operations go when communication fails
};
const OperationContext& operation_context();

// This thread's operations belong to this step until it is told of another one.
void note_step(int64_t step);
// The folder that gets the rank's last operations, operations-rank-R.jsonl, when communication has
// failed. TESSERA_OPERATION_LOG names another one; "none" writes nothing.
void note_output_folder(const std::string& folder);

// In its scope this thread's operations belong to this phase of the run.
class InPhase : NotCopied {
 public:
  explicit InPhase(const char* phase);
  ~InPhase();

 private:
  const char* outer_;
};

// In its scope this thread's operations carry what the label names, which outlives the scope and
// the groups that hold such an operation.
class ForTensor : NotCopied {
 public:
  explicit ForTensor(std::string_view label);
  ~ForTensor();

 private:
  std::string_view outer_;
};

// In its scope values decide this about this thread's operations.
class DataDecides : NotCopied {
 public:
  explicit DataDecides(DecidedByData decided);
  ~DataDecides();

 private:
  DecidedByData outer_;
};

}  // namespace tessera
