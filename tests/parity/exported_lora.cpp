// SPDX-License-Identifier: MIT
// A PEFT adapter of an exported program: trained beside PEFT, under every layout, and written.
//   exported_lora DIRECTORY OUT
// The last line is JSON with the largest relative difference of the losses; OUT gets the trained
// adapter. The exit code is 1 where a layout differs from one rank.
#include <cstdio>
#include <string>
#include <vector>

#include "lib/core/failure.h"
#include "tests/parity/exported_adapter.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

ParityRow row_of(const std::string& strategy, ParityRow row) {
  row.parallel.strategy = strategy;
  row.parallel.persistence_threshold = 20;
  return row;
}

// "", or the first layout that differs from one rank with as many micro-batches.
std::string difference_of_layouts(const ExportedAdapter& exported) {
  const ParityWork work = adapter_work(exported);
  std::vector<ParityRow> rows;
  for (const std::string strategy : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    rows.push_back(row_of(strategy, {.ranks = 2, .accumulation = 2}));
  }
  rows.push_back(row_of("single", {.accumulation = 4}));
  rows.back().parallel.gradient_checkpointing = true;
  rows.push_back(row_of("zero3", {.ranks = 2, .accumulation = 2}));
  rows.back().parallel.offload.what = Offload::kOptimizerAndParameters;
  if (work.model.block_count() > 1) {
    rows.push_back(row_of("single", {.ranks = 2, .accumulation = 4, .pipeline = 2}));
  }
  const RankRecord alone = run_on_threads(row_of("single", {.accumulation = 4}), work).front();
  for (const ParityRow& row : rows) {
    for (const RankRecord& rank : run_on_threads(row, work)) {
      const std::string what = difference(rank, alone, 1e-5);
      if (!what.empty()) return concat(row.name(), ": ", what);
    }
  }
  return "";
}

void write_adapter(const ExportedAdapter& exported, const RankRecord& trained,
                   const std::string& out) {
  HuggingFaceWriterOptions how = adapter_writer_options(exported.model);
  how.replaces = true;
  HuggingFaceWriter writer(out, how);
  for (const auto& [key, value] : trained.final) {
    const std::string name = stored_name(exported.model, key);
    if (exported.adapter->has(name)) writer.add(name, value);
  }
  writer.add_text("adapter_config.json", exported.adapter->config().to_json());
  writer.commit();
}

int compare(const std::string& directory, const std::string& out) {
  const ExportedAdapter exported(directory);
  const RankRecord trained = run_on_threads(row_of("single", {}), peft_work(exported)).front();
  write_adapter(exported, trained, out);
  const std::string what = difference_of_layouts(exported);
  if (!what.empty()) std::printf("%s: %s\n", directory.c_str(), what.c_str());
  std::printf("{\"loss\": %.3g}\n", difference_of_losses(trained, exported.expected.at("loss")));
  return what.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: exported_lora DIRECTORY OUT\n");
    return 2;
  }
  try {
    return compare(argv[1], argv[2]);
  } catch (const std::exception&) {
    std::printf("%s: %s\n", argv[1], current_failure().message.c_str());
    return 1;
  }
}
