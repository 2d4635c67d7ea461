// SPDX-License-Identifier: MIT
#include "lib/tools/checkpoint/checkpoint_tool.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iomanip>
#include <map>
#include <ostream>
#include <utility>

#include "lib/core/terminal.h"
#include "lib/core/version_flag.h"
#include "lib/settings/flags.h"
#include "lib/settings/tool.h"
#include "lib/tools/checkpoint/export_model.h"
#include "lib/tools/checkpoint/merge_adapter.h"
#include "lib/tools/checkpoint/tensor_set.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;

constexpr int kDifferent = 1;  // exit code of the command diff, as of diff and cmp
constexpr const char* kPath =
    "PATH: a checkpoint, the output directory of a run (its newest checkpoint), or, except for\n"
    "export, a Hugging Face directory, adapters or one safetensors file.\n"
    "Exit codes: 0 ok, 1 the two differ (diff), 2 usage, 4 damaged or not readable.\n";

// Flags of export and merge.
struct WriteFlags {
  std::string dtype = "fp32", tokenizer;
  int64_t max_shard_bytes = ExportOptions{}.max_shard_bytes;
};

struct Call {
  std::vector<std::string> paths;
  WriteFlags flags;
  std::ostream& out;
  std::ostream& err;
};

std::unique_ptr<TensorSet> open(const std::string& path, std::ostream& err) {
  std::vector<std::string> notices;
  std::unique_ptr<TensorSet> set;
  try {
    set = open_tensors(path, notices);
  } catch (...) {
    for (const std::string& notice : notices) err << notice << "\n";
    throw;
  }
  for (const std::string& notice : notices) err << notice << "\n";
  if (set->path() != path) err << "reading " << set->path() << "\n";
  return set;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return concat(c10::IntArrayRef(shape));
}

int inspect(const Call& call) {
  const auto set = open(call.paths[0], call.err);
  if (const Checkpoint* checkpoint = set->checkpoint()) {
    const Manifest& manifest = checkpoint->manifest();
    call.out << "step " << manifest.step << ", " << manifest.total_bytes() << " bytes in "
             << manifest.files.size() << " files, written with";
    for (const auto& [name, version] : manifest.libraries)
      call.out << " " << name << " " << version;
    call.out << "\n";
    for (const auto& [name, value] : Json::parse(checkpoint->run(), {}, "run").members()) {
      call.out << "run." << name << " " << value.dump().substr(0, 200) << "\n";
    }
  }
  std::map<at::ScalarType, int64_t> numel;
  for (const auto& [name, tensor] : set->tensors()) {
    call.out << name << " " << tensor.dtype << " " << shape_text(tensor.shape) << "\n";
    numel[tensor.dtype] += c10::multiply_integers(tensor.shape);
  }
  call.out << set->tensors().size() << " tensors";
  for (const auto& [dtype, count] : numel) call.out << ", " << count << " elements in " << dtype;
  call.out << "\n";
  return 0;
}

int verify(const Call& call) {
  const auto set = open(call.paths[0], call.err);
  const TensorSet::Verified result = set->verify();
  for (const std::string& remark : result.remarks) call.out << remark << "\n";
  for (const std::string& defect : result.defects) call.out << "damaged: " << defect << "\n";
  check(result.defects.empty(), ErrorCode::kDataLoss, set->path(), ": ", result.defects.size(),
        result.defects.size() == 1 ? " place is" : " places are",
        " damaged; use another checkpoint");
  call.out << set->path() << ": " << set->tensors().size() << " tensors, " << result.meaning
           << "\n";
  return 0;
}

// The run's final/ beside the checkpoint, if it has a tokenizer; else "". Paths in the checkpoint's
// own settings are not followed, since the checkpoint may be a stranger's.
std::string tokenizer_beside(const std::string& checkpoint) {
  const fs::path folder = fs::absolute(checkpoint).lexically_normal();
  const fs::path run =
      folder.has_filename() ? folder.parent_path() : folder.parent_path().parent_path();
  return fs::exists(run / "final" / "tokenizer.json") ? (run / "final").string() : "";
}

// Path of the run's tokenizer: " (the run's was DIR)".
std::string tokenizer_of_run(const Checkpoint& checkpoint) {
  const Json run = Json::parse(checkpoint.run(), {}, checkpoint.path() + ": run");
  const auto settings = run.find("settings");
  if (!settings || !settings->is_object()) return "";
  for (const char* name : {"tokenizer", "model"}) {
    const auto setting = settings->find(name);
    if (!setting || !setting->is_object()) continue;
    const std::string directory = setting->get("value", std::string());
    if (!directory.empty()) return concat(" (the run's was ", directory, ")");
  }
  return "";
}

int export_directory(const Call& call) {
  ExportOptions options{.directory = call.paths[1]};
  const std::string& dtype = call.flags.dtype;
  options.dtype = dtype == "fp32" ? at::kFloat : dtype == "bf16" ? at::kBFloat16 : at::kHalf;
  options.max_shard_bytes = call.flags.max_shard_bytes;
  options.tokenizer = call.flags.tokenizer;
  const auto set = open(call.paths[0], call.err);
  check(set->checkpoint() != nullptr, ErrorCode::kInvalidArgument, set->path(),
        ": not a checkpoint; export makes a Hugging Face directory of one");
  if (options.tokenizer.empty()) options.tokenizer = tokenizer_beside(set->path());
  const int64_t count = export_model(*set->checkpoint(), options);
  call.out << options.directory << ": " << count << " tensors of step "
           << set->checkpoint()->manifest().step << " in " << dtype << ", ";
  if (options.tokenizer.empty()) {
    call.out << "no tokenizer; --tokenizer DIR copies one" << tokenizer_of_run(*set->checkpoint());
  } else {
    call.out << "tokenizer of " << options.tokenizer;
  }
  call.out << "\n";
  return 0;
}

int merge(const Call& call) {
  MergeOptions options{.base = call.paths[0], .adapter = call.paths[1], .directory = call.paths[2]};
  options.max_shard_bytes = call.flags.max_shard_bytes;
  const MergedAdapter result = merge_adapter(options);
  call.out << options.directory << ": " << result.tensors << " tensors, " << result.adapted
           << " of them with adapters, " << result.replaced << " trained in full\n";
  for (const std::string& text : result.skipped) call.out << "not copied: " << text << "\n";
  return 0;
}

// "" if all values are equal; NaNs count as equal.
std::string difference(const at::Tensor& a, const at::Tensor& b) {
  constexpr int64_t kPiece = int64_t{1} << 22;
  const at::Tensor x = a.reshape(-1), y = b.reshape(-1);
  int64_t count = 0, first = -1;
  double most = 0;
  for (int64_t done = 0; done < x.numel(); done += kPiece) {
    const int64_t end = std::min(done + kPiece, x.numel());
    const at::Tensor p = x.slice(0, done, end), q = y.slice(0, done, end);
    const at::Tensor differs = p.ne(q).logical_and(p.eq(p).logical_or(q.eq(q)));
    const int64_t here = differs.sum().item<int64_t>();
    if (here == 0) continue;
    if (first < 0) first = done + differs.nonzero()[0].item<int64_t>();
    count += here;
    const at::Tensor gap = p.to(at::kDouble).sub(q.to(at::kDouble)).abs();
    most = std::max(most, gap.nan_to_num(0.0).max().item<double>());
  }
  if (count == 0) return "";
  return concat(count, " of ", x.numel(), " elements differ, by at most ", most, "; the first is [",
                first, "]: ", x[first].item<double>(), " and ", y[first].item<double>());
}

int diff(const Call& call) {
  const auto a = open(call.paths[0], call.err), b = open(call.paths[1], call.err);
  int64_t differing = 0, same = 0;
  const auto say = [&](const std::string& name, const std::string& text) {
    call.out << name << ": " << text << "\n";
    ++differing;
  };
  for (const auto& [name, info] : a->tensors()) {
    const auto found = b->tensors().find(name);
    if (found == b->tensors().end()) {
      say(name, "only in " + a->path());
    } else if (found->second.shape != info.shape) {
      say(name, "shapes " + shape_text(info.shape) + " and " + shape_text(found->second.shape));
    } else {
      const std::string dtypes = info.dtype == found->second.dtype
                                     ? ""
                                     : concat("dtypes ", info.dtype, " and ", found->second.dtype);
      const std::string values = difference(a->read(name), b->read(name));
      if (!dtypes.empty() || !values.empty()) {
        say(name, dtypes + (dtypes.empty() || values.empty() ? "" : "; ") + values);
      } else {
        ++same;
      }
    }
  }
  for (const auto& [name, info] : b->tensors()) {
    if (!a->tensors().contains(name)) say(name, "only in " + b->path());
  }
  call.out << same << " tensors are the same, " << differing << " differ\n";
  return differing == 0 ? 0 : kDifferent;
}

struct Command {
  std::string name, paths, what;
  int (*run)(const Call&);
  bool writes = false;  // takes WriteFlags

  std::string usage() const { return concat("tessera-checkpoint ", name, " ", paths); }
};

const std::vector<Command>& commands() {
  static const std::vector<Command> all{
      {"inspect", "PATH", "what is in it", inspect},
      {"verify", "PATH", "reads every byte", verify},
      {"export", "PATH DIRECTORY", "writes a Hugging Face directory", export_directory, true},
      {"merge", "BASE ADAPTER DIRECTORY",
       "a Hugging Face directory with the adapters (PEFT's, or final/ of a run with --lora_r) in "
       "it",
       merge, true},
      {"diff", "A B", "which tensors differ, and by how much", diff}};
  return all;
}

std::string usage() {
  constexpr size_t kColumn = 49, kWidth = 98;
  std::string text;
  for (const Command& command : commands()) {
    text +=
        padded(command.usage(), kColumn) + wrapped(command.what, kColumn, kColumn, kWidth) + "\n";
  }
  return concat(text, "tessera-checkpoint COMMAND --help says more; --version says what this is.\n",
                kPath);
}

// True if the flags only ask for help or the like, which is then on `call.out`.
bool answered(const Command& command, const std::vector<std::string>& given, Call& call) {
  if (!command.writes) {
    if (given.empty()) return false;
    check(given[0] == "-h" || given[0].starts_with("--help"), ErrorCode::kInvalidArgument,
          "unknown flag ", given[0], "; ", command.name, " takes none but --help");
    call.out << "Usage: " << command.usage() << "\n" << command.what << "\n" << kPath;
    return true;
  }
  FlagSet flags("tessera-checkpoint " + command.name, concat(command.usage(), ": ", command.what));
  flags.section("Files");
  if (command.name == "export") {
    flags.add("dtype", &call.flags.dtype, "of the weights", {"fp32", "bf16", "fp16"});
    flags.add("tokenizer", &call.flags.tokenizer,
              "directory whose tokenizer files are copied; the run's final/ unless given");
  }
  flags.add("max_shard_bytes", &call.flags.max_shard_bytes,
            "of one file; larger models get several");
  flags.parse(given);
  if (flags.help_requested() || flags.print_config_requested()) {
    call.out << (flags.help_requested() ? flags.help() : flags.config_json() + "\n");
    return true;
  }
  check(call.flags.max_shard_bytes > 0, ErrorCode::kInvalidArgument, "--max_shard_bytes is ",
        call.flags.max_shard_bytes, ", expected at least 1");
  return false;
}

int run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  const std::string name = arguments.empty() ? "" : arguments.front();
  if (name == "--help" || name == "-h" || name == "--version") {
    out << (name == "--version" ? version_text("tessera-checkpoint") : usage());
    return 0;
  }
  const auto command = std::ranges::find(commands(), name, &Command::name);
  check(command != commands().end(), ErrorCode::kInvalidArgument,
        name.empty() ? "no command is given" : "unknown command " + name,
        "; expected inspect, verify, export, merge or diff (--help)");
  const auto first_flag =
      std::find_if(arguments.begin() + 1, arguments.end(),
                   [](const auto& text) { return text.starts_with("--") || text == "-h"; });
  Call call{{arguments.begin() + 1, first_flag}, {}, out, err};
  if (answered(*command, {first_flag, arguments.end()}, call)) return 0;
  const auto wanted = 1 + std::ranges::count(command->paths, ' ');
  check(static_cast<std::ptrdiff_t>(call.paths.size()) == wanted, ErrorCode::kInvalidArgument, name,
        " takes ", wanted, wanted == 1 ? " path" : " paths", ", found ", call.paths.size(), ": ",
        command->usage());
  return command->run(call);
}

}  // namespace

int run_checkpoint_tool(const std::vector<std::string>& arguments, std::ostream& out,
                        std::ostream& err) {
  return run_tool("tessera-checkpoint", out, err, [&] { return run(arguments, out, err); });
}

}  // namespace tessera::programs
