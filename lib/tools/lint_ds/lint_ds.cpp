// SPDX-License-Identifier: MIT
#include "lib/tools/lint_ds/lint_ds.h"

#include <algorithm>
#include <optional>
#include <ostream>

#include "lib/core/file.h"
#include "lib/interop/deepspeed.h"
#include "lib/interop/deepspeed_keys.h"
#include "lib/interop/foreign_config.h"
#include "lib/interop/foreign_flags.h"
#include "lib/settings/flags.h"
#include "lib/settings/idle_flags.h"
#include "lib/settings/tool.h"
#include "lib/settings/train_flags.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

struct LintOptions {
  int64_t ranks = 0;
  bool list_auto = false, as_json = false;
  DeepSpeedVersion defaults = DeepSpeedVersion::k19;
};

// Number of ranks implied by the file's batch sizes; 1 if open.
int64_t ranks_of(const DeepSpeedFile& file) {
  int64_t rows = 1, ranks = 1;
  bool known = true;
  const auto number = [&](const char* key) -> int64_t {
    const DeepSpeedFile::Value* value = file.find(key);
    return value && !value->is_auto() ? value->count() : 0;
  };
  for (const char* key : {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
    known = known && number(key) > 0;
    if (number(key) > 0) rows *= number(key);
  }
  if (const int64_t all = number("train_batch_size"); all > 0 && known) ranks = all / rows;
  for (const char* key : {"pipeline.stages", "tensor_parallel.autotp_size"}) {
    if (number(key) > 0) ranks *= number(key);
  }
  return ranks;
}

struct Finding {
  const char* severity;  // "error"; "warning": accepted nevertheless; "note": no effect
  DeepSpeedFile::Remark remark;
};

struct FileReport {
  std::string path;
  std::vector<Finding> findings;
  int64_t ranks = 0;
  std::optional<std::string> flags;  // equivalent flags; empty: the file is unusable
  std::vector<std::string> open;     // flags left to the command line by "auto"
};

// Splits "path:12: message"; a text without position stays whole.
DeepSpeedFile::Remark remark_of(const std::string& path, const std::string& text) {
  const std::string before = path + ":";
  size_t end = before.size();
  int64_t line = 0;
  while (text.starts_with(before) && end < text.size() && text[end] >= '0' && text[end] <= '9') {
    line = 10 * line + (text[end++] - '0');
  }
  if (line == 0 || text.compare(end, 2, ": ") != 0) return {.text = text};
  return {.line = line, .text = text.substr(end + 2)};
}

// True if precision keys are only "auto". The file's keys for a flag at its default fp32 leave no
// trace.
bool leaves_precision_open(const DeepSpeedFile& file) {
  bool open = false;
  for (const char* key : {"fp16.enabled", "bf16.enabled"}) {
    const DeepSpeedFile::Value* value = file.find(key);
    if (value == nullptr) continue;
    if (!value->is_auto() && value->json.as_bool()) return false;
    open = open || value->is_auto();
  }
  return open;
}

void lint(FileReport& report, const LintOptions& o) {
  const auto add = [&](const char* severity, const std::vector<DeepSpeedFile::Remark>& remarks) {
    for (const DeepSpeedFile::Remark& one : remarks) report.findings.push_back({severity, one});
  };
  if (const auto answer = answer_foreign_config(report.path)) {
    return add("error", {remark_of(report.path, *answer)});
  }
  const DeepSpeedFile file = DeepSpeedFile::read(report.path);
  add("error", file.findings());
  add("warning", file.notes());
  add("note", file.idle());
  if (!file.findings().empty()) return;
  FlagSet flags("", "");
  TrainOptions train;
  train.run.deepspeed_defaults = o.defaults;
  add_train_flags(flags, train, Program::kSquad, find_foreign);
  report.ranks = o.ranks > 0 ? o.ranks : ranks_of(file);
  apply_deepspeed(file, report.ranks, train, flags);
  for (const IdleFlag& idle : reset_idle_flags(flags, train, report.ranks)) {
    add("note", {{.line = remark_of(report.path, idle.origin + ": ").line, .text = idle.text}});
  }
  report.flags = flags.changed_text();
  for (const std::string& name : flags.names()) {
    // A run derives these two from the hidden size.
    if (name == "bucket_bytes" || name == "persistence_threshold") continue;
    if (flags.origin(name).find(", auto in ") != std::string::npos) report.open.push_back(name);
  }
  if (leaves_precision_open(file)) report.open.push_back("dtype");
}

FileReport report_of(const std::string& path, const LintOptions& o) {
  FileReport report{.path = path};
  try {
    lint(report, o);
  } catch (const Error& error) {  // remaining files are still read
    report.findings.push_back({"error", remark_of(path, error.what())});
  }
  return report;
}

std::string text_of(const FileReport& report) {
  std::string text;
  for (const auto& [severity, remark] : report.findings) {
    const std::string kind = severity == std::string("warning") ? "accepted: "
                             : severity == std::string("note")  ? "without effect: "
                                                                : "";
    if (remark.line > 0) text += concat(report.path, ":", remark.line, ": ");
    text += kind + remark.text + "\n";
  }
  if (!report.flags) return text;
  if (!report.open.empty()) {
    text += report.path + ": \"auto\", so that the command line decides, or the default:";
    for (const std::string& name : report.open) text += " --" + name;
    text += "\n";
  }
  return text + concat(report.path, ": the same on ", report.ranks, " rank(s) as",
                       report.flags->empty() ? " without it" : *report.flags, "\n");
}

std::string json_of(const std::vector<FileReport>& reports) {
  JsonWriter json(2);
  json.begin_object().key("files").begin_array();
  for (const FileReport& report : reports) {
    json.begin_object()
        .field("file", utf8_text(report.path))
        .field("usable", report.flags.has_value());
    if (report.flags) {
      json.field("ranks", report.ranks)
          .field("flags", report.flags->substr(std::min<size_t>(1, report.flags->size())))
          .field("auto", report.open);
    }
    json.key("findings").begin_array();
    for (const auto& [severity, remark] : report.findings) {
      json.begin_object();
      if (remark.line > 0) json.field("line", remark.line);
      if (!remark.key.empty()) json.field("key", remark.key);
      json.field("severity", severity).field("message", utf8_text(remark.text));
      if (!remark.nearest.empty()) json.field("nearest", remark.nearest);
      json.end_object();
    }
    json.end_array().end_object();
  }
  return json.end_array().end_object().text() + "\n";
}

}  // namespace

int run_lint_ds(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  return run_tool("tessera-lint-ds", out, err, [&] {
    LintOptions o;
    FlagSet flags("tessera-lint-ds",
                  "tessera-lint-ds FILE...: what DeepSpeed configuration files mean here, and what "
                  "is wrong with them.");
    flags.section("Options");
    flags.add("ranks", &o.ranks, "that will train; 0: as many as the batch sizes say");
    flags.add("deepspeed_defaults", field_of(o.defaults),
              "of which version what a file leaves out is");
    flags.add("auto", &o.list_auto, "list the keys that may be \"auto\", and stop");
    flags.add("json", &o.as_json, "one JSON object instead of lines");
    std::vector<std::string> files, options;
    for (const std::string& argument : arguments) {
      const bool value = !options.empty() && options.back().starts_with("--") &&
                         options.back().find('=') == std::string::npos &&
                         options.back() != "--auto" && options.back() != "--json" &&
                         options.back() != "--help" && options.back() != "--version";
      (argument.starts_with("-") || value ? options : files).push_back(argument);
    }
    flags.parse(options);
    if (flags.help_requested()) {
      out << flags.help();
      return 0;
    }
    if (o.list_auto) {
      for (const DeepSpeedKey& key : deepspeed_keys()) {
        if (key.may_be_auto) out << key.path << "\n";
      }
      return 0;
    }
    check(!files.empty(), ErrorCode::kInvalidArgument, "name the files: tessera-lint-ds FILE...");
    std::vector<FileReport> reports;
    for (const std::string& file : files) {
      reports.push_back(report_of(file, o));
      if (!o.as_json) out << text_of(reports.back());
    }
    if (o.as_json) out << json_of(reports);
    const bool good =
        std::ranges::all_of(reports, [](const auto& r) { return r.flags.has_value(); });
    return good ? 0 : exit_code(ErrorCode::kInvalidArgument);
  });
}

}  // namespace tessera::programs
