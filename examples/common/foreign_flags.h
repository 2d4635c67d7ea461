#pragma once
// Flags that users bring from Hugging Face's TrainingArguments and older scripts, and what each
// means here.
#include <optional>
#include <span>
#include <string>

namespace tessera::programs {

struct ForeignFlag {
  enum Meaning {
    kSets,      // the same as one of our flags with a value
    kNeeds,     // says nothing beyond one of our flags, which must be given too
    kNoEffect,  // asks for what happens anyway, or for nothing that exists here
    kRefused    // cannot be served
  };
  const char* name;
  const char* value;  // true and false in any spelling, 0 any zero; "*": any
  Meaning meaning;
  const char* flag;  // kSets, kNeeds: ours
  const char* to;    // kSets: its value; "*": the one that was written
  const char* text;  // kNoEffect: why; kRefused: what to do
};

// All rows; of one name and value the first one counts. Also values of our own flags that mean
// something elsewhere (`--report_to wandb`).
std::span<const ForeignFlag> foreign_flags();

// The row of this name and value. nullptr: none; then *known_values lists the values that are known
// of the name, and is left as it was when there are none.
const ForeignFlag* find_foreign(const std::string& name, const std::string& value,
                                std::string* known_values = nullptr);

// true, True, TRUE and 1, and their opposites.
std::optional<bool> parse_bool(const std::string& text);

}  // namespace tessera::programs
