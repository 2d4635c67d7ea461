// SPDX-License-Identifier: MIT
#include "lib/run/next_steps.h"

#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

std::string for_shell(const std::string& path) {
  const bool plain = path.find_first_of(" \t\"'$&|;()<>*?`\\") == std::string::npos;
  return plain ? path : concat("'", path, "'");
}

}  // namespace

std::vector<metrics::TextRow> next_steps(const RunTask& task, int exit_code) {
  const TrainOptions& o = task.options();
  const std::string directory = for_shell(o.output.output_dir);
  const bool has_model = exit_code == 0 && o.output.save_final;
  std::vector<metrics::TextRow> rows{
      {"files", concat(directory, has_model ? "  (the model: final/)" : "")},
      {"report", "tessera-report " + directory}};
  if (!has_model || task.program() == Program::kOwn) return rows;
  const std::string model = for_shell(o.output.output_dir + "/final");
  const bool classifies = task.program() == Program::kClassification,
             adapts = task.adapter() != nullptr;
  if (!classifies && !(adapts && o.model.directory.empty())) {
    rows.push_back({"generate", concat("tessera-generate --model ",
                                       adapts ? for_shell(o.model.directory) + " --adapter " : "",
                                       model, task.program() == Program::kChat ? " --chat" : "")});
  }
  rows.push_back({"Python", concat(adapts ? "AutoPeftModelFor" : "AutoModelFor",
                                   classifies ? "SequenceClassification" : "CausalLM",
                                   ".from_pretrained(\"", o.output.output_dir, "/final\")")});
  return rows;
}

}  // namespace tessera::programs
