// SPDX-License-Identifier: MIT
#pragma once
// Command lines of the programs: --name value, --name=value, a JSON file of the same names, and
// each value's origin.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/field.h"
#include "lib/settings/help.h"

namespace tessera::programs {

// Meaning of a foreign name and value, such as another framework's flag.
struct ForeignFlag {
  enum Meaning {
    kSets,      // equivalent to a flag of ours with a value
    kNeeds,     // implied by a flag of ours, which must be given too
    kNoEffect,  // describes what happens anyway, or a feature without counterpart
    kRefused    // not supported
  };
  const char* name;
  const char* value;  // true and false in any spelling, 0 for any zero; "*": any value
  Meaning meaning;
  const char* flag;  // kSets, kNeeds: our flag
  const char* to;    // kSets: its value; "*": the value as written
  const char* text;  // kNoEffect: why; kRefused: what to do
};
// Finds the row of this name and value. nullptr for none; then *known_values lists the name's known
// values, unchanged if there are none.
using FindForeign = const ForeignFlag* (*)(const std::string& name, const std::string& value,
                                           std::string* known_values);

// Flags bound to variables. All errors are Error(kInvalidArgument) with the flag's name and the
// valid values.
class FlagSet {
 public:
  FlagSet(std::string program, std::string summary);

  // Adds a flag; the variable's current value is the default. A bool may stand without a value
  // (--tf32). choices: the allowed values; by default the names of a Choice. brief: text on the one
  // screen of --help; "" leaves it out. range: "at least 1", for messages about invalid numbers.
  void add(const std::string& name, FieldRef target, const std::string& help,
           std::vector<std::string> choices = {}, const std::string& brief = "",
           const std::string& range = "");
  // Makes --help one screen that ends with an example of these arguments.
  void show_one_screen(const std::string& example) { example_ = example; }
  // Extra lines of --help NAME after the flag's own text, one fact per line.
  using Facts = std::function<std::vector<std::string>(const std::string& name)>;
  void explain(Facts facts) { facts_ = std::move(facts); }
  // Also accepts, or answers, names and values that `find` knows.
  void understand_foreign(FindForeign find) { find_foreign_ = find; }
  // Starts a section of the help text.
  void section(const std::string& title);

  // Sets the variables: defaults < --config FILE < command line. Adds --config, --print_config,
  // --help and --version.
  void parse(const std::vector<std::string>& arguments);
  // As parse(), but returns unknown flags with their values, for another set.
  std::vector<std::string> parse_known(const std::vector<std::string>& arguments);

  bool help_requested() const { return help_ || version_; }
  bool print_config_requested() const { return print_config_; }
  // The requested help: one screen, "all", or a flag's (with or without dashes); or the version.
  std::string help() const;
  std::string help(const std::string& topic) const;

  // "default" (and whose), "command line", the configuration file, or set()'s origin.
  const std::string& origin(const std::string& name) const;
  bool given(const std::string& name) const { return !origin(name).starts_with(kDefault); }
  bool has(const std::string& name) const { return lookup(name) != nullptr; }
  std::vector<std::string> names() const;           // in help order
  std::string text(const std::string& name) const;  // the value as on a command line
  void set(const std::string& name, const std::string& text, const std::string& origin);
  bool changed(const std::string& name) const { return existing(name).changed(); }
  void reset(const std::string& name);  // to default value and origin
  void add_notice(const std::string& text) { notices_.push_back(text); }
  // {"name": {"value": ..., "origin": "..."}, ...}
  std::string config_json(int indent = 2) const;
  // Flags that have no effect here or override another, one line each.
  const std::vector<std::string>& notices() const { return notices_; }
  // " --name value" for every flag with another value than its default, quoted for a shell.
  std::string changed_text() const;
  // Text that is equal on all ranks with equal values.
  std::string values_text() const;

 private:
  static constexpr const char* kDefault = "default";
  struct Flag {
    std::string name, help, section, brief, range;
    FieldRef target;
    std::vector<std::string> choices;
    std::string default_text;
    std::string origin = kDefault;

    bool changed() const { return text_of(target) != default_text; }  // differs from its default
    std::string expected() const;                                     // "an integer, at least 1"
    std::string json(const std::string& text) const;
  };
  struct Setting {
    Flag* flag;
    std::string value;
  };
  Flag* lookup(const std::string& name);
  const Flag* lookup(const std::string& name) const;
  const Flag& existing(const std::string& name) const;
  // The setting that a name and value as written stand for; empty if they have no effect.
  std::optional<Setting> resolve(const std::string& name, const std::string& value,
                                 const std::string& origin);
  [[noreturn]] void unknown(const std::string& name) const;
  HelpRow row_of(const Flag& flag) const;
  std::string help_of(const std::string& name) const;
  void ask_for_help(const std::string& topic);
  std::optional<std::string> value_after(const std::string& name,
                                         const std::vector<std::string>& arguments,
                                         size_t at) const;
  void take_words(const std::string& name, std::string& value,
                  const std::vector<std::string>& words) const;
  void set(Flag& flag, const std::string& text, const std::string& origin);
  void read_config_file(const std::string& path);
  void check_needs() const;

  std::string program_, summary_, section_;
  std::vector<Flag> flags_;
  std::string config_file_, topic_, example_;
  Facts facts_;
  bool help_ = false, version_ = false, print_config_ = false;
  FindForeign find_foreign_ = nullptr;
  std::vector<std::string> notices_;
  std::vector<std::pair<std::string, std::string>> needs_;  // written flag, and the flag it needs
};

}  // namespace tessera::programs
