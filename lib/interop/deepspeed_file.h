// SPDX-License-Identifier: MIT
#pragma once
// Parser of DeepSpeed configuration files: JSON with comments and trailing commas.
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/optim/optimizer_table.h"
#include "tessera/core/json.h"

namespace tessera::programs {

// Replaces comments (//, /* */, #) and trailing commas by spaces, so that positions stay. *lines:
// their line numbers.
std::string plain_json(std::string text, std::vector<int64_t>* lines);

class DeepSpeedFile {
 public:
  struct Value {
    Json json;
    int64_t line = 0;
    std::string key;  // current name
    bool is_auto() const { return json.is_string() && json.as_string() == "auto"; }
    // Renamed switches name a device: true is "cpu".
    std::string text() const;
    double number() const { return json.as_double(); }
    int64_t count() const { return static_cast<int64_t>(json.as_double()); }
  };
  struct Remark {
    int64_t line = 0;
    std::string text;
    std::string key;      // name in the file with its sections; "": none
    std::string nearest;  // the correct name if known, else ""
  };

  static constexpr size_t kMostBytes = 1 << 20;

  // Reports defects of the file in findings(). Throws Error(kInvalidArgument) only if it cannot be
  // read.
  static DeepSpeedFile read(const std::string& path);
  // Parses a file's text. is_flag: whether the programs have a flag of this name.
  static DeepSpeedFile parse(std::string text, const std::string& path,
                             const std::function<bool(const std::string&)>& is_flag);

  const std::string& path() const { return path_; }
  // By a key's current name; null: absent, null or of the wrong kind.
  const Value* find(const std::string& key) const;
  std::string where(const Value& value) const;  // "ds_config.json:7"
  // The value with its position for messages: `4 (train_batch_size, ds_config.json:7)`.
  std::string quoted(const std::string& key) const;
  // 0 to 3, or the written number; 0 without zero_optimization.
  int64_t stage() const;

  void add_finding(Remark finding) { findings_.push_back(std::move(finding)); }
  std::vector<Remark> findings() const;  // errors in file order
  // Understood keys without effect, with reasons.
  const std::vector<Remark>& idle() const { return idle_; }
  const std::vector<Remark>& notes() const { return notes_; }  // accepted although not JSON
  // All findings as "path:line: text".
  std::vector<std::string> messages() const;

 private:
  void walk(const Json& object, const std::string& section, const std::string& written);
  void take(const Json& value, const std::string& key, const std::string& written);
  void unknown(const Json& value, const std::string& name, const std::string& section,
               const std::string& shown);
  int64_t line_of(const Json& value) const;

  std::string path_;
  std::vector<size_t> line_ends_;
  std::function<bool(const std::string&)> is_flag_;
  std::map<std::string, Value> values_;
  std::vector<Remark> findings_, idle_, notes_;
};

// The optimizer of this type, whatever its case; null: it is not available.
const OptimizerRow* deepspeed_optimizer(const std::string& type);
const std::vector<std::string>& deepspeed_schedulers();  // what scheduler.type may be

// Adds findings that need the file only.
void check_deepspeed(DeepSpeedFile& file);

}  // namespace tessera::programs
