#pragma once
// Command lines of the programs: --name value, --name=value, a JSON file of the same names, and
// where each value came from.
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tessera::programs {

// Flags bound to variables. Every error is Error(kInvalidArgument) with the flag's name and what is
// valid.
class FlagSet {
 public:
  FlagSet(std::string program, std::string summary);

  // The variable's present value is the default. A bool may stand alone (--tf32). choices: the only
  // values allowed.
  using Target = std::variant<bool*, int64_t*, uint64_t*, double*, std::string*>;
  void add(const std::string& name, Target target, const std::string& help,
           std::vector<std::string> choices = {});
  // A flag of the contract that this version cannot serve: naming it is an error that says so and
  // what to do.
  void add_unavailable(const std::string& name, const std::string& reason);
  // Starts a group of the help text.
  void section(const std::string& title);

  // Sets the variables: defaults < --config FILE < command line. Adds --config, --print_config and
  // --help itself.
  void parse(const std::vector<std::string>& arguments);
  // The same, but leaves flags it does not know, with their values, to another set: returns them.
  std::vector<std::string> parse_known(const std::vector<std::string>& arguments);

  bool help_requested() const { return help_; }
  bool print_config_requested() const { return print_config_; }
  std::string help() const;

  // "default", "command line", or the configuration file.
  const std::string& origin(const std::string& name) const;
  bool given(const std::string& name) const { return origin(name) != kDefault; }
  // {"name": {"value": ..., "origin": "..."}, ...}
  std::string config_json(int indent = 2) const;
  // The same text on every rank that has the same values.
  std::string values_text() const;

 private:
  static constexpr const char* kDefault = "default";
  struct Flag {
    std::string name, help, section;
    Target target;
    std::vector<std::string> choices;
    std::string unavailable;  // reason; then target is not used
    std::string default_text;
    std::string origin = kDefault;
  };
  Flag& find(std::string name);
  const Flag* lookup(const std::string& name) const;
  void set(Flag& flag, const std::string& text, const std::string& origin);
  void read_config_file(const std::string& path);

  std::string program_, summary_, section_;
  std::vector<Flag> flags_;
  std::string config_file_;
  bool help_ = false, print_config_ = false;
};

// The candidate with the least edit distance to name; "" without candidates.
std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace tessera::programs
