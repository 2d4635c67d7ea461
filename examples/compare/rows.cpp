#include "examples/compare/rows.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  check(condition, ErrorCode::kInvalidArgument, parts...);
}

std::vector<std::string> items_of(const std::string& list) {
  std::vector<std::string> items;
  std::istringstream in(list);
  for (std::string item; std::getline(in, item, ',');) items.push_back(item);
  return items;
}

int64_t rank_count(const std::string& text, const std::string& where) {
  const int ranks = std::atoi(text.c_str());
  require(ranks >= 1 && ranks <= 256 && text == std::to_string(ranks), where, ": '", text,
          "' is not a number of ranks from 1 to 256");
  return ranks;
}

// E.g. "zero1-4-pp2-gpipe-off": what sets the row apart.
std::string name_of(const TrainOptions& o, int64_t ranks) {
  const TrainOptions usual;
  std::string name = concat(o.strategy, "-", ranks);
  if (o.tensor_parallel > 1) name += concat("-tp", o.tensor_parallel);
  if (o.sequence_parallel) name += "-sp";
  if (o.pipeline_parallel > 1) name += concat("-pp", o.pipeline_parallel, "-", o.pipeline_schedule);
  if (o.pipeline_vocabulary == "shared") name += "-shared";
  if (o.shard_ranks > 0) name += concat("-shard", o.shard_ranks);
  if (!o.reshard_after_forward) name += "-keep";
  if (o.fsdp_unit_numel > 0) name += "-units";
  if (o.gradient_checkpointing) name += "-gc";
  if (o.reduce_at_boundary) name += "-boundary";
  if (o.offload != "none") name += o.offload == "optimizer" ? "-off" : "-offp";
  if (o.offload != "none" && o.pin_memory) name += "-pin";
  return name;
}

ComparisonRow make_row(const RowSource& source, int64_t ranks, std::vector<std::string> flags,
                       const std::string& where) {
  ComparisonRow row{.ranks = ranks, .flags = std::move(flags)};
  std::vector<std::string> arguments = source.arguments;
  arguments.insert(arguments.end(), row.flags.begin(), row.flags.end());
  arguments.insert(arguments.end(), {"--output_dir", "x"});
  FlagSet set(where, "");
  try {
    add_train_flags(set, row.options, source.program);
    set.parse(arguments);
    validate_options(row.options, source.program);
    for (const char* name : {"ranks", "gradient_accumulation_steps", "dry_run"}) {
      require(!set.given(name), "--", name, " is chosen by tessera-compare for every row");
    }
    require(!set.given("deepspeed"),
            "--deepspeed describes one layout; tessera-finetune-* "
            "--print_config says its flags, which --rows takes");
  } catch (const Error& error) {
    fail(error.code(), where, ": ", error.what());
  }
  row.name = name_of(row.options, ranks);
  return row;
}

std::vector<ComparisonRow> read_rows(const RowSource& source) {
  std::ifstream in(source.rows_file);
  require(in.good(), "--rows ", source.rows_file, ": cannot be read");
  std::vector<ComparisonRow> rows;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    const std::string where = concat(source.rows_file, ":", ++number);
    std::istringstream words(line.substr(0, line.find('#')));
    std::string ranks;
    if (!(words >> ranks)) continue;
    std::vector<std::string> flags;
    for (std::string word; words >> word;) flags.push_back(word);
    rows.push_back(make_row(source, rank_count(ranks, where), std::move(flags), where));
  }
  require(!rows.empty(), "--rows ", source.rows_file, ": has no row");
  return rows;
}

std::vector<ComparisonRow> grid(const RowSource& source) {
  const std::vector<std::string> known = strategy_names();
  std::vector<ComparisonRow> rows;
  for (const std::string& strategy : items_of(source.strategies)) {
    require(std::find(known.begin(), known.end(), strategy) != known.end(), "--strategies: '",
            strategy, "' is no strategy; the nearest is ", nearest_name(strategy, known));
    if (strategy == "single") continue;
    for (const std::string& count : items_of(source.rank_counts)) {
      rows.push_back(make_row(source, rank_count(count, "--rank_counts"), {"--strategy", strategy},
                              "--strategies"));
    }
  }
  return rows;
}

}  // namespace

std::vector<ComparisonRow> make_rows(const RowSource& source) {
  std::vector<ComparisonRow> rows{make_row(source, 1, {"--strategy", "single"}, "the reference")};
  rows.front().is_reference = true;
  const auto others = source.rows_file.empty() ? grid(source) : read_rows(source);
  rows.insert(rows.end(), others.begin(), others.end());
  std::set<std::string> names;
  int64_t global = source.global_batch_size;
  for (const ComparisonRow& row : rows) {
    require(names.insert(row.name).second, "two rows are called ", row.name);
    const int64_t batch = row.options.per_device_train_batch_size * row.mesh().data;
    if (source.global_batch_size == 0) global = std::max(global, batch);
  }
  for (ComparisonRow& row : rows) {
    TrainOptions& o = row.options;
    const int64_t batch = o.per_device_train_batch_size * row.mesh().data;
    o.gradient_accumulation_steps = global / batch;
    require(o.gradient_accumulation_steps * batch == global, "row ", row.name,
            ": a global batch of ", global, " rows cannot be cut into micro-batches of ",
            o.per_device_train_batch_size, " on ", row.mesh().data,
            " data ranks; change --global_batch_size, --per_device_train_batch_size or the ranks");
    row.flags.insert(row.flags.end(), {"--gradient_accumulation_steps",
                                       std::to_string(o.gradient_accumulation_steps)});
  }
  return rows;
}

}  // namespace tessera::programs
