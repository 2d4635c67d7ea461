// SPDX-License-Identifier: MIT
#pragma once
// Command lines of the programs: --name value, --name=value, a JSON file of the same names, and
// where each value came from.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/field.h"
#include "lib/settings/help.h"

namespace tessera::programs {

// What a name and a value mean that users bring from elsewhere.
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
// The row of this name and value. nullptr: none; then *known_values lists the values that are known
// of the name, and is left as it was when there are none.
using FindForeign = const ForeignFlag* (*)(const std::string& name, const std::string& value,
                                           std::string* known_values);

// Flags bound to variables. Every error is Error(kInvalidArgument) with the flag's name and what is
// valid.
class FlagSet {
 public:
  FlagSet(std::string program, std::string summary);

  // The variable's present value is the default. A bool may stand alone (--tf32). choices: the only
  // values allowed; unless given, the names of a Choice. brief: what it says on the one screen of
  // --help, "" where it is not there. range: "at least 1", for messages about what is no number.
  void add(const std::string& name, FieldRef target, const std::string& help,
           std::vector<std::string> choices = {}, const std::string& brief = "",
           const std::string& range = "");
  // --help becomes one screen that ends with an example of these arguments.
  void show_one_screen(const std::string& example) { example_ = example; }
  // What --help NAME says beyond the flag's own text, one fact a line.
  using Facts = std::function<std::vector<std::string>(const std::string& name)>;
  void explain(Facts facts) { facts_ = std::move(facts); }
  // Names and values that `find` knows are taken too, or answered.
  void understand_foreign(FindForeign find) { find_foreign_ = find; }
  // Starts a group of the help text.
  void section(const std::string& title);

  // Sets the variables: defaults < --config FILE < command line. Adds --config, --print_config,
  // --help and --version itself.
  void parse(const std::vector<std::string>& arguments);
  // The same, but leaves flags it does not know, with their values, to another set: returns them.
  std::vector<std::string> parse_known(const std::vector<std::string>& arguments);

  bool help_requested() const { return help_ || version_; }
  bool print_config_requested() const { return print_config_; }
  // What was asked for: one screen, "all", or the name of a flag, with or without dashes; or the
  // version.
  std::string help() const;
  std::string help(const std::string& topic) const;

  // "default" (and whose), "command line", the configuration file, or what set() was told.
  const std::string& origin(const std::string& name) const;
  bool given(const std::string& name) const { return !origin(name).starts_with(kDefault); }
  bool has(const std::string& name) const { return lookup(name) != nullptr; }
  std::vector<std::string> names() const;           // in the order of the help text
  std::string text(const std::string& name) const;  // the value, as it may be written
  void set(const std::string& name, const std::string& text, const std::string& origin);
  bool changed(const std::string& name) const { return existing(name).changed(); }
  void reset(const std::string& name);  // to its default value and origin
  void add_notice(const std::string& text) { notices_.push_back(text); }
  // {"name": {"value": ..., "origin": "..."}, ...}
  std::string config_json(int indent = 2) const;
  // What of the flags that were given has no effect here or wins over another, one line each.
  const std::vector<std::string>& notices() const { return notices_; }
  // " --name value" of every flag whose value is not its default, as a shell takes it.
  std::string changed_text() const;
  // The same text on every rank that has the same values.
  std::string values_text() const;

 private:
  static constexpr const char* kDefault = "default";
  struct Flag {
    std::string name, help, section, brief, range;
    FieldRef target;
    std::vector<std::string> choices;
    std::string default_text;
    std::string origin = kDefault;

    bool changed() const { return text_of(target) != default_text; }  // from its default value
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
  // What this name and value, as somebody wrote them, set of ours; nothing when they have no
  // effect.
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
  std::vector<std::pair<std::string, std::string>> needs_;  // what was written, the flag it needs
};

}  // namespace tessera::programs
