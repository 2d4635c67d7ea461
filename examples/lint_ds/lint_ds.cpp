#include "examples/lint_ds/lint_ds.h"

#include <ostream>

#include "examples/common/deepspeed.h"
#include "examples/common/deepspeed_keys.h"
#include "examples/common/flags.h"
#include "examples/common/foreign_config.h"
#include "examples/common/options.h"
#include "examples/common/tool.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

struct LintOptions {
  int64_t ranks = 0;
  bool list_auto = false;
  std::string defaults = "0.19";
};

// The ranks that the file's own batch sizes ask for; 1 where they leave it open.
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

// Whether the file can be used.
bool lint(const std::string& path, const LintOptions& o, std::ostream& out) {
  if (const auto answer = answer_foreign_config(path)) {
    out << *answer << "\n";
    return false;
  }
  const DeepSpeedFile file = DeepSpeedFile::read(path);
  for (const std::string& message : file.messages()) out << message << "\n";
  const auto say = [&](const std::vector<DeepSpeedFile::Remark>& remarks, const char* kind) {
    for (const DeepSpeedFile::Remark& one : remarks) {
      out << path << ":" << one.line << ": " << kind << ": " << one.text << "\n";
    }
  };
  say(file.notes(), "accepted");
  say(file.idle(), "without effect");
  if (!file.findings().empty()) return false;
  FlagSet flags("", "");
  TrainOptions train{.deepspeed_defaults = o.defaults};
  add_train_flags(flags, train, Program::kSquad);
  const int64_t ranks = o.ranks > 0 ? o.ranks : ranks_of(file);
  try {
    apply_deepspeed(file, ranks, train, flags);
  } catch (const Error& error) {
    out << error.what() << "\n";
    return false;
  }
  out << path << ": the same on " << ranks << " rank(s) as" << flags.changed_text() << "\n";
  return true;
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
    flags.add("deepspeed_defaults", &o.defaults, "of which version what a file leaves out is",
              {"0.16", "0.19"});
    flags.add("auto", &o.list_auto, "list the keys that may be \"auto\", and stop");
    std::vector<std::string> files, options;
    for (const std::string& argument : arguments) {
      const bool value = !options.empty() && options.back().starts_with("--") &&
                         options.back().find('=') == std::string::npos &&
                         options.back() != "--auto" && options.back() != "--help";
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
    bool good = true;
    for (const std::string& file : files) {
      try {
        good = lint(file, o, out) && good;
      } catch (const Error& error) {  // the others are read all the same
        out << error.what() << "\n";
        good = false;
      }
    }
    return good ? 0 : exit_code(ErrorCode::kInvalidArgument);
  });
}

}  // namespace tessera::programs
