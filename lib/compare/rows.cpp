// SPDX-License-Identifier: MIT
#include "lib/compare/rows.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "backends/strategy_kinds.h"
#include "lib/compare/peer.h"
#include "lib/core/nearest.h"
#include "lib/interop/deepspeed.h"
#include "lib/interop/foreign_config.h"
#include "lib/interop/foreign_flags.h"
#include "lib/settings/layout.h"
#include "lib/settings/lists.h"
#include "lib/settings/require.h"
#include "lib/settings/table.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

int64_t rank_count(const std::string& text, const std::string& where) {
  const int ranks = std::atoi(text.c_str());
  require(ranks >= 1 && ranks <= 256 && text == std::to_string(ranks), where, ": '", text,
          "' is not a number of ranks from 1 to 256");
  return ranks;
}

std::string flag_name(const std::string& argument) {
  if (!argument.starts_with("--")) return "";
  std::string name = argument.substr(2, argument.find('=') - 2);
  std::ranges::replace(name, '-', '_');
  return name;
}

// The arguments without one flag and its value.
std::vector<std::string> without_flag(const std::vector<std::string>& arguments,
                                      const std::string& flag) {
  std::vector<std::string> kept;
  bool dropping = false;
  for (const std::string& argument : arguments) {
    if (argument.starts_with("--")) dropping = flag_name(argument) == flag;
    if (!dropping) kept.push_back(argument);
  }
  return kept;
}

std::string file_name_of(const std::string& value) {
  std::string name = std::filesystem::path(value).filename().string();
  if (name.ends_with(".json")) name.resize(name.size() - 5);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '-') c = '_';
  }
  return name;
}

// Name from the layout and the row's own flags: "zero1-4-pp2-gpipe-off", "zero2-2-bf16-bs8".
std::string name_of(const ComparisonRow& row, const std::vector<std::string>& own,
                    const FlagSet& flags) {
  static const std::map<std::string, std::string> kShort{{"dtype", ""},
                                                         {"model", ""},
                                                         {"model_config", ""},
                                                         {"deepspeed", ""},
                                                         {"max_seq_length", "sl"},
                                                         {"per_device_train_batch_size", "bs"},
                                                         {"gradient_accumulation_steps", "ga"},
                                                         {"train_slice", "rows"}};
  const auto is_own = [&](const settings::Setting& setting) {
    const auto names = [&](const std::string& word) { return flag_name(word) == setting.name; };
    return std::ranges::any_of(own, names);
  };
  std::string name = concat(row.options.parallel.strategy, "-", row.ranks);
  for (const std::string& tag : settings::layout_tags(row.options, is_own)) name += "-" + tag;
  for (const std::string& argument : own) {
    const std::string flag = flag_name(argument);
    const settings::Setting* setting = settings::find(flag);
    if (flag.empty() || (setting != nullptr && settings::names_layout(*setting))) continue;
    const auto known = kShort.find(flag);
    const std::string value = flags.has(flag) ? flags.text(flag) : "";
    name += concat("-", known == kShort.end() ? flag : known->second, file_name_of(value));
  }
  return name;
}

ComparisonRow make_row(const RowSource& source, int64_t ranks,
                       const std::vector<std::string>& words, const std::string& where) {
  ComparisonRow row{.ranks = ranks};
  FlagSet own(where, ""), flags(where, "");
  try {
    own.add("name", &row.name, "");
    own.add("peer", &row.peer, "");
    const std::vector<std::string> given = own.parse_known(words);
    row.flags = overridden(source.arguments, given);
    row.flags.insert(row.flags.end(), given.begin(), given.end());
    add_train_flags(flags, row.options, source.program, find_foreign);
    flags.parse(row.flags);
    row.options.output.output_dir = "given to every row";
    for (const char* name : {"output_dir", "ranks", "dry_run", "recovery_test"}) {
      require(!flags.given(name), "--", name, " is chosen by tessera-compare for every row");
    }
    choose_strategy(flags, ranks, row.options);
    if (const std::string& file = row.options.run.deepspeed; !file.empty()) {
      refuse_foreign_config(file);
      apply_deepspeed(DeepSpeedFile::read(file), ranks, row.options, flags);
    }
    validate_options(row.options, source.program);
    const int64_t others = row.options.axes.sharers();
    require(ranks % others == 0, ranks, " ranks are no multiple of ", others,
            " pipeline x context x tensor ranks");
    if (!row.peer.empty()) check_peer(row.peer, row.options, source.program);
    require(row.name.empty() || file_name_of(row.name) == row.name, "--name ", row.name,
            ": letters, digits, '.', '-' and '_' make the name of a row");
    if (row.name.empty()) {
      row.name = (row.peer.empty() ? "" : row.peer + "-") + name_of(row, given, flags);
    }
  } catch (const Error& error) {
    fail(error.code(), where, ": ", error.what());
  }
  row.own_accumulation = flags.given("gradient_accumulation_steps");
  row.work = work_of(flags);
  return row;
}

struct Line {
  std::string where;
  std::vector<std::string> words;
};

std::vector<Line> lines_of(const std::string& rows_file) {
  std::ifstream in(rows_file);
  require(in.good(), "--rows ", rows_file, ": cannot be read");
  std::vector<Line> lines;
  int number = 0;
  for (std::string text; std::getline(in, text);) {
    Line line{.where = concat(rows_file, ":", ++number)};
    std::istringstream words(text.substr(0, text.find('#')));
    for (std::string word; words >> word;) line.words.push_back(word);
    if (!line.words.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

bool is_of_all_rows(const Line& line) { return line.words.front().starts_with("--"); }

std::vector<ComparisonRow> read_rows(const RowSource& source) {
  std::vector<ComparisonRow> rows;
  for (const Line& line : lines_of(source.rows_file)) {
    if (is_of_all_rows(line)) continue;
    const int64_t ranks = rank_count(line.words.front(), line.where);
    rows.push_back(make_row(source, ranks, {line.words.begin() + 1, line.words.end()}, line.where));
  }
  require(!rows.empty(), "--rows ", source.rows_file, ": has no row");
  return rows;
}

std::vector<ComparisonRow> grid(const RowSource& source) {
  const std::vector<std::string> known = strategy_names();
  std::vector<ComparisonRow> rows;
  const auto on_all_ranks = [&](const std::string& flag, const std::string& value,
                                const std::string& where) {
    for (const std::string& count : items_of(source.rank_counts)) {
      rows.push_back(
          make_row(source, rank_count(count, "--rank_counts"), {"--" + flag, value}, where));
    }
  };
  for (const std::string& strategy : items_of(source.strategies)) {
    require(std::find(known.begin(), known.end(), strategy) != known.end(), "--strategies: '",
            strategy, "' is no strategy; the nearest is ", nearest_name(strategy, known));
    if (!is(strategy, StrategyKind::kSingle)) on_all_ranks("strategy", strategy, "--strategies");
  }
  for (const std::string& file : items_of(source.deepspeed)) {
    on_all_ranks("deepspeed", file, "--deepspeed " + file);
  }
  for (const std::string& peer : items_of(source.peers)) {
    on_all_ranks("peer", peer, "--peer " + peer);
  }
  return rows;
}

}  // namespace

std::vector<std::string> flags_of_all_rows(const std::string& rows_file) {
  std::vector<std::string> flags;
  for (const Line& line : lines_of(rows_file)) {
    if (is_of_all_rows(line)) flags.insert(flags.end(), line.words.begin(), line.words.end());
  }
  return flags;
}

std::vector<std::string> overridden(std::vector<std::string> arguments,
                                    const std::vector<std::string>& others) {
  for (const std::string& argument : others) {
    if (argument.starts_with("--")) arguments = without_flag(arguments, flag_name(argument));
  }
  return arguments;
}

void set_flag(std::vector<std::string>& arguments, const std::string& flag,
              const std::string& value) {
  arguments = without_flag(arguments, flag);
  arguments.insert(arguments.end(), {"--" + flag, value});
}

void settle(ComparisonRow& row, int64_t global_batch_size) {
  TrainOptions& o = row.options;
  const int64_t batch = row.batch_per_pass();
  if (!row.own_accumulation) {
    const int64_t global = global_batch_size == 0 ? batch : global_batch_size;
    o.training.gradient_accumulation_steps = global / batch;
    require(o.training.gradient_accumulation_steps * batch == global, "row ", row.name,
            ": a global batch of ", global, " rows cannot be cut into micro-batches of ",
            o.training.per_device_train_batch_size, " on ", row.mesh().data,
            " data ranks; change --global_batch_size, --per_device_train_batch_size or the ranks");
    set_flag(row.flags, "gradient_accumulation_steps",
             std::to_string(o.training.gradient_accumulation_steps));
  }
  row.work["global_batch_size"] = std::to_string(batch * o.training.gradient_accumulation_steps);
}

std::vector<ComparisonRow> make_rows(const RowSource& source) {
  std::vector<ComparisonRow> rows = source.rows_file.empty() ? grid(source) : read_rows(source);
  const bool has_single = std::ranges::any_of(rows, [](const auto& row) {
    return row.peer.empty() && is(row.options.parallel.strategy, StrategyKind::kSingle);
  });
  if (source.reference && !has_single) {
    rows.insert(rows.begin(), make_row(source, 1, {"--strategy", name_of(StrategyKind::kSingle)},
                                       "the reference"));
  }
  require(!rows.empty(), "--reference false leaves no row; give --rows or --strategies");
  std::set<std::string> names;
  int64_t global = source.global_batch_size;
  for (const ComparisonRow& row : rows) {
    require(names.insert(row.name).second, "two rows are called ", row.name,
            "; give one of them a --name in the file of --rows");
    const bool counts = source.global_batch_size == 0 && !source.weak_scaling &&
                        !source.largest_batch && !row.own_accumulation;
    if (counts) global = std::max(global, row.batch_per_pass());
  }
  for (ComparisonRow& row : rows) {
    if (!source.largest_batch) settle(row, source.weak_scaling ? 0 : global);
  }
  return rows;
}

}  // namespace tessera::programs
