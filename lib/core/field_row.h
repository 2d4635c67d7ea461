// SPDX-License-Identifier: MIT
#pragma once
// Rows of tables of fields, from which flags, help, records, names of runs and documents follow.
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "lib/core/field.h"

namespace tessera {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr double kMuch = 1099511627776.0;  // 2^40
constexpr double kLargestReal = 1e38;      // fp32 ends at 3.4e38

// Effect of another value.
enum class Changes {
  kNumbers,  // losses and weights
  kCost,     // time, memory and traffic, and no number
  kOutput    // what is written where, and when a run ends
};

// Origin of a flag's name.
enum class NameOf { kTessera, kTrainingArguments, kPeft };

struct FieldFacts {
  // The only values allowed; none: any. An enum's are its names.
  std::vector<std::string> choices = {};
  // Every number has a lower and an upper bound.
  double least = -kNoLimit, above = -kNoLimit, most = kNoLimit, below = kNoLimit;
  // In names of runs where the value is not the default: the tag, and of what is no switch the
  // value.
  const char* tag = nullptr;
  bool tuning = false;  // the names of rows that have it in common leave it out
  // Title in reports of what sets the work of runs apart; "": facts of records say it, or a whole
  // run has it no more. Unless given, what changes numbers is work under its name.
  const char* work = nullptr;
  const char* brief = "";  // of the twenty on the first screen of --help: what it says there
  NameOf name_of = NameOf::kTessera;
};

// A field of Root; More: what only its table says of it.
template <typename Root, typename More>
struct FieldRow {
  const char* name;  // of the flag, and in records
  std::function<FieldRef(Root&)> field;
  Changes changes;
  std::string help;
  FieldFacts facts = {};
  More more = {};

  FieldRef read(const Root& root) const { return field(const_cast<Root&>(root)); }  // not to be set
  std::string text(const Root& root) const { return text_of(read(root)); }  // as a flag takes it
};

}  // namespace tessera
