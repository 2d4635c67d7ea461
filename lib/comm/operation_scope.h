// SPDX-License-Identifier: MIT
#pragma once
// Context of a thread's operations: step, phase and tensor name. Communicators record it with each
// operation and show it in diagnostics.
#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/core/not_copied.h"

namespace tessera {

enum class DecidedByData : uint8_t;  // in tessera/comm/communication_ledger.h

// Thread-local, like log_rank(); child threads do not inherit it.
struct OperationContext {
  bool told = false;            // set once this thread was given a context
  const char* phase = "start";  // static storage
  std::string_view label;       // name of a parameter, bucket or message
  int64_t step = 0;             // 0: before the first step
  DecidedByData decided{};      // aspect of the operations that data decide; none by default
  std::string folder;           // where the last operations are written after a failure
};
const OperationContext& operation_context();

// Sets the step of this thread's later operations.
void note_step(int64_t step);
// Folder for operations-rank-R.jsonl, the rank's last operations, after a communication failure.
// TESSERA_OPERATION_LOG overrides it; "none" writes nothing.
void note_output_folder(const std::string& folder);

// Sets the phase of this thread's operations in its scope.
class InPhase : NotCopied {
 public:
  explicit InPhase(const char* phase);
  ~InPhase();

 private:
  const char* outer_;
};

// Sets the tensor name of this thread's operations in its scope. The label must outlive the scope
// and any group that holds such an operation.
class ForTensor : NotCopied {
 public:
  explicit ForTensor(std::string_view label);
  ~ForTensor();

 private:
  std::string_view outer_;
};

// Marks this thread's operations in its scope as decided by data.
class DataDecides : NotCopied {
 public:
  explicit DataDecides(DecidedByData decided);
  ~DataDecides();

 private:
  DecidedByData outer_;
};

}  // namespace tessera
